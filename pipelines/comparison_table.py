"""Comparison table: the rows of a comparison of runs for a terminal or a page, and its JSON."""

import textwrap
from typing import Any

from pipelines.output import aligned
from pipelines.run_comparison import SAME, Comparison, RunDifference, titles

WIDTH_OF_A_SETTING = 40
LEAST_SHORT = 0.001
"""A smaller difference is shown with six digits."""
NONE = "-"


def rendered_comparison(comparison: Comparison) -> str:
    """Return settings and measures by run, for a terminal."""
    notes = comparison_notes(comparison, titles(comparison.runs)[0])
    return "\n".join([*aligned(comparison_rows(comparison, WIDTH_OF_A_SETTING)), *notes])


def comparison_rows(comparison: Comparison, width: int) -> list[list[str]]:
    """Return a heading, then a row for each setting and measure; settings are cut to a width."""
    rows = [["", *titles(comparison.runs)]]
    rows += [
        [field, *(textwrap.shorten(value, width) for value in values)] for field, values in comparison.settings.items()
    ]
    rows.append(["tokens", *(f"{run.tokens or 0:,}" for run in comparison.runs)])
    for measure in comparison.measures:
        cells = zip(measure.values, measure.differences, strict=True)
        rows.append([measure.name, *(_figure(value, difference) for value, difference in cells)])
    return rows


def _figure(value: float | None, difference: RunDifference | None) -> str:
    if value is None:
        return NONE
    if difference is None:
        return f"{value:.4f}"
    digits = 4 if abs(difference.value) >= LEAST_SHORT else 6
    shown = f"{difference.value:+.{digits}f}" if difference.value else SAME
    if difference.stderr is not None:
        shown += f" ±{difference.stderr:.{digits}f}{', noise' if difference.is_noise else ''}"
    return f"{value:.4f} ({shown})"


def comparison_notes(comparison: Comparison, first: str) -> list[str]:
    """Return what the brackets of the rows mean; `first` is the title of the first run."""
    every = (difference for measure in comparison.measures for difference in measure.differences if difference)
    sources = sorted({difference.source for difference in every if difference.source})
    notes = [f"In brackets: the difference from {first}"]
    notes += [f"±: standard error of the difference, estimated from {source}" for source in sources]
    if comparison.other_text:
        domains = ", ".join(comparison.other_text)
        notes.append(f"Held-out text of {domains} is not the same in all runs, which alone changes bits per byte")
    return [*notes, *(["noise: the 95 % interval of the difference contains 0"] if sources else [])]


def comparison_content(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON data."""
    measures = [
        measure._asdict()
        | {"differences": [each and each._asdict() | {"is_noise": each.is_noise} for each in measure.differences]}
        for measure in comparison.measures
    ]
    return {
        "runs": [run.key for run in comparison.runs],
        "settings": comparison.settings,
        "measures": measures,
        "other_text": comparison.other_text,
    }
