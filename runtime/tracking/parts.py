"""Parts: each tensor of a model, and of one that holds all layers each layer, so that a norm says where it is from.

A tensor is called as in digests and checkpoints, and a part has the number of its layer in it: `layers.down_proj` of
twelve layers is `layers.0.down_proj` to `layers.11.down_proj`. Norms by part lie in the event log alone, as one event
in so many updates: a number for a tensor, and for one that holds all layers a list with a number for each.
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
"""What has norms: the gradient before clipping, what was added to the parameters, and the parameters after it."""
DIGITS = 4
"""Of a norm in the event log, which a long run fills with them."""

PartNorms = Float32[np.ndarray, "measured parts"]
"""In the order of `MEASURED` and of `part_names`."""


class Tensor(NamedTuple):
    """A tensor of the parameters; `num_layers` is None of one that belongs to no layer."""

    name: str
    num_layers: int | None

    @property
    def parts(self) -> list[str]:
        if self.num_layers is None:
            return [self.name]
        return [part_name(self.name, layer) for layer in range(self.num_layers)]


def part_name(tensor: str, layer: int) -> str:
    """Of one layer of a tensor that holds all of them."""
    stack, _, name = tensor.partition(".")
    return f"{stack}.{layer}.{name}"


def layer_of(part: str) -> int | None:
    """The layer that a part belongs to; None of one that belongs to none."""
    words = part.split(".")
    return int(words[1]) if len(words) > 2 and words[1].isdigit() else None


def part_names(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """In the order in which an update gives their norms: tensor by tensor, and layer by layer in each."""
    return tuple(name for tensor in tensors for name in tensor.parts)


def norms_told(tensors: Sequence[Tensor], norms: PartNorms) -> dict[str, dict[str, Any]]:
    """The fields of the event: by what is measured and by tensor; None in place of what is not finite."""
    told: dict[str, dict[str, Any]] = {}
    for measured, of_parts in zip(MEASURED, norms.tolist(), strict=True):
        rounded = iter([float(f"{norm:.{DIGITS}g}") if math.isfinite(norm) else None for norm in of_parts])
        told[measured] = {
            tensor.name: next(rounded) if tensor.num_layers is None else [next(rounded) for _ in tensor.parts]
            for tensor in tensors
        }
    return told


def norms_of(event: Mapping[str, Any], measured: str) -> Iterator[tuple[str, float]]:
    """The norm of each part in an event; not a number where it was not finite."""
    for tensor, norms in event[measured].items():
        if isinstance(norms, list):
            for layer, norm in enumerate(norms):
                yield part_name(tensor, layer), math.nan if norm is None else norm
        else:
            yield tensor, math.nan if norms is None else norms
