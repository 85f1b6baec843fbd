"""Before a step computes with the loss kernel of Hopper: do these very devices form what its definition does?

The kernel is proven by a simulator, by the assembler and on two cards, with one version of JAX and of CUDA's assembler
each (docs/gpu.md). A run may have others. So each process first forms the ratios of a small block, and holds them
against the compiler's: 4 s on an H200.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Int32, Key

from runtime.kernels.cross_entropy_gpu import COLUMNS, STEP, TOKENS, Ratios, ratios_in_xla, ratios_to_labels
from runtime.training.device_check import num_wrong_on

NUM_TOKENS, HIDDEN_SIZE, VOCAB_SIZE = 8 * TOKENS, 5 * STEP, 20 * COLUMNS
"""More tiles than twice the clusters of a card, so that each takes another; more steps than there are stages."""
ROUNDED = 2**-6
"""Neighbours in bfloat16 differ by half of it at most."""
SUMMED = 1e-3


@functools.cache  # once a process: the devices stay the same
def refuse_wrong_ratios(mesh: Mesh, *, form: Callable[..., Ratios] = ratios_to_labels) -> None:
    """Every device of `mesh`, of all hosts at once.

    Raises:
        RuntimeError: numbers are not those of the definition.
    """
    num_wrong = num_wrong_on(mesh, functools.partial(_num_wrong, form=form))
    if num_wrong:
        raise RuntimeError(
            f"loss kernel 'mosaic_gpu': {num_wrong:,} numbers of a small block are not those of its definition on the "
            f"devices of the mesh {dict(mesh.shape)}: losses and gradients would be wrong. Set loss_kernel to "
            "'chunked_wide', which changes no identity."
        )


def _num_wrong(key: Key[Array, ""], *, form: Callable[..., Ratios]) -> Int32[Array, ""]:
    """Of one device."""
    of_hidden, of_head, of_labels = jax.random.split(key, 3)
    hidden = jax.random.normal(of_hidden, (NUM_TOKENS, HIDDEN_SIZE), jnp.bfloat16)
    # Logits of a standard deviation of 3, as of a trained model.
    head = (3 * HIDDEN_SIZE**-0.5 * jax.random.normal(of_head, (HIDDEN_SIZE, VOCAB_SIZE))).astype(jnp.bfloat16)
    labels = jax.random.randint(of_labels, (NUM_TOKENS,), 0, VOCAB_SIZE, jnp.int32)
    columns = jnp.take(head, labels, axis=1).T.astype(jnp.float32)
    given = hidden, head, jnp.sum(hidden.astype(jnp.float32) * columns, axis=1), labels
    pairs = zip(form(*given), ratios_in_xla(*given), (ROUNDED, SUMMED), strict=True)
    # What is no number is not near either; a label's zero is near to nothing but zero.
    return sum(
        (
            jnp.sum(~(jnp.abs(found - expected) <= tolerance * expected), dtype=jnp.int32)
            for found, expected, tolerance in ((a.astype(jnp.float32), b.astype(jnp.float32), c) for a, b, c in pairs)
        ),
        start=jnp.int32(0),
    )
