"""Platform: the forms of operations that suit one compiler, XLA's for CPUs, GPUs or TPUs.

No form changes a value beyond rounding.
"""

import dataclasses

import jax
from jax.experimental import pallas as pl
from jaxtyping import Array

from runtime.kernels import embedding
from runtime.kernels import gated as gates
from runtime.kernels import linear as products
from runtime.platform.collective_order import CollectiveOrder


@dataclasses.dataclass(frozen=True)
class Platform:
    """The forms in which a model computes on one kind of device; the defaults are the plain ones."""

    look_up_gradient: embedding.LookUp = "scattered"
    weight_gradient: products.WeightGradient = "plain"
    gate_gradient: gates.GateGradient = "plain"
    most_unrolled_layers: int = 1
    """Layers of a model, at most, that are written out instead of looped over."""
    materializes_gradients: bool = False
    """Whether gradients of unrolled layers are written to memory once, or put together again wherever they are read."""
    orders_collectives: bool = False
    """Whether the program's order does not order collectives, so that data must (`CollectiveOrder`)."""

    def look_up(self, table: embedding.Table, ids: embedding.Ids) -> embedding.Rows:
        """Return the row of each id."""
        return embedding.look_up(table, ids, gradient=self.look_up_gradient)

    def linear(self, rows: products.Rows, weight: products.Weight | products.Scattering) -> products.Cotangent:
        """Return `rows @ weight`."""
        return products.linear(rows, weight, way=self.weight_gradient)

    def wide_linear(self, rows: products.Rows, weight: products.Weight | products.Scattering) -> products.Cotangent:
        """Return `rows @ weight` for wide rows of one product, whose transposed copy costs more than it saves."""
        return products.linear(rows, weight, way="plain")

    def gated(self, gate: gates.Gate, up: gates.Gate) -> gates.Gate:
        """Return `silu(gate) * up`."""
        return gates.gated(gate, up, gradient=self.gate_gradient)

    def materialized(self, gradient: Array) -> Array:
        """Return the stacked gradient of unrolled layers, written to memory once where that is faster."""
        return _materialized(gradient) if self.materializes_gradients else gradient

    def collective_order(self, *, has_collectives: bool) -> CollectiveOrder:
        """Return the order of a program whose layers have collectives, or not."""
        return CollectiveOrder(by_data=self.orders_collectives and has_collectives)


PLAIN = Platform()
PLATFORMS = {
    "tpu": PLAIN,
    # A loop copies what it keeps for the backward pass into stacks and out of them. Written out, the time to compile
    # grows with the layers: 46 s for 20 of a 1.5B.
    "gpu": Platform(look_up_gradient="sorted", most_unrolled_layers=32, materializes_gradients=True),
    "cpu": Platform(
        weight_gradient="transposed", gate_gradient="recomputed", most_unrolled_layers=4, orders_collectives=True
    ),
}
"""Platforms by the name that `mesh.platform` returns."""


def _materialized(array: Array) -> Array:
    """Return the same array, written to memory once for a kernel that does nothing; on a GPU.

    XLA otherwise stacks gradients of unrolled layers inside each operation that reads them: AdamW of a 1.5B takes 93 ms
    of an H200, and 20 ms with this. `lax.optimization_barrier` is gone before operations are fused.
    """
    from jax.experimental.pallas import triton  # its import warns on CPUs and TPUs

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    kept: Array = pl.pallas_call(
        lambda given, same: None,
        out_shape=jax.ShapeDtypeStruct(array.shape, array.dtype),
        in_specs=[anywhere],
        out_specs=anywhere,
        input_output_aliases={0: 0},
        compiler_params=triton.CompilerParams(num_warps=1),
        name="materialized",
    )(array)
    return kept
