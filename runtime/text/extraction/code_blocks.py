"""Code of a page, set aside before the page's text is taken, and put back unchanged.

Each `pre` leaves a mark in its place, and so do tables whose rows are lines of code. A mark is a private character that
the parsed page does not use, so that no page can forge one. The tree is searched for it, because a page may write any
character as a reference (`&#xe000;`).
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from runtime.text.extraction.tree import select

_PRIVATE_AREAS = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_LINES = "span.line, span.token-line, span.code-line, div.line, code.line"
# Each line of a block is indented as far as its mark: without a limit, two long things of a page would multiply.
_MAX_INDENT = 32


class SetAside(NamedTuple):
    """The blocks of a page; block n left the text `{mark}{n}{mark}` in its place."""

    mark: str
    blocks: tuple[str, ...]


def set_aside(tree: Any) -> SetAside:
    """Replace each block of code by a mark; in a page that uses every private character, code stays in its place."""
    found = list(_blocks(tree))
    mark = _unused(str(tree)) if found else None
    if mark is None:
        return SetAside("", ())
    for number, (element, _) in enumerate(found):
        placed = tree.create_element("p")
        placed.append_child(tree.create_text_node(f"{mark}{number}{mark}"))
        element.replace_with(placed)
    return SetAside(mark, tuple(code.removeprefix("\n").rstrip() for _, code in found))


def put_back(text: str, code: SetAside) -> str:
    """Return the text with the code in place of its marks, indented like the line of the mark."""
    if not code.blocks:
        return text
    placed = re.compile(f"{code.mark}(\\d+){code.mark}")
    return "\n".join(_filled(line, placed, code) if code.mark in line else line for line in text.split("\n"))


def _filled(line: str, placed: re.Pattern[str], code: SetAside) -> str:
    indent = line[: min(_MAX_INDENT, len(line) - len(line.lstrip()))]

    def block(match: re.Match[str]) -> str:
        first, *rest = code.blocks[int(match.group(1))].split("\n")
        return "\n".join([first, *(indent + line if line else line for line in rest)])

    return placed.sub(block, line)


def _unused(page: str) -> str | None:
    """Return the first private character that a page does not use."""
    first = chr(_PRIVATE_AREAS[0][0])
    if first not in page:
        return first
    used = set(page)
    return next((mark for area in _PRIVATE_AREAS for mark in map(chr, area) if mark not in used), None)


def _blocks(tree: Any) -> Iterator[tuple[Any, str]]:
    """Yield every `pre` and table of code that is not empty and not inside another, with its code."""
    rows: dict[Any, list[str]] = {}
    for row in select(tree, "td.blob-code, td.line-content"):
        rows.setdefault(row.closest("table"), []).append(row.text.strip("\n"))
    inside: set[Any] = set()
    for element in select(tree, "pre, table"):
        if element not in inside and (element.tag == "pre" or element in rows):
            code = "\n".join(rows[element]) if element in rows else _lines(tree, element)
            if code.strip():
                inside.update(element.query_selector_all("pre, table").values())
                yield element, code


def _lines(tree: Any, element: Any) -> str:
    for line_break in element.query_selector_all("br").values():
        line_break.replace_with(tree.create_text_node("\n"))
    for line in element.query_selector_all(_LINES).values():
        after = line.next
        if after is not None and after.tag != "#text" and not line.text.endswith("\n"):
            line.append_child(tree.create_text_node("\n"))
    return str(element.text)
