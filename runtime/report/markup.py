"""Markup: text becomes HTML in one place, and only what this module made goes through unescaped.

A child that is a plain `str` is text and is escaped; a child that is a `Markup` is kept. So a sample of a
web page, which may hold anything, cannot become part of the page by being forgotten somewhere.
"""

import html
import re
from collections.abc import Iterable

# Characters that HTML forbids, lone surrogates, and the controls that reverse the direction of the text around
# them: a sample with U+202E would turn the line it stands on.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_VOID_TAGS = frozenset({"meta", "input"})


class Markup(str):
    """HTML that is safe to put into the page as it is."""

    __slots__ = ()


def printable(text: str) -> str:
    """`text` with each character that must not reach a page replaced by U+FFFD."""
    return _UNPRINTABLE.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def escaped(text: str) -> Markup:
    """`text` as it stands in an element or between the quotes of an attribute."""
    return Markup(html.escape(printable(text), quote=True))


Attribute = str | bool | None


def element(tag: str, *children: str, **attributes: Attribute) -> Markup:
    """`<tag …>children</tag>`. Attribute `class_` is `class`, `aria_label` is `aria-label`.

    An attribute that is None or False is left out, one that is True stands alone.
    """
    written = [tag]
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if not _NAME.fullmatch(name):
            raise ValueError(f"element({tag!r}): attribute name {name!r} is no word; pass values as values.")
        if value is None or value is False:
            continue
        written.append(name if value is True else f'{name}="{escaped(value)}"')
    opening = " ".join(written)
    return Markup(f"<{opening}>" if tag in _VOID_TAGS else f"<{opening}>{joined(children)}</{tag}>")


def joined(children: Iterable[str]) -> Markup:
    """Children one after another: plain text escaped, markup as it is."""
    return Markup("".join(child if isinstance(child, Markup) else escaped(child) for child in children))
