"""Validation as a picture: what phases measured of held-out text while they trained, over the tokens of the run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runtime.optim.ema import HOT
from runtime.report.validation_page import ValidationCurve, page
from runtime.tracking.curves import Curves
from runtime.training.timeline import Leg


def draw(path: str, title: str, curves: Sequence[ValidationCurve], notes: Sequence[str]) -> None:
    """Writes the page; at least one phase has measured something."""
    Path(path).write_text(page(title, curves, notes), encoding="utf-8")


def validation_curve(leg: Leg, curves: Curves, *, is_main: bool) -> ValidationCurve:
    """What one phase measured, of its `curves` (see `curves.with_validation`), one or more updates."""
    weights = (HOT, *(average.name for average in leg.settings.averages))
    found = {which: means for which in weights if (means := curves.validation_means(which)) is not None}
    is_measured = np.zeros(len(curves.step), bool)
    for means in found.values():
        is_measured |= np.isfinite(means)
    tokens = curves.consumed_tokens
    return ValidationCurve(
        phase=leg.name,
        is_main=is_main,
        start_tokens=leg.begin_tokens,
        consumed_tokens=int(tokens[-1]),
        num_sources=len(curves.validation_sources()),
        step=curves.step[is_measured],
        # What was measured before the first update has a row that no update made.
        tokens=np.where(np.isnan(tokens), leg.begin_tokens, tokens)[is_measured],
        means={which: means[is_measured] for which, means in found.items()},
    )
