"""The timeline of a recipe as a drawing, before anything has run: the report's own figure, on a page or alone."""

import functools
from collections.abc import Sequence

from runtime.report.contents import Phase, Report
from runtime.report.document import document
from runtime.report.markup import Markup, element
from runtime.report.page import WIDE, figure
from runtime.report.plots import drawing, text
from runtime.report.recipe import side_branches
from runtime.report.run_plots import mixture_stretches, source_style, sources_in_order, timeline
from runtime.report.scales import tokens_label
from runtime.report.theme import STYLE

KEY_MARGIN, KEY_HEIGHT, KEY_CHARACTER = 48.0, 20.0, 6.8
CAPTION = (
    "The recipe's settings; nothing here was measured. Blue is the main line, orange the branches: each begins at the "
    "tokens at which it leaves and is not part of the axis' total."
)


def page(title: str, phases: Sequence[Phase], words: str) -> str:
    """Return a page that holds the drawing, the sources by colour, and `words` (the timeline as text) below them."""
    report = _report(title, phases)
    shown = element(
        "main",
        element("header", element("h1", title), element("p", _summary(report), class_="lead")),
        figure(functools.partial(timeline, report), CAPTION),
        element("ul", *_keys(report), class_="keys"),
        element("div", element("pre", words), class_="scroll words", tabindex="0"),
    )
    return document(title, shown)


def svg(title: str, phases: Sequence[Phase]) -> str:
    """Return the drawing alone, as a file of its own with its colours and the sources by colour inside."""
    report = _report(title, phases)
    drawn = timeline(report, WIDE)
    height = float(drawn.partition('viewBox="')[2].partition('"')[0].split()[3])
    keys, keys_height = _drawn_keys(report, height + KEY_HEIGHT)
    style = element("style", Markup(STYLE + "svg{background:var(--page);font-family:system-ui,sans-serif}"))
    whole = element(
        "svg",
        style,
        Markup(drawn.replace("<svg", f'<svg height="{height}"', 1)),
        *keys,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDE} {height + keys_height}",
        role="img",
        aria_label=title,
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{whole}\n'


def _report(title: str, phases: Sequence[Phase]) -> Report:
    return Report(title, "", "", tuple(phases), (), (), (), (), (), ())


def _summary(report: Report) -> str:
    last = report.main_line[-1]
    num_trainings = sum(phase.same_as is None for phase in report.branches)
    return (
        f"{len(report.main_line)} phases, {last.step:,} steps, {tokens_label(last.consumed_tokens)} tokens, "
        f"and {side_branches(num_trainings, len(report.branches))}."
    )


def _keys(report: Report) -> list[Markup]:
    keys = []
    for index, source in enumerate(sources_in_order(mixture_stretches(report.main_line))):
        swatch = drawing(14, 14, "", element("rect", x=1, y=1, width=12, height=12, rx=2, style=source_style(index)))
        keys.append(element("li", swatch, source))
    return keys


def _drawn_keys(report: Report, top: float) -> tuple[list[Markup], float]:
    """Return the sources by colour in as many rows as they need, and the height of all rows."""
    found, x, y = [], KEY_MARGIN, top
    for index, source in enumerate(sources_in_order(mixture_stretches(report.main_line))):
        width = 32 + KEY_CHARACTER * len(source)
        if x + width > WIDE:
            x, y = KEY_MARGIN, y + KEY_HEIGHT
        swatch = element("rect", x=x, y=y - 11, width=12, height=12, rx=2, style=source_style(index))
        found += [swatch, text(source, x + 17, y)]
        x += width
    return found, y - top + 2 * KEY_HEIGHT
