"""Parts: the tensors of a model, and each layer of a stacked tensor, so that a norm says where it is from.

Tensors are named as in digests and checkpoints; a part has the number of its layer in its name: `layers.down_proj` of
twelve layers is `layers.0.down_proj` to `layers.11.down_proj`. Norms by part are in the event log alone, one event in
so many updates: a number for each tensor, and for a stacked tensor a list with a number for each layer.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

NORMS = "norms"
"""The event with the norms of all parts at one update."""
GRADIENT, UPDATE, PARAMETERS = "gradient", "update", "parameters"
MEASURED = (GRADIENT, UPDATE, PARAMETERS)
"""The gradient before clipping, the change of the parameters, and the parameters after it."""
DIGITS = 4
"""Digits of a norm in the event log, most of which is norms."""

PartNorms = Float32[np.ndarray, "measured parts"]
"""Norms in the order of `MEASURED` and of `part_names`."""


class Tensor(NamedTuple):
    """A tensor of the parameters; `num_layers` is None for a tensor that is not stacked."""

    name: str
    num_layers: int | None

    @property
    def parts(self) -> list[str]:
        if self.num_layers is None:
            return [self.name]
        return [part_name(self.name, layer) for layer in range(self.num_layers)]


def part_name(tensor: str, layer: int) -> str:
    stack, _, name = tensor.partition(".")
    return f"{stack}.{layer}.{name}"


def layer_of(part: str) -> int | None:
    words = part.split(".")
    return int(words[1]) if len(words) > 2 and words[1].isdigit() else None


def part_names(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the parts in the order of their norms: tensor by tensor, layer by layer."""
    return tuple(name for tensor in tensors for name in tensor.parts)


def norms_fields(tensors: Sequence[Tensor], norms: PartNorms) -> dict[str, dict[str, Any]]:
    """Return the fields of the event: norms by what is measured and by tensor; None for a norm that is not finite."""
    found: dict[str, dict[str, Any]] = {}
    for measured, of_parts in zip(MEASURED, norms.tolist(), strict=True):
        rounded = iter([float(f"{norm:.{DIGITS}g}") if math.isfinite(norm) else None for norm in of_parts])
        found[measured] = {
            tensor.name: next(rounded) if tensor.num_layers is None else [next(rounded) for _ in tensor.parts]
            for tensor in tensors
        }
    return found


def norms_of(event: Mapping[str, Any], measured: str) -> Iterator[tuple[str, float]]:
    """Yield part and norm of an event; NaN for a norm that was not finite."""
    for tensor, norms in event[measured].items():
        if isinstance(norms, list):
            for layer, norm in enumerate(norms):
                yield part_name(tensor, layer), math.nan if norm is None else norm
        else:
            yield tensor, math.nan if norms is None else norms
