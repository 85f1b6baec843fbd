"""Reference curve: the loss of a run against the loss of another at the same tokens, whatever their batches.

An update's loss counts for the tokens that it consumed, so a mean over a range of tokens is the same for one large
batch as for its two halves.
"""

import math
from typing import NamedTuple

import numpy as np

from runtime.tracking.curves import OF_UPDATES, Curves

COMPARED_UPDATES = 100
"""Updates of the run in a range: the mean of so many has a tenth of the noise of one."""


class LossComparison(NamedTuple):
    """Mean losses, in nats per token, over the newest range that both runs have reached."""

    tokens: int
    """Consumed at the end of the range."""
    num_tokens: int
    """Length of the range: the tokens of `COMPARED_UPDATES` updates, or fewer."""
    loss: float
    reference_loss: float

    @property
    def difference(self) -> float:
        """The loss above the reference's."""
        return self.loss - self.reference_loss


def mean_loss(curves: Curves, begin: float, end: float) -> float:
    """Return the mean over the tokens from `begin` to `end` that updates were taken on; NaN without any.

    The first update only says where the second one begins.
    """
    edges = np.clip(curves.consumed_tokens, begin, end)
    is_taken = curves.figures[f"{OF_UPDATES}/is_skipped"][1:] == 0
    widths = np.diff(edges)[is_taken]
    if not widths.sum():
        return math.nan
    return float(np.average(curves.figures[f"{OF_UPDATES}/loss"][1:][is_taken], weights=widths))


def compare_losses(run: Curves, reference: Curves) -> LossComparison | None:
    """Compare two runs over the newest tokens that both have updates for; None without a common range."""
    ours, theirs = run.consumed_tokens, reference.consumed_tokens
    begin, end = max(ours[0], theirs[0]), min(ours[-1], theirs[-1])
    if begin >= end:
        return None
    last = int(np.searchsorted(ours, end))
    begin = max(begin, ours[max(0, last - COMPARED_UPDATES)])
    loss, reference_loss = mean_loss(run, begin, end), mean_loss(reference, begin, end)
    if math.isnan(loss - reference_loss):
        return None
    return LossComparison(int(end), int(end - begin), loss, reference_loss)
