"""Materialized arrays: keep a GPU's compiler from recomputing an array wherever it is read."""

import jax
from jax.experimental import pallas as pl
from jaxtyping import Array


def materialized(array: Array) -> Array:
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
