"""Figures: panels with buttons and legend, with their data inside.

A figure is a Bokeh document as JSON beside empty places for its panels; the script of the page fills the places. Ids
are counted from 1 in each figure, so equal values give equal bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.document import Document
from markupsafe import Markup

from runtime.report.html import macro
from runtime.report.panel import Panel, Series


def figure(
    panels: Sequence[Panel],
    caption: str,
    *,
    legend: Mapping[str, Series] | None = None,
    columns: int = 1,
    is_live: bool = False,
) -> Markup:
    """Return a figure: buttons, legend, panels and caption; nothing without panels.

    `is_live` lets the page replace the values of its lines.
    """
    if not panels:
        return Markup()
    document = Document()
    for panel in panels:
        document.add_root(panel.plot)
    data = _renumbered(document.to_json(deferred=False), {})
    return macro("figure.html", "figure", panels, data, caption, legend or {}, columns, is_live)


def _renumbered(value: Any, ids: dict[str, str]) -> Any:
    """Return JSON data with ids counted from 1 in the order in which they are met."""
    if isinstance(value, dict):
        return {
            key: ids.setdefault(item, str(len(ids) + 1)) if key == "id" else _renumbered(item, ids)
            for key, item in value.items()
        }
    return [_renumbered(item, ids) for item in value] if isinstance(value, list | tuple) else value
