"""Code of a page, set aside before its text is taken and put back as it was: to the last space and empty line.

Every `pre` leaves a mark where it stood. Lines that a page makes blocks of their own, in a `pre` or as rows of a table,
are lines of code here too.
"""

import re
from collections.abc import Callable
from typing import Any

_MARK = "\ue000"
"""A private character, which no page that is read by people needs; those of the page itself are taken out."""
_PLACED = re.compile(rf"^([^\S\n]*)(.*?){_MARK}(\d+){_MARK}", re.M)
_LINES = "span.line, span.token-line, span.code-line, div.line, code.line"

All = Callable[[Any, str], list[Any]]


def without_marks(page: str) -> str:
    """A page in which no character can be taken for a mark."""
    return page.replace(_MARK, "")


def set_aside(tree: Any, select: All) -> list[str]:
    """Replaces each block of code by a mark; returns what was there."""
    found: list[str] = []
    for element in select(tree, "pre, table"):
        if element.tag == "table":
            rows = [row.text for row in element.query_selector_all("td.blob-code, td.line-content").values()]
            if not rows:
                continue
            code = "\n".join(row.strip("\n") for row in rows)
        else:
            code = _code(tree, element)
        if not code.strip():
            continue
        placed = tree.create_element("p")
        placed.append_child(tree.create_text_node(f"{_MARK}{len(found)}{_MARK}"))
        element.replace_with(placed)
        found.append(code.removeprefix("\n").rstrip())
    return found


def put_back(text: str, code: list[str]) -> str:
    """The text with the code where its marks are, its lines as far in as the mark was."""

    def lines(match: re.Match[str]) -> str:
        indent, before, number = match.groups()
        first, *rest = code[int(number)].split("\n")
        return indent + before + "\n".join([first, *(indent + line if line else line for line in rest)])

    return _PLACED.sub(lines, text)


def _code(tree: Any, element: Any) -> str:
    for line_break in element.query_selector_all("br").values():
        line_break.replace_with(tree.create_text_node("\n"))
    for line in element.query_selector_all(_LINES).values():
        after = line.next
        if after is not None and after.tag != "#text" and not line.text.endswith("\n"):
            line.append_child(tree.create_text_node("\n"))
    return str(element.text)
