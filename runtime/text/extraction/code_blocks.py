"""Code of a page, set aside before its text is taken and put back as it was: to the last space and empty line.

Every `pre` leaves a mark where it stood. Lines that a page makes blocks of their own, in a `pre` or as rows of a table,
are lines of code here too. A mark is a private character that stands nowhere in the parsed page, so no page can forge
one; that is asked of the tree, since a page may write any character as a reference (`&#xe000;`).
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_PRIVATE_AREAS = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_LINES = "span.line, span.token-line, span.code-line, div.line, code.line"
# Every line of a block is moved in as far as its mark was: without a limit two long things of a page would multiply.
_MAX_INDENT = 32

All = Callable[[Any, str], list[Any]]


class SetAside(NamedTuple):
    """The blocks of a page; block n left the text `{mark}{n}{mark}` in its place."""

    mark: str
    blocks: tuple[str, ...]


def set_aside(tree: Any, select: All) -> SetAside:
    """Replaces each block of code by a mark; in a page that uses every private character code stays where it is."""
    found = list(_blocks(tree, select))
    mark = _unused(str(tree)) if found else None
    if mark is None:
        return SetAside("", ())
    for number, (element, _) in enumerate(found):
        placed = tree.create_element("p")
        placed.append_child(tree.create_text_node(f"{mark}{number}{mark}"))
        element.replace_with(placed)
    return SetAside(mark, tuple(code.removeprefix("\n").rstrip() for _, code in found))


def put_back(text: str, code: SetAside) -> str:
    """The text with the code where its marks are, its lines as far in as the line of the mark begins."""
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
    """The first private character that a page does not use."""
    first = chr(_PRIVATE_AREAS[0][0])
    if first not in page:
        return first
    used = set(page)
    return next((mark for area in _PRIVATE_AREAS for mark in map(chr, area) if mark not in used), None)


def _blocks(tree: Any, select: All) -> Iterator[tuple[Any, str]]:
    """Every `pre` and every table of lines of code that shows something and stands in no other, with what it shows."""
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
