"""Figures: panels with their buttons and legend, as markup with their data inside.

A figure is a Bokeh document as JSON beside empty places for its panels; the script of the page fills the places. Ids
are counted from 1 in each figure, so equal values give equal bytes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.document import Document
from bokeh.models import ColumnDataSource

from runtime.report.markup import Markup, element, printable
from runtime.report.panel import Panel, Series
from runtime.report.theme import BRANCH, COLOURS, GRID, INK, MAIN, MUTED


def figure(
    panels: Sequence[Panel],
    caption: str,
    *,
    legend: Mapping[str, Series] | None = None,
    columns: int = 1,
    has_scale: bool = False,
) -> Markup:
    """Return a figure: buttons, legend, panels and caption. `has_scale` gives it a button for a logarithmic y axis."""
    is_smoothed = any("smooth" in source.tags for panel in panels for source in _sources(panel))
    buttons = _buttons(panels, has_scale=has_scale)
    if is_smoothed:
        slider = element("input", type="range", min="0", max="0.99", step="0.01", value="0.9", data_do="smooth")
        buttons.append(element("label", "Smoothing ", slider))
    chips = [_chip(series) for series in (legend or {}).values()]
    places = [element("div", class_="panel", style=f"height:{panel.height}px") for panel in panels]
    return element(
        "figure",
        element("div", *buttons, class_="tools"),
        *([element("div", *chips, class_="legend")] if chips else []),
        element("div", *places, class_=f"panels columns{columns}"),
        element("script", _json(panels), type="application/json"),
        element("figcaption", caption),
    )


def _buttons(panels: Sequence[Panel], *, has_scale: bool) -> list[Markup]:
    """Return the buttons that have something to do in one of the panels."""
    made = []
    if any(panel.has_x_extent for panel in panels):
        made += [_button("in", "+", "Zoom in"), _button("out", "−", "Zoom out"), _button("reset", "Reset", "Show all")]
        made.append(_button("drag", "Drag: zoom", "Switch between zoom and pan"))
    if any(panel.is_numeric for panel in panels):
        made.append(_button("fit", "Fit y", "Fit the y axis to what is shown"))
    if has_scale:
        made.append(_button("log", "Log y", "Switch between linear and logarithmic y axis"))
    return [*made, _button("csv", "CSV", "Download the data of this figure")]


def _button(action: str, label: str, tip: str) -> Markup:
    return element("button", label, type="button", data_do=action, title=tip)


def _chip(series: Series) -> Markup:
    style = f"border-top:3px {series.dash.replace('dashdot', 'double')} var({_variable(series.colour)})"
    sign = element("i", style=style)
    return element("button", sign, series.name, type="button", data_series=series.name, aria_pressed="true")


def _variable(colour: str) -> str:
    """Return the variable of the style sheet that holds a colour."""
    names = {MAIN: "--main", BRANCH: "--branch", MUTED: "--ink3", GRID: "--hair", INK: "--ink"}
    return names.get(colour) or f"--c{COLOURS.index(colour)}"


def _sources(panel: Panel) -> list[ColumnDataSource]:
    return list(panel.plot.select({"type": ColumnDataSource}))


def _json(panels: Sequence[Panel]) -> Markup:
    """Return the figure's document; no character of it can end the element that it stands in."""
    document = Document()
    for panel in panels:
        document.add_root(panel.plot)
    text = json.dumps(_renumbered(document.to_json(deferred=False), {}), ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _renumbered(value: Any, ids: dict[str, str]) -> Any:
    """Return JSON data with ids counted from 1 in the order in which they are met, and printable text."""
    if isinstance(value, dict):
        return {
            key: ids.setdefault(item, str(len(ids) + 1)) if key == "id" else _renumbered(item, ids)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_renumbered(item, ids) for item in value]
    return printable(value) if isinstance(value, str) else value
