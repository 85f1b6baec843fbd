"""Tables: headings, cells and alignment; every text in a cell is escaped unless it is markup already."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from runtime.report.markup import Markup, element


@dataclasses.dataclass(frozen=True)
class Column:
    """A heading, and whether what stands below it is a number (set right) or a text."""

    heading: str
    kind: Literal["text", "number"] = "text"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table; a plain text is a cell too."""

    content: str
    is_best: bool = False
    is_quiet: bool = False


CONTINUED = Cell("")
"""Marker of a cell that continues the cell above."""
NONE = Cell("–", is_quiet=True)
"""There is no such value."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], caption: str) -> Markup:
    """Return a table that scrolls sideways by itself on a narrow page; its first column names the row.

    Raises:
        ValueError: a row has another number of cells than there are columns, or the first row continues nothing.
    """
    head = [
        element("th", column.heading, scope="col", class_="number" if column.kind == "number" else None)
        for column in columns
    ]
    body = []
    for number, row in enumerate(rows):
        if len(row) != len(columns):
            raise ValueError(f"table {caption!r}: a row has {len(row)} cells for {len(columns)} columns: {list(row)!r}")
        if number == 0 and any(item is CONTINUED for item in row):
            raise ValueError(f"table {caption!r}: the first row continues a row above it; there is none.")
        cells = []
        for index, (column, item) in enumerate(zip(columns, row, strict=True)):
            if item is CONTINUED:
                continue
            below = (later[index] is not CONTINUED for later in rows[number + 1 :])
            height = 1 + next((count for count, ends in enumerate(below) if ends), len(rows) - number - 1)
            span = str(height) if height > 1 else None
            cell = item if isinstance(item, Cell) else Cell(item)
            classes = [
                *(["number"] if column.kind == "number" else []),
                *(["best"] if cell.is_best else []),
                *(["quiet"] if cell.is_quiet else []),
            ]
            class_ = " ".join(classes) or None
            if index:
                cells.append(element("td", cell.content, class_=class_, rowspan=span))
            else:
                scope = "row" if span is None else "rowgroup"
                cells.append(element("th", cell.content, scope=scope, class_=class_, rowspan=span))
        body.append(element("tr", *cells))
    parts = [
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    ]
    # tabindex: a part that scrolls must be reachable with the keyboard.
    return element("div", element("table", *parts), class_="scroll", tabindex="0", role="region", aria_label=caption)
