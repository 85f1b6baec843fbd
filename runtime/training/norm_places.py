"""Norm places: the parts of the model whose norms in a training step differ most from those of the steps before.

The norms of the last steps are in no checkpoint: a resumed run has no medians until it has made enough steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from runtime.tracking.parts import GRADIENT, MEASURED, UPDATE, PartNorms, Tensor, part_names

RECENT_STEPS = 64
"""Steps of a median; not more than the smallest level of a monitor, so that no median reaches behind its reset."""
FEWEST_STEPS = 16
"""Fewest steps of a median that norms are compared with."""
PARTS_IN_EVENT = 5
PARTS_IN_SENTENCE = 2
UPDATE_MONITORS = ("update_norm",)
"""Monitors of the norm of the update; the others read the gradient."""

_UPDATE = MEASURED.index(UPDATE)


class Place(NamedTuple):
    """Parts of the model, or a row of the batch, that stand out in a training step."""

    text: str
    facts: Mapping[str, Any]
    """Fields of an event: `norms_of`, and `parts` with their `factor` and `norm`, or `not_finite`; `row`."""

    def joined(self, other: "Place") -> "Place":
        """Return the union of both places."""
        return Place(f"{self.text} {other.text}".strip(), {**self.facts, **other.facts})


NOWHERE = Place("", {})
"""The place of an alarm that norms do not show."""


class RecentNorms:
    """The norms of each part in the last accepted steps of this attempt."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._names = part_names(tensors)
        self._ring = np.zeros((RECENT_STEPS, len(MEASURED), len(self._names)), np.float32)
        self._num_added = 0

    def add(self, norms: PartNorms, learning_rate: float) -> None:
        """Add an accepted step with finite figures."""
        row = self._ring[self._num_added % RECENT_STEPS]
        row[:] = norms
        row[_UPDATE] /= learning_rate or 1.0  # without a rate the norm is 0
        self._num_added += 1

    def place(self, norms: PartNorms, learning_rate: float, *, measured: str = GRADIENT) -> Place:
        """Return where the norms of a step, not yet added, stop being finite, or else where they changed most.

        The change is the factor to the median; norms of updates are compared relative to the learning rate.
        """
        for each, part_norms in zip(MEASURED, norms, strict=True):
            if not np.isfinite(part_norms).all():
                return self._not_finite(each, ~np.isfinite(part_norms))
        num_steps = min(self._num_added, RECENT_STEPS)
        facts = {"norms_of": measured, "median_updates": num_steps}
        if num_steps < FEWEST_STEPS:
            text = f"The parts of the model are not compared: this attempt has {num_steps} of {FEWEST_STEPS} steps."
            return Place(text, {**facts, "parts": []})
        index = MEASURED.index(measured)
        medians = np.median(self._ring[:num_steps, index], axis=0)
        own = norms[index] / (learning_rate or 1.0) if index == _UPDATE else norms[index]
        factors = np.divide(own, medians, out=np.ones_like(own), where=medians > 0)
        with np.errstate(divide="ignore"):
            distance = np.abs(np.log(factors))
        order = [int(part) for part in np.argsort(-distance, kind="stable")[:PARTS_IN_EVENT] if distance[part] > 0]
        if not order:
            return Place("The norm of each part is its median.", {**facts, "parts": []})
        found = [
            {"part": self._names[part], "factor": _rounded(factors[part]), "norm": _rounded(norms[index, part])}
            for part in order
        ]
        first, *others = found[:PARTS_IN_SENTENCE]
        text = (
            f"Largest change in {first['part']}: the norm of its {measured} is {first['factor']:.3g} times its median "
            f"over the last {num_steps} steps"
        )
        text += "".join(f"; {other['part']}: {other['factor']:.3g} times" for other in others)
        return Place(f"{text}.", {**facts, "parts": found})

    def _not_finite(self, measured: str, is_wrong: np.ndarray) -> Place:
        names = [name for name, wrong in zip(self._names, is_wrong, strict=True) if wrong]
        what = f"The norm of the {measured} is not finite in"
        if len(names) == len(self._names):
            text = f"{what} all {len(names)} parts of the model."
            return Place(text, {"norms_of": measured, "not_finite": "all"})
        num_others = len(names) - PARTS_IN_SENTENCE
        others = f" and {num_others} others" if num_others > 0 else ""
        text = f"{what} {', '.join(names[:PARTS_IN_SENTENCE])}{others}, of {len(self._names)} parts of the model."
        return Place(text, {"norms_of": measured, "not_finite": names})


def _rounded(figure: np.floating) -> float:
    return float(f"{figure:.4g}")
