"""Pages that commands draw: the timeline of a recipe, the tokens of its sources, texts, and data stalls of a run."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from runtime.data.consumption import SourceUse
from runtime.report import page_html
from runtime.report.contents import Phase, PhaseText, Report
from runtime.report.figure import figure
from runtime.report.html import document, macro, table
from runtime.report.panel import Piece, series_of, stacked_bars
from runtime.report.recipe import counted, side_branches, tokens_label
from runtime.report.run_plots import timeline
from runtime.tracking.stalls import SECONDS_HEADINGS, STALLS_HEADINGS, DataStalls, seconds_rows, stalls_rows

_TIMELINE = (
    "The recipe's settings; nothing here was measured. Each branch begins at the tokens at which it leaves the main "
    "line and is not part of the axis' total."
)
_STALLS = (
    "Seconds that the training loop waited for its next batch, by what the loader was doing meanwhile; the first batch "
    "of each attempt is in it."
)


def timeline_page(title: str, phases: Sequence[Phase], words: str) -> str:
    """Return a page that holds the figure, and `words` (the timeline as text) below it."""
    report = Report(title, "", "", tuple(phases))
    last = report.main_line[-1]
    num_trainings = sum(phase.same_as is None for phase in report.branches)
    lead = (
        f"{len(report.main_line)} phases, {last.step:,} steps, {tokens_label(last.consumed_tokens)} tokens, "
        f"and {side_branches(num_trainings, len(report.branches))}."
    )
    return document(title, lead, *timeline(report, _TIMELINE), page_html.macro("pages.html", "words", words))


def texts_page(title: str, texts: Sequence[PhaseText]) -> str:
    """Return the texts of the phases side by side."""
    return document(title, "Texts of the phases that are done.", macro("tables.html", "texts", texts), scripts=())


def mix_page(title: str, uses: Sequence[SourceUse], labels: Mapping[str, str]) -> str:
    """Return a row for each source, most tokens first, its bar cut by phase.

    Args:
        title: heading of the page.
        uses: by phase in the order of the run; epochs are those by the end of a phase.
        labels: source to its shown name, where that differs.
    """
    total: Counter[str] = Counter()
    for use in uses:
        total[use.source] += use.num_tokens
    pieces = []
    for use in sorted(uses, key=lambda use: (-total[use.source], use.source)):
        name = labels.get(use.source, use.source)
        epochs = f", {use.epochs:.2f} epochs by its end" if math.isfinite(use.epochs) else ""
        tip = f"{name}, {use.phase}: {tokens_label(use.num_tokens)} tokens{epochs}"
        pieces.append(Piece(name, use.phase, float(use.num_tokens), tip))
    series = series_of(list(dict.fromkeys(use.phase for use in uses)))
    caption = "Point at a bar for the epochs by the end of the phase."
    shown = figure([stacked_bars("tokens", pieces, series)], caption, legend=series)
    return document(title, "Tokens that each phase takes from each source.", shown)


def stalls_page(title: str, phases: Sequence[DataStalls], notes: Sequence[str] = ()) -> str:
    """Return the whole page; `phases` in the order in which they are shown."""
    waited, seconds = sum(found.waited_seconds for found in phases), sum(found.seconds for found in phases)
    num_stalls = sum(len(found.stalls) for found in phases)
    lead = (
        f"{counted(len(phases), 'phase')} waited {waited:.1f} s for data, {waited / max(seconds, 1e-9):.2%} of "
        f"{seconds:,.0f} s in the loop; {counted(num_stalls, 'stall')} of more than a second."
    )
    total: Counter[str] = Counter()
    for found in phases:
        total.update(found.by_cause)
    series = series_of([cause for cause, _ in total.most_common()])
    pieces = [
        Piece(found.phase, cause, length, f"{found.phase}: {length:.2f} s for {cause}")
        for found in phases
        for cause, length in (found.by_cause or {"": 0.0}).items()
    ]
    return document(
        title,
        lead,
        figure([stacked_bars("seconds waited for data", pieces, series, x_format="0.[00]")], _STALLS, legend=series),
        table(SECONDS_HEADINGS, seconds_rows(phases), "Data stalls by phase", class_="wrap"),
        table(STALLS_HEADINGS, stalls_rows(phases), "Stalls of more than a second, by their main cause", grouped=1)
        or "No stall was longer than a second.",
        notes=notes,
    )
