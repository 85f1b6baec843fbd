"""Reference curve: the loss of a run against the loss of another at the same tokens, whatever their batches.

An update's loss counts for the tokens that it consumed, so a mean over a stretch of tokens is the same for one large
batch as for its two halves. docs/curves.md says what the comparison is worth.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from runtime.tracking.curves import OF_UPDATES, Curves

COMPARED_UPDATES = 100
"""Updates of the run in a stretch: the mean of so many has a tenth of the noise of one."""


class LossComparison(NamedTuple):
    """Mean losses, in nats a token, over the newest stretch that both runs have reached."""

    tokens: int
    """Consumed at the end of the stretch."""
    num_tokens: int
    """Length of the stretch: the tokens of `COMPARED_UPDATES` updates, or fewer."""
    loss: float
    reference_loss: float
    behind_since: int | None
    """Tokens from which on the run was above the reference by more than the margin in every stretch, up to this one."""

    @property
    def difference(self) -> float:
        """How far the loss is above the reference."""
        return self.loss - self.reference_loss


class LossOverTokens:
    """Losses of the updates that were not skipped, each constant over the tokens of its update."""

    def __init__(self, curves: Curves) -> None:
        """Start after the first update, which only says where the second one begins."""
        self.tokens = curves.consumed_tokens
        """After each update."""
        is_taken = curves.figures[f"{OF_UPDATES}/is_skipped"][1:] == 0
        widths = np.where(is_taken, np.diff(self.tokens), 0.0)
        losses = np.where(is_taken, curves.figures[f"{OF_UPDATES}/loss"][1:], 0.0)
        self._num_taken = np.concatenate([[0.0], np.cumsum(widths)])
        self._summed = np.concatenate([[0.0], np.cumsum(widths * losses)])

    def means(self, edges: Float64[np.ndarray, "edges"]) -> Float64[np.ndarray, "edges-1"]:
        """Return the means over the tokens between neighbours of `edges`; NaN where every update was skipped."""
        num_taken, summed = (np.diff(np.interp(edges, self.tokens, sums)) for sums in (self._num_taken, self._summed))
        return np.divide(summed, num_taken, out=np.full(len(num_taken), np.nan), where=num_taken > 0)


def compare_losses(run: Curves, reference: Curves, *, margin: float | None = None) -> LossComparison | None:
    """Compare two runs over the tokens that both have updates for; None without a common stretch.

    `margin` is in nats a token; without one the run is never behind.
    """
    ours, theirs = LossOverTokens(run), LossOverTokens(reference)
    begin, end = max(ours.tokens[0], theirs.tokens[0]), min(ours.tokens[-1], theirs.tokens[-1])
    if begin >= end:
        return None
    last = int(np.searchsorted(ours.tokens, end))
    first = max(0, last - COMPARED_UPDATES)
    stretch = end - max(begin, ours.tokens[first])
    # From the end backwards, so that the newest stretch is whole; the rest at the beginning is not compared.
    edges = end - stretch * np.arange(int((end - begin) // stretch) + 1)[::-1]
    means, references = ours.means(edges), theirs.means(edges)
    if np.isnan(means[-1] - references[-1]):
        return None
    is_behind = means - references > (np.inf if margin is None else margin)
    num_behind = len(is_behind) if is_behind.all() else int(np.argmin(is_behind[::-1]))
    since = int(edges[-1 - num_behind]) if num_behind else None
    return LossComparison(int(end), int(stretch), float(means[-1]), float(references[-1]), since)
