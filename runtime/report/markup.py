"""Markup: text becomes HTML in one place, and only what this module made goes through unescaped.

A child that is a plain `str` is text and is escaped; a child that is a `Markup` is kept. So a sample of a
web page, which may hold anything, cannot become part of the page by being forgotten somewhere.
"""

import dataclasses
import html
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

# Characters that HTML forbids, lone surrogates, and the controls that reverse the direction of the text around
# them: a sample with U+202E would turn the line it stands on.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_VOID_TAGS = frozenset({"meta", "input"})
MOST_CHARACTERS = 20_000
"""Characters of a text that a page shows."""


class Markup(str):
    """HTML that is safe to put into the page as it is."""

    __slots__ = ()


def printable(text: str) -> str:
    """Return `text` with each character that must not reach a page replaced by U+FFFD."""
    return _UNPRINTABLE.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def printable_data(value: Any) -> Any:
    """Return JSON data whose texts are printable."""
    if isinstance(value, dict):
        return {key: printable_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_data(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def data_element(value: Any, **attributes: str | None) -> Markup:
    """Return an element with JSON data for a script; no character of the data can end the element."""
    text = json.dumps(printable_data(value), ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Markup(text), **attributes, type="application/json")


def marked(text: str, spans: Sequence[tuple[int, int, str]]) -> list[tuple[str, str]]:
    """Return pieces of a text with the labels of the spans that cover each; spans count UTF-8 bytes."""
    data = text.encode()
    edges = sorted({0, len(data), *(edge for start, end, _ in spans for edge in (start, end))})
    pieces, left = [], MOST_CHARACTERS
    for begin, after in itertools.pairwise(edges):
        piece = data[begin:after].decode(errors="replace")
        labels = [label for start, end, label in spans if start <= begin and after <= end]
        pieces.append((piece[:left], "; ".join(labels)))
        left -= len(piece)
        if left < 0:
            pieces.append((" […]", ""))
            break
    return pieces or [("", "")]


def escaped(text: str) -> Markup:
    """Return `text` as it stands in an element or between the quotes of an attribute."""
    return Markup(html.escape(printable(text), quote=True))


def element(tag: str, *children: str, **attributes: str | None) -> Markup:
    """Return `<tag …>children</tag>`. Attribute `class_` is `class`, `aria_label` is `aria-label`; None is omitted."""
    written = [tag]
    for name, value in attributes.items():
        if value is not None:
            written.append(f'{name.rstrip("_").replace("_", "-")}="{escaped(value)}"')
    opening = " ".join(written)
    return Markup(f"<{opening}>" if tag in _VOID_TAGS else f"<{opening}>{joined(children)}</{tag}>")


def joined(children: Iterable[str]) -> Markup:
    """Return the children one after another: plain text escaped, markup as it is."""
    return Markup("".join(child if isinstance(child, Markup) else escaped(child) for child in children))


def listed(lines: Iterable[str]) -> Markup:
    """Return a list with a point for each line; nothing without lines."""
    points = [element("li", line) for line in lines]
    return element("ul", *points) if points else Markup()


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table; a plain text is a cell too."""

    content: str
    is_best: bool = False
    is_quiet: bool = False


NONE = Cell("–", is_quiet=True)
"""There is no such value."""
Row = Sequence[str | Cell]


def known(value: float | None, form: str) -> str | Cell:
    """Return a value in a format; `NONE` for None."""
    return NONE if value is None else format(value, form)


def folded(summary: str, *children: str, class_: str | None = None) -> Markup:
    """Return a line that opens what it sums up; nothing without children."""
    return element("details", element("summary", summary), *children, class_=class_) if any(children) else Markup()


def table(headings: Sequence[str], rows: Sequence[Row], caption: str, *, grouped: int = 0, class_: str = "") -> Markup:
    """Return a table that scrolls sideways by itself on a narrow page; nothing without rows.

    Args:
        headings: by column; one that begins with "#" is of numbers, which are set right. The first names the row.
        rows: the cells of each row.
        caption: above the table.
        grouped: number of first columns in which equal cells of consecutive rows are one cell.
        class_: further class of the table's element.
    """
    if not rows:
        return Markup()
    numbers = [heading.startswith("#") for heading in headings]
    head = [
        element("th", heading.removeprefix("#"), scope="col", class_="number" if is_number else None)
        for heading, is_number in zip(headings, numbers, strict=True)
    ]
    body = []
    for place, row in enumerate(rows):
        cells = []
        for column, (item, is_number) in enumerate(zip(row, numbers, strict=True)):
            height = _height(rows, place, column) if column < grouped else 1
            if height:
                cells.append(_cell(item, is_number=is_number, is_name=column == 0, height=height))
        body.append(element("tr", *cells))
    parts = [
        element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body),
    ]  # fmt: skip
    # tabindex: a part that scrolls must be reachable with the keyboard.
    return element(
        "div", element("table", *parts), class_=f"scroll {class_}".strip(), tabindex="0", role="region",
        aria_label=caption,
    )  # fmt: skip


def _height(rows: Sequence[Row], place: int, column: int) -> int:
    """Return the number of rows that a cell stands for; 0 where the one above it stands for its row."""
    group = list(rows[place][: column + 1])
    if place and list(rows[place - 1][: column + 1]) == group:
        return 0
    return sum(1 for _ in itertools.takewhile(lambda row: list(row[: column + 1]) == group, rows[place:]))


def _cell(item: str | Cell, *, is_number: bool, is_name: bool, height: int) -> Markup:
    cell = item if isinstance(item, Cell) else Cell(item)
    classes = {"number": is_number, "best": cell.is_best, "quiet": cell.is_quiet}
    class_ = " ".join(name for name, applies in classes.items() if applies) or None
    span = str(height) if height > 1 else None
    if is_name:
        return element("th", cell.content, scope="rowgroup" if span else "row", class_=class_, rowspan=span)
    return element("td", cell.content, class_=class_, rowspan=span)
