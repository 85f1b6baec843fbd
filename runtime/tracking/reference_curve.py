"""Reference curve: the loss of a run against that of another at the same tokens, whatever the batches of either.

An update's loss stands for the tokens that it consumed, so that a mean over a stretch of tokens is the same for one
large batch as for two that are its halves. What is compared, and what that is worth: docs/curves.md.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from runtime.tracking.curves import OF_UPDATES, Curves

COMPARED_UPDATES = 100
"""Of the run that is compared, in a stretch: the mean of so many has a tenth of the noise of one."""


class Compared(NamedTuple):
    """Mean losses, in nats a token, over the newest stretch that both runs have come to."""

    tokens: int
    """Consumed at the end of it."""
    num_tokens: int
    """Of the stretch: those of `COMPARED_UPDATES` updates, or fewer where there are no more in both."""
    loss: float
    reference_loss: float
    behind_since: int | None
    """Tokens from which on the run was more than the margin above the reference in every stretch, this one included;
    None if it is not, or no margin was given."""

    @property
    def difference(self) -> float:
        """How far the loss is above that of the reference; below 0 it is lower."""
        return self.loss - self.reference_loss


class LossOverTokens:
    """Losses of the updates that were taken, each constant over the tokens between the update before and its own."""

    def __init__(self, curves: Curves) -> None:
        """The first update only says where the second one begins."""
        self.tokens = curves.consumed_tokens
        """After each update."""
        is_taken = curves.figures[f"{OF_UPDATES}/is_skipped"][1:] == 0
        widths = np.where(is_taken, np.diff(self.tokens), 0.0)
        losses = np.where(is_taken, curves.figures[f"{OF_UPDATES}/loss"][1:], 0.0)
        self._num_taken = np.concatenate([[0.0], np.cumsum(widths)])
        self._summed = np.concatenate([[0.0], np.cumsum(widths * losses)])

    def means(self, edges: Float64[np.ndarray, "edges"]) -> Float64[np.ndarray, "edges-1"]:
        """Over the tokens between neighbours of `edges`; not a number where no update was taken."""
        num_taken, summed = (np.diff(np.interp(edges, self.tokens, sums)) for sums in (self._num_taken, self._summed))
        return np.divide(summed, num_taken, out=np.full(len(num_taken), np.nan), where=num_taken > 0)


def compared(run: Curves, reference: Curves, *, margin: float | None = None) -> Compared | None:
    """Of the tokens that both have updates for; None if there are none, or none that was taken.

    Args:
        run: the updates that are held against the reference.
        reference: another run's, over the tokens of `run` or some of them.
        margin: nats a token by which `run` may be above it.
    """
    ours, theirs = LossOverTokens(run), LossOverTokens(reference)
    begin, end = max(ours.tokens[0], theirs.tokens[0]), min(ours.tokens[-1], theirs.tokens[-1])
    if begin >= end:
        return None
    last = int(np.searchsorted(ours.tokens, end))
    first = max(0, last - COMPARED_UPDATES)
    stretch = end - max(begin, ours.tokens[first])
    # From the end backwards, so that the newest stretch is whole; what is left over at the beginning is not looked at.
    edges = end - stretch * np.arange(int((end - begin) // stretch) + 1)[::-1]
    means, references = ours.means(edges), theirs.means(edges)
    if np.isnan(means[-1] - references[-1]):
        return None
    is_behind = means - references > (np.inf if margin is None else margin)
    num_behind = len(is_behind) if is_behind.all() else int(np.argmin(is_behind[::-1]))
    since = int(edges[-1 - num_behind]) if num_behind else None
    return Compared(int(end), int(stretch), float(means[-1]), float(references[-1]), since)
