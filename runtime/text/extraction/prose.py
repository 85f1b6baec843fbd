"""Pages of prose with light markup: reStructuredText, and the long descriptions of packages."""

import email
import email.policy
import re

from runtime.text.extraction.extracted import Extracted, Text, Unreadable, decoded, metadata

# Docutils, "reStructuredText Markup Specification": hyperlink references, interpreted text, literals, directives.
# No two repetitions of a pattern may take the same characters, nor one begin at each of them: a megabyte of spaces or
# colons would take hours.
_REPLACEMENTS = (
    (re.compile(r"^\.\. _[^:\n]+:.*\n?", re.M), ""),
    (re.compile(r"^( *)\.\. (?:note|warning|tip|important|caution|seealso)::[ \t]*", re.M), r"\1"),
    (re.compile(r"^ *\.\. [\w:-]+::.*$\n?(?: +:[\w-]+:.*\n)*", re.M), ""),
    (re.compile(r"^\.\. .*\n(?:[ \t]+\S.*\n)*", re.M), ""),
    (re.compile(r"`([^`<\n]*[^`<\s])\s*<[^>`\n]+>`__?"), r"\1"),
    (re.compile(r":[\w:+-]{1,64}:`~?\.?([^`<\n]*[^`<\s])(?:\s*<[^>`\n]+>|[ \t]*)`"), r"\1"),
    (re.compile(r"``([^`\n]+)``"), r"`\1`"),
    (re.compile(r"`([^`\n]+)`__?(?!\w)"), r"\1"),
    (re.compile(r"\*\*([^*\n]+)\*\*"), r"\1"),
    (re.compile(r"(?<=[.!?:])[ \t]*::[ \t]*$", re.M), ""),
    (re.compile(r"(?<![ \t])[ \t]*::[ \t]*$", re.M), ":"),
    (re.compile(r"^[=\-~^\"'#*+]{3,}[ \t]*$\n?", re.M), ""),
    (re.compile(r"\n{3,}"), "\n\n"),
)


def read_restructured_text(data: bytes) -> Extracted:
    text = decoded(data)
    if isinstance(text, Unreadable):
        yield text
        return
    plain = plain_restructured_text(text)
    if plain:
        yield Text("", plain)


def plain_restructured_text(text: str) -> str:
    text = text.replace("\r\n", "\n")
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text.strip()


def read_package_metadata(data: bytes) -> Extracted:
    """The description behind the headers (Core Metadata 2.1), under the name and the summary."""
    text = decoded(data)
    if isinstance(text, Unreadable):
        yield text
        return
    message = email.message_from_string(text, policy=email.policy.compat32)
    body = message.get_payload()
    if not isinstance(body, str) or not body.strip():
        return
    name, summary = message.get("Name", ""), message.get("Summary", "")
    is_rst = "rst" in message.get("Description-Content-Type", "text/x-rst")
    description = plain_restructured_text(body) if is_rst else body.strip()
    version = message.get("Version", "")
    yield Text("", f"{name}: {summary}\n\n{description}", metadata(name=name, version=version))
