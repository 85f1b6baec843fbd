"""Pages of reStructuredText as plain text."""

import re

from runtime.text.extraction.extracted import Extracted, Text, Unreadable, decoded

# Docutils, "reStructuredText Markup Specification": hyperlink references, interpreted text, literals, directives.
# Two repetitions of a pattern must not match the same characters, nor may a match begin at each of them: a megabyte of
# spaces or colons would take hours.
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
    elif plain := plain_restructured_text(text):
        yield Text("", plain)


def plain_restructured_text(text: str) -> str:
    text = text.replace("\r\n", "\n")
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text.strip()
