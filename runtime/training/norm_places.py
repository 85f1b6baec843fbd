"""Norm places: the parts of the model whose norms in a training step differ most from those of the steps before.

The norms of the last steps are in no checkpoint: a resumed run has no medians until it has made enough steps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.tracking.parts import GRADIENT, MEASURED, UPDATE, PartNorms, Tensor, part_names

RECENT_STEPS = 64
"""Steps of a median; not more than the smallest level of a monitor, so that no median reaches behind its reset."""
FEWEST_STEPS = 16
"""Fewest steps of a median that norms are compared with."""
PARTS_IN_EVENT, NAMED_PARTS = 5, 2
UPDATE_MONITORS = ("update_norm",)
"""Monitors of the norm of the update; the others read the gradient."""

_UPDATE = MEASURED.index(UPDATE)


Place = dict[str, Any]
"""Parts of the model and a row of the batch that stand out, as fields of an event: `norms_of`, and `parts` with their
`factor` and `norm`, or `not_finite`; `row`."""


class RecentNorms:
    """The norms of each part in the last accepted steps of this attempt."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._names = part_names(tensors)
        self._ring = np.zeros((RECENT_STEPS, len(MEASURED), len(self._names)), np.float32)
        self._num_added = 0

    def add(self, norms: PartNorms, learning_rate: float) -> None:
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
            return {**facts, "parts": []}
        index = MEASURED.index(measured)
        medians = np.median(self._ring[:num_steps, index], axis=0)
        own = norms[index] / (learning_rate or 1.0) if index == _UPDATE else norms[index]
        factors = np.divide(own, medians, out=np.ones_like(own), where=medians > 0)
        with np.errstate(divide="ignore"):
            distance = np.abs(np.log(factors))
        order = [int(part) for part in np.argsort(-distance, kind="stable")[:PARTS_IN_EVENT] if distance[part] > 0]
        found = [
            {"part": self._names[part], "factor": _rounded(factors[part]), "norm": _rounded(norms[index, part])}
            for part in order
        ]
        return {**facts, "parts": found}

    def _not_finite(self, measured: str, is_wrong: np.ndarray) -> Place:
        names = [name for name, wrong in zip(self._names, is_wrong, strict=True) if wrong]
        return {"norms_of": measured, "not_finite": "all" if len(names) == len(self._names) else names}


def standing_out(place: Place) -> str:
    """Return the names of the first parts of the model and of the row that stand out."""
    found = place.get("not_finite") or [each["part"] for each in place.get("parts", ())]
    names = ["all parts of the model"] if found == "all" else list(found[:NAMED_PARTS])
    if "row" in place:
        names.append(f"row {place['row']} ({place['source']})")
    return ", ".join(names) or "nothing"


def _rounded(figure: np.floating) -> float:
    return float(f"{figure:.4g}")
