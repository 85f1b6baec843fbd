"""Pages that commands draw: the timeline of a recipe, texts, and data stalls of a run."""

from collections.abc import Sequence
from typing import Any

from runtime.report.contents import Phase, Report
from runtime.report.html import document, macro
from runtime.report.run_plots import timeline
from runtime.tracking.stalls import DataStalls


def timeline_page(title: str, phases: Sequence[Phase], words: str) -> str:
    """Return a page that holds the figure, and `words` (the timeline as text) below it."""
    report = Report(title, "", "", tuple(phases))
    lead = macro("pages.html", "timeline_lead", report)
    caption = macro("pages.html", "timeline_caption")
    return document(title, lead, timeline(report, caption), macro("pages.html", "words", words))


def texts_page(title: str, texts: Sequence[tuple[str, Any]]) -> str:
    """Return the texts of the phases, which come with their results of the step `sample`, side by side."""
    return document(title, "Texts of the phases that are done.", macro("tables.html", "texts", texts), scripts=())


def stalls_page(title: str, phases: Sequence[DataStalls], notes: Sequence[str]) -> str:
    """Return the waits of the phases for data, and `notes`, sentences without a full stop."""
    lead = "Seconds that the training loop waited for its next batch, by what the loader was doing meanwhile."
    return document(title, lead, macro("run.html", "stalls", phases), notes=notes, scripts=())
