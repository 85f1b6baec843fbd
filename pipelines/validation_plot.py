"""Validation plot: what phases measured on held-out text during training, over the tokens of the run."""

from collections.abc import Collection, Sequence

import numpy as np

from runtime.optim.ema import HOT
from runtime.report.validation_page import ValidationCurve
from runtime.tracking.curves import Curves
from steps.phase_timeline import RunPhase


def validation_curves(legs: Sequence[RunPhase], curves: Curves, main_line: Collection[str]) -> list[ValidationCurve]:
    """Return the curve of each phase of one digest, which follow one another; none for a phase without own updates.

    A phase has the updates up to its own end, however far the training went on. Phases of the main line come first, as
    the phase that follows begins where they end.

    Args:
        legs: The phases, in any order.
        curves: Their common curves (see `curves.with_validation`), of one or more updates.
        main_line: Names of phases.
    """
    hot = curves.validation_means(HOT)
    is_measured = np.zeros(len(curves.step), bool) if hot is None else np.isfinite(hot)
    found, reached = [], -1
    for leg in sorted(legs, key=lambda leg: (leg.name not in main_line, leg.settings.until_step)):
        start_tokens = leg.tokens_at(max(leg.begin_step, reached))
        is_own = (curves.step > reached) & (curves.step <= leg.settings.until_step)
        reached = max(reached, leg.settings.until_step)
        has_tokens = np.isfinite(curves.consumed_tokens)  # not in a row before the first update
        if not (is_own & has_tokens).any():
            continue
        tokens = np.where(has_tokens, curves.consumed_tokens, start_tokens)
        rows = is_own & is_measured
        weights = (HOT, *(average.name for average in leg.settings.averages))
        means = {which: means[rows] for which in weights if (means := curves.validation_means(which)) is not None}
        found.append(
            ValidationCurve(
                phase=leg.name,
                is_main=leg.name in main_line,
                consumed_tokens=int(tokens[is_own][-1]),
                num_sources=len(curves.validation_sources()),
                step=curves.step[rows],
                tokens=tokens[rows],
                means=means,
            )
        )
    return found
