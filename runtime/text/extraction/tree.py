"""Nodes of a parsed page, and marks behind short texts, which Resiliparse leaves out with their elements.

Resiliparse 2.0.1 leaves out icons: text of one private character, which takes three bytes. Its comparison reads the
bytes as a number from the wrong end, so nearly every text of three bytes with a last character outside ASCII counts as
an icon: `–`, `我`, `x²`, `5°`, a digit before a hard space. A mark behind the last character makes the text longer. The
mark is U+FDD0, which Unicode reserves as no character of any text.
"""

import re
from typing import Any

_MARK = "\ufdd0"
_SPACE = r"[ \t\n\r\f]*"
# A reference (`&deg;`) may stand for any character, so that it is marked in any case. Icons are not.
_SHORT = rf"{_SPACE}(?:[^<>&\s]?(?:[\x80-\ud7ff\uf900-\uffff]|&#?\w+;?))"
_BETWEEN_TAGS = re.compile(rf"(>{_SHORT})(?={_SPACE}(?:<|\Z))")
_AT_BEGINNING = re.compile(rf"\A({_SHORT})(?={_SPACE}(?:<|\Z))")
_MARKS = re.compile(rf"[\ue000-\uf8ff]?{_MARK}")


def with_marks(page: str) -> str:
    """Return HTML with a mark behind every short text."""
    return _BETWEEN_TAGS.sub(rf"\1{_MARK}", _AT_BEGINNING.sub(rf"\1{_MARK}", page))


def without_marks(text: str) -> str:
    """Return a text without marks, and without the icons that they kept."""
    return _MARKS.sub("", text) if _MARK in text else text


def text_of(node: Any) -> str:
    """Return the text of a node without marks."""
    return str(node.text).replace(_MARK, "")


def text_node(tree: Any, text: str) -> Any:
    """Return a new text node, with a mark if it needs one."""
    return tree.create_text_node(_AT_BEGINNING.sub(rf"\1{_MARK}", text))


def select(tree: Any, selector: str) -> list[Any]:
    """Return the elements of a page that a CSS selector matches."""
    # Iterating the collection searches it again for each element: minutes for a page of many links.
    return tree.document.query_selector_all(selector).values()


def as_span(tree: Any, element: Any) -> None:
    """Replace an element by one of the same content that means nothing."""
    span = tree.create_element("span")
    for child in element.child_nodes.values():
        span.append_child(child)
    element.replace_with(span)
