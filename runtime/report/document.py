"""Whole HTML pages, which load nothing, and figures: panels with buttons and legend, with their data inside.

A figure is a Bokeh document as JSON beside empty places for its panels; the script of the page fills the places. Ids
are counted from 1 in each figure, so equal values give equal bytes.
"""

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.document import Document
from bokeh.resources import Resources

from runtime.report.markup import Markup, data_element, element, escaped
from runtime.report.panel import Panel, Series
from runtime.report.script import SCRIPT
from runtime.report.theme import STYLE, VARIABLES


def document(
    title: str,
    lead: str,
    *children: str,
    opening: Sequence[str] = (),
    notes: Sequence[str] = (),
    scripts: Sequence[str] | None = None,
) -> str:
    """Return the file's text; equal arguments give equal bytes.

    Args:
        title: heading of the page.
        lead: what the page shows, in one sentence or two.
        children: what stands below.
        opening: further elements below the lead.
        notes: sentences without a full stop, at the end.
        scripts: by default Bokeh, and the script that draws figures with it.
    """
    scripts = figure_scripts() if scripts is None else scripts
    head = f"""<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escaped(content_security_policy(scripts))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{escaped(title)}</title><style>{STYLE}</style>"""
    header = element("header", element("h1", title), element("p", lead, class_="lead"), *opening)
    shown = element("main", header, *children, *(element("p", f"{note}.") for note in notes))
    code = "".join(f"<script>{script}</script>" for script in scripts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{shown}{code}</body></html>\n'


def content_security_policy(scripts: Sequence[str]) -> str:
    """Allow these scripts and the styles, nothing else: a page with strangers' texts loads and sends nothing."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}"
    return f"{allowed}; base-uri 'none'; form-action 'none'"


@functools.cache
def figure_scripts() -> tuple[str, str]:
    """Return the plotting part of BokehJS (no widgets, tables and WebGL), and the script that draws figures with it."""
    return Resources(mode="inline", components=["bokeh"]).js_raw[0], SCRIPT


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
    chips = [_chip(series) for series in (legend or {}).values()]
    places = [element("div", class_="panel", style=f"height:{panel.height}px") for panel in panels]
    return element(
        "figure",
        element("div", *_tools(panels, is_live=is_live), class_="tools"),
        *([element("div", *chips, class_="legend")] if chips else []),
        element("div", *places, class_=f"panels columns{columns}"),
        data_element(_data(panels)),
        element("figcaption", caption),
        data_live="" if is_live else None,
    )


_BUTTONS = {
    "in": ("+", "Zoom in"), "out": ("−", "Zoom out"), "left": ("←", "Move left"), "right": ("→", "Move right"),
    "reset": ("Reset", "Show all"), "fit": ("Fit y", "Fit the y axis to what is shown"),
    "log": ("Log y", "Switch between linear and logarithmic y axis"),
    "csv": ("CSV", "Download the data of this figure"),
}  # fmt: skip
"""Action of the script to its label and tip."""


def _tools(panels: Sequence[Panel], *, is_live: bool) -> list[Markup]:
    """Return the buttons and the slider, each only where a panel has a use for it."""
    has_lines = any(panel.has_lines for panel in panels)
    useless = {"fit": not has_lines, "log": not has_lines or is_live}
    tools = [
        element("button", label, type="button", data_do=action, title=tip)
        for action, (label, tip) in _BUTTONS.items()
        if not useless.get(action)
    ]
    if any(panel.is_smoothed for panel in panels):
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
