"""Validation as a picture: what phases measured of held-out text while they trained, over the tokens of the run."""

from collections.abc import Collection, Sequence

import numpy as np

from runtime.optim.ema import HOT
from runtime.report.validation_page import ValidationCurve
from runtime.tracking.curves import Curves
from steps.phase_timeline import RunPhase


def validation_curves(legs: Sequence[RunPhase], curves: Curves, main_line: Collection[str]) -> list[ValidationCurve]:
    """What phases that are stops of one training measured, each behind the stops that come before it.

    One has the updates up to its own stop alone, however far the training has gone on; those of the main line have
    theirs first, since the phase that follows begins where they end. One that has no update of its own is left out.

    Args:
        legs: of one training, in any order.
        curves: of that training, see `curves.with_validation`; one or more updates.
        main_line: names of phases.
    """
    hot = curves.validation_means(HOT)
    is_measured = np.zeros(len(curves.step), bool) if hot is None else np.isfinite(hot)
    found, reached = [], -1
    for leg in sorted(legs, key=lambda leg: (leg.name not in main_line, leg.settings.until_step)):
        start_tokens = leg.tokens_at(max(leg.begin_step, reached))
        is_own = (curves.step > reached) & (curves.step <= leg.settings.until_step)
        reached = max(reached, leg.settings.until_step)
        # What was measured before the first update has a row that no update made.
        tokens = np.where(np.isnan(curves.consumed_tokens), start_tokens, curves.consumed_tokens)
        if not (is_own & np.isfinite(curves.consumed_tokens)).any():
            continue
        rows = is_own & is_measured
        weights = (HOT, *(average.name for average in leg.settings.averages))
        found.append(
            ValidationCurve(
                phase=leg.name,
                is_main=leg.name in main_line,
                start_tokens=start_tokens,
                consumed_tokens=int(tokens[is_own][-1]),
                num_sources=len(curves.validation_sources()),
                step=curves.step[rows],
                tokens=tokens[rows],
                means={
                    which: means[rows] for which in weights if (means := curves.validation_means(which)) is not None
                },
            )
        )
    return found
