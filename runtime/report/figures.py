"""Figures: panels with their buttons and legend, as markup with their data inside.

A figure is a Bokeh document as JSON beside empty places for its panels; the script of the page fills the places. Ids
are counted from 1 in each figure, so equal values give equal bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.document import Document
from bokeh.models import ColumnDataSource

from runtime.report.markup import Markup, data_element, element
from runtime.report.panel import Panel, Series
from runtime.report.theme import VARIABLES


def figure(
    panels: Sequence[Panel],
    caption: str,
    *,
    legend: Mapping[str, Series] | None = None,
    columns: int = 1,
    has_scale: bool = False,
    is_live: bool = False,
) -> Markup:
    """Return a figure: buttons, legend, panels and caption.

    `has_scale` gives it a button for a logarithmic y axis; `is_live` lets the page replace the values of its lines.
    """
    chips = [_chip(series) for series in (legend or {}).values()]
    places = [element("div", class_="panel", style=f"height:{panel.height}px") for panel in panels]
    return element(
        "figure",
        element("div", *_tools(panels, has_scale=has_scale), class_="tools"),
        *([element("div", *chips, class_="legend")] if chips else []),
        element("div", *places, class_=f"panels columns{columns}"),
        data_element(_data(panels)),
        element("figcaption", caption),
        data_live="" if is_live else None,
    )


def _tools(panels: Sequence[Panel], *, has_scale: bool) -> list[Markup]:
    """Return the buttons and the slider that have something to do in one of the panels."""
    zoom = [("in", "+", "Zoom in"), ("out", "−", "Zoom out"), ("reset", "Reset", "Show all")]
    made = [
        *zoom,
        *([("fit", "Fit y", "Fit the y axis to what is shown")] if any(panel.is_numeric for panel in panels) else []),
        *([("log", "Log y", "Switch between linear and logarithmic y axis")] if has_scale else []),
        ("csv", "CSV", "Download the data of this figure"),
    ]
    tools = [element("button", label, type="button", data_do=action, title=tip) for action, label, tip in made]
    if any("smooth" in source.tags for panel in panels for source in panel.plot.select({"type": ColumnDataSource})):
        slider = element("input", type="range", min="0", max="0.99", step="0.01", value="0.9", data_do="smooth")
        tools.append(element("label", "Smoothing ", slider))
    return tools


def _chip(series: Series) -> Markup:
    style = f"border-top:3px {series.dash.replace('dashdot', 'double')} var({VARIABLES[series.colour]})"
    sign = element("i", style=style)
    return element("button", sign, series.name, type="button", data_series=series.name, aria_pressed="true")


def _data(panels: Sequence[Panel]) -> Any:
    document = Document()
    for panel in panels:
        document.add_root(panel.plot)
    return _renumbered(document.to_json(deferred=False), {})


def _renumbered(value: Any, ids: dict[str, str]) -> Any:
    """Return JSON data with ids counted from 1 in the order in which they are met."""
    if isinstance(value, dict):
        return {
            key: ids.setdefault(item, str(len(ids) + 1)) if key == "id" else _renumbered(item, ids)
            for key, item in value.items()
        }
    return [_renumbered(item, ids) for item in value] if isinstance(value, list | tuple) else value
