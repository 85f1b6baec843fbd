"""Ratio check: compares the loss kernel of Hopper with its definition on the devices of a run.

A simulator, the assembler and two cards prove the kernel, each with one version of JAX and of CUDA's assembler
(docs/gpu.md). A run may have other versions. Each process therefore first compares the ratios of a small block with
the compiler's, which takes 4 s on an H200.
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
"""More than twice as many tiles as a card has clusters, so that each takes a second one; more steps than stages."""
ROUNDED = 2**-6
"""Twice the largest distance of neighbours in bfloat16."""
SUMMED = 1e-3


@functools.cache  # once a process: the devices stay the same
def check_ratios(mesh: Mesh, *, form: Callable[..., Ratios] = ratios_to_labels) -> None:
    """Check the kernel on every device of `mesh`; all hosts must call it.

    Raises:
        RuntimeError: numbers differ from the definition.
    """
    num_wrong = num_wrong_on(mesh, functools.partial(_num_wrong, form=form))
    if num_wrong:
        raise RuntimeError(
            f"loss kernel 'mosaic_gpu': {num_wrong:,} numbers of a small block differ from its definition on the "
            f"devices of the mesh {dict(mesh.shape)}, so losses and gradients would be wrong. Set "
            "loss_kernel='chunked_wide', which changes no identity."
        )


def _num_wrong(key: Key[Array, ""], *, form: Callable[..., Ratios]) -> Int32[Array, ""]:
    hidden_key, head_key, label_key = jax.random.split(key, 3)
    hidden = jax.random.normal(hidden_key, (NUM_TOKENS, HIDDEN_SIZE), jnp.bfloat16)
    # Logits with a standard deviation of 3, as in a trained model.
    head = (3 * HIDDEN_SIZE**-0.5 * jax.random.normal(head_key, (HIDDEN_SIZE, VOCAB_SIZE))).astype(jnp.bfloat16)
    labels = jax.random.randint(label_key, (NUM_TOKENS,), 0, VOCAB_SIZE, jnp.int32)
    columns = jnp.take(head, labels, axis=1).T.astype(jnp.float32)
    given = hidden, head, jnp.sum(hidden.astype(jnp.float32) * columns, axis=1), labels
    pairs = zip(form(*given), ratios_in_xla(*given), (ROUNDED, SUMMED), strict=True)
    # Written so that NaN counts as wrong. Zeros, at the labels, must match exactly.
    return sum(
        (
            jnp.sum(~(jnp.abs(found - expected) <= tolerance * expected), dtype=jnp.int32)
            for found, expected, tolerance in ((a.astype(jnp.float32), b.astype(jnp.float32), c) for a, b, c in pairs)
        ),
        start=jnp.int32(0),
    )
