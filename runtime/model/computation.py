"""Computation: how a model runs on one device of a mesh. It changes no value beyond rounding."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from runtime.kernels.attention_paged import CacheKernel
from runtime.parallel.spread import ALONE, Spread
from runtime.platform.collective_order import CollectiveOrder
from runtime.platform.platform import PLAIN, Platform
from runtime.platform.remat import Remat, rematerialized

PartT = TypeVar("PartT")


class Gather(Protocol):
    """Makes the computing form of a part of the parameters: whole, and in the compute dtype."""

    has_collectives: ClassVar[bool]
    """Whether it makes devices wait for each other."""

    def __call__(self, name: str, part: PartT) -> PartT:
        """Return `part`, the field `name` of the parameters; of `layers`, one layer at a time."""
        ...


@dataclasses.dataclass(frozen=True)
class Whole:
    """The `Gather` of a device that holds all parameters: only the dtype changes."""

    has_collectives: ClassVar[bool] = False
    compute_dtype: np.dtype

    def __call__(self, name: str, part: PartT) -> PartT:
        return jax.tree.map(lambda leaf: leaf.astype(self.compute_dtype), part)


def matmul_precision(compute_dtype: jax.typing.DTypeLike) -> contextlib.AbstractContextManager[None]:
    """Return a context to trace a program in, with its backward pass, so that float32 products are formed in float32.

    JAX's default forms them from bfloat16 on a TPU and from TF32 on a GPU, with 8 and 11 bits. Products in Pallas
    kernels follow. Other dtypes have one way, and JAX_DEFAULT_MATMUL_PRECISION changes neither.
    """
    return jax.default_matmul_precision("highest" if np.dtype(compute_dtype) == np.float32 else None)


class Computation(NamedTuple):
    """Settings and collectives with which a model runs on one device of a mesh."""

    attention_kernel: str
    compute_dtype: np.dtype
    remat: Remat
    gather: Gather
    spread: Spread = ALONE
    platform: Platform = PLAIN
    cache_kernel: CacheKernel = "reference"
    """Kernel of new tokens over a cache of stacked layers."""

    @property
    def order(self) -> CollectiveOrder:
        """Order of the collectives of a program with the model's layers in it."""
        return self.platform.collective_order(has_collectives=self.gather.has_collectives)

    def unrolled_layers(self, num_layers: int) -> int:
        """Return the layers in the body of the loop over them: all of a small model that saves everything, else one.

        Only a loop keeps apart what is recomputed and what was computed: without one the compiler finds them equal and
        saves them. Nor is a model unrolled that has collectives in its layers: `order` is proven for a loop.
        """
        is_small = num_layers <= self.platform.most_unrolled_layers
        return num_layers if is_small and self.remat == "none" and not self.gather.has_collectives else 1

    def rematerialized(self, layer: Callable) -> Callable:
        """Return a layer that saves for the backward pass what `remat` names, and never gathered parameters."""
        return rematerialized(layer, self.remat, regather=self.gather.has_collectives)


def whole(
    compute_dtype: jax.typing.DTypeLike, attention_kernel: str = "reference", remat: Remat = "none"
) -> Computation:
    """Return the computation on one device that holds all parameters, in the plain forms."""
    dtype = np.dtype(compute_dtype)
    return Computation(attention_kernel, dtype, remat, Whole(dtype))
