"""How to run the model: what each device gathers, keeps and orders, and which forms suit its compiler.

None of it changes what is computed, beyond rounding.
"""

import contextlib
import dataclasses
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeVar, get_args

import jax
import numpy as np

from runtime.kernels.embedding import LookUp
from runtime.kernels.gated import GateGradient
from runtime.kernels.linear import WeightGradient
from runtime.parallel.collective_order import CollectiveOrder
from runtime.parallel.spread import ALONE, Spread

Remat = Literal["none", "dots", "full"]
"""What the backward pass finds saved: all, products with weights and fused attention, or the input of each layer."""
REMATS: tuple[str, ...] = get_args(Remat)

PartT = TypeVar("PartT")


class Gather(Protocol):
    """Turns the stored form of a part of the model into the form that computes: whole, and in the compute dtype."""

    has_collectives: ClassVar[bool]
    """Whether devices wait for each other in it."""

    def __call__(self, name: str, part: PartT) -> PartT:
        """`name` is the field of `Llama` that `part` comes from; of `layers`, one layer is passed at a time."""
        ...


@dataclasses.dataclass(frozen=True)
class Whole:
    """The parameters are whole on this device already: only the dtype changes."""

    has_collectives: ClassVar[bool] = False
    compute_dtype: np.dtype

    def __call__(self, name: str, part: PartT) -> PartT:
        return jax.tree.map(lambda leaf: leaf.astype(self.compute_dtype), part)


class Forms(NamedTuple):
    """Of operations that can be written in more than one way, the ways that suit a compiler."""

    look_up: LookUp = "scattered"
    weight_gradient: WeightGradient = "plain"
    gate_gradient: GateGradient = "plain"
    most_unrolled_layers: int = 1
    """Of a model that may be written out layer by layer, without a loop (`Computation.unrolled_layers` says which)."""


PLAIN = Forms()
FORMS = {
    "tpu": PLAIN,
    # What a loop keeps for the backward pass is copied into stacks and out of them. Without one the time to compile
    # grows with the layers: 46 s for 20 of a 1.5B.
    "gpu": Forms(look_up="sorted", most_unrolled_layers=32),
    "cpu": Forms(weight_gradient="transposed", gate_gradient="recomputed", most_unrolled_layers=4),
}
"""By platform."""


def matmul_precision(compute_dtype: jax.typing.DTypeLike) -> contextlib.AbstractContextManager[None]:
    """To trace a program in, together with its backward pass: float32 products are formed in float32.

    Left to itself JAX forms them from bfloat16 on a TPU and from TF32 on a GPU, of 8 and 11 bits. Products in Pallas
    kernels follow. Other dtypes have one way, and JAX_DEFAULT_MATMUL_PRECISION changes neither.
    """
    return jax.default_matmul_precision("highest" if np.dtype(compute_dtype) == np.float32 else None)


class Computation(NamedTuple):
    """How to run the model on one device of a mesh."""

    attention_kernel: str
    compute_dtype: np.dtype
    remat: Remat
    gather: Gather
    order: CollectiveOrder
    regather: bool = False  # gather again in the backward pass, instead of keeping whole layers from the forward pass
    spread: Spread = ALONE
    forms: Forms = PLAIN

    def unrolled_layers(self, num_layers: int) -> int:
        """Layers in the body of the loop over them: all, of a small model that keeps everything, and else one.

        Nothing but a loop holds apart what is computed again and what was computed: the compiler finds them to be the
        same, and keeps it. So a model that is to keep less is never written out; nor is one with collectives in its
        layers, since it is for a loop that `order` is proven.
        """
        is_small = num_layers <= self.forms.most_unrolled_layers
        return num_layers if is_small and self.remat == "none" and not self.gather.has_collectives else 1


def whole(
    compute_dtype: jax.typing.DTypeLike, attention_kernel: str = "reference", remat: Remat = "none"
) -> Computation:
    """The computation on one device that holds all parameters, in the plain forms."""
    dtype = np.dtype(compute_dtype)
    return Computation(attention_kernel, dtype, remat, Whole(dtype), CollectiveOrder(by_data=False))
