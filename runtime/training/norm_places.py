"""Where in the model the norms of an update are unlike those of the updates before it, for whoever hears of the update.

The norms by part of the last updates are kept on the host, and looked at only where there is something to tell. They
are no part of a checkpoint: a run that was resumed has no median until it has made as many updates as one takes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from runtime.tracking.parts import GRADIENT, MEASURED, UPDATE, PartNorms, Tensor, part_names

RECENT_UPDATES = 64
"""That a median is over. As many as a monitor's level has at least, so that none reaches back behind where it began."""
FEWEST_UPDATES = 16
"""Of a median that something is held against."""
TOLD_PARTS = 5
"""In an event."""
SAID_PARTS = 2
"""In a sentence."""
SEEN_IN_UPDATES = ("update_norm",)
"""Monitors whose figure is that of the update, and not of the gradient."""

_UPDATE = MEASURED.index(UPDATE)


class Place(NamedTuple):
    """Where an update is unlike those before it."""

    said: str
    """A sentence or two."""
    facts: Mapping[str, Any]
    """For an event: `norms_of`, and `parts` with their `factor` and `norm`, or what is `not_finite`."""


NOWHERE = Place("", {})
"""Of what is not seen in norms."""


class RecentNorms:
    """The norms by part of the last accepted updates of this attempt."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._names = part_names(tensors)
        self._ring = np.zeros((RECENT_UPDATES, len(MEASURED), len(self._names)), np.float32)
        self._num_added = 0

    def add(self, norms: PartNorms, learning_rate: float) -> None:
        """Of an update that was taken, and whose figures are finite."""
        place = self._ring[self._num_added % RECENT_UPDATES]
        place[:] = norms
        place[_UPDATE] /= learning_rate or 1.0  # of an update without a rate the norm is 0
        self._num_added += 1

    def place(self, norms: PartNorms, learning_rate: float, *, measured: str = GRADIENT) -> Place:
        """Of an update that has yet to be added: where what is not finite begins, or where most has changed.

        What changed most is what is the most times larger or smaller than its median. Norms of updates are compared
        over the learning rate. A part without a norm, whose median is 0, is never told.
        """
        for each, of_parts in zip(MEASURED, norms, strict=True):
            if not np.isfinite(of_parts).all():
                return self._not_finite(each, ~np.isfinite(of_parts))
        num_updates = min(self._num_added, RECENT_UPDATES)
        facts = {"norms_of": measured, "median_updates": num_updates}
        if num_updates < FEWEST_UPDATES:
            said = (
                f"Where in the model is not known: there is no median by part before {FEWEST_UPDATES} updates, and "
                f"this attempt has made {num_updates}."
            )
            return Place(said, {**facts, "parts": []})
        index = MEASURED.index(measured)
        medians = np.median(self._ring[:num_updates, index], axis=0)
        own = norms[index] / (learning_rate or 1.0) if index == _UPDATE else norms[index]
        factors = np.divide(own, medians, out=np.ones_like(own), where=medians > 0)
        with np.errstate(divide="ignore"):
            distance = np.abs(np.log(factors))
        order = [int(part) for part in np.argsort(-distance, kind="stable")[:TOLD_PARTS] if distance[part] > 0]
        if not order:
            return Place("The norm of each part is its median.", {**facts, "parts": []})
        found = [
            {"part": self._names[part], "factor": _rounded(factors[part]), "norm": _rounded(norms[index, part])}
            for part in order
        ]
        first, *others = found[:SAID_PARTS]
        of_median = f"times its median over the last {num_updates} updates"
        said = f"Most in {first['part']}: the norm of its {measured} is {first['factor']:.3g} {of_median}"
        said += "".join(f", of {other['part']} {other['factor']:.3g} times" for other in others)
        return Place(f"{said}.", {**facts, "parts": found})

    def _not_finite(self, measured: str, is_wrong: np.ndarray) -> Place:
        names = [name for name, wrong in zip(self._names, is_wrong, strict=True) if wrong]
        facts = {"norms_of": measured, "not_finite": names if len(names) < len(self._names) else "all"}
        what = f"Not finite is the norm of the {measured} of"
        if facts["not_finite"] == "all":
            return Place(f"{what} all {len(names)} parts of the model.", facts)
        others = len(names) - SAID_PARTS
        more = f" and {others} others of {len(self._names)} parts" if others > 0 else ", and of no other part"
        return Place(f"{what} {', '.join(names[:SAID_PARTS])}{more}.", facts)


def _rounded(figure: np.floating) -> float:
    return float(f"{figure:.4g}")
