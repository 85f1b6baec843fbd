"""The timeline of a recipe as a page, before anything has run: the report's own figure."""

from collections.abc import Sequence

from runtime.report.contents import Phase, Report
from runtime.report.document import document
from runtime.report.markup import element
from runtime.report.recipe import side_branches, tokens_label
from runtime.report.run_plots import timeline

CAPTION = (
    "The recipe's settings; nothing here was measured. Each branch begins at the tokens at which it leaves the main "
    "line and is not part of the axis' total."
)


def page(title: str, phases: Sequence[Phase], words: str) -> str:
    """Return a page that holds the figure, and `words` (the timeline as text) below it."""
    report = Report(title, "", "", tuple(phases))
    last = report.main_line[-1]
    num_trainings = sum(phase.same_as is None for phase in report.branches)
    lead = (
        f"{len(report.main_line)} phases, {last.step:,} steps, {tokens_label(last.consumed_tokens)} tokens, "
        f"and {side_branches(num_trainings, len(report.branches))}."
    )
    text = element("div", element("pre", words), class_="scroll words", tabindex="0")
    return document(title, lead, timeline(report, CAPTION), text)
