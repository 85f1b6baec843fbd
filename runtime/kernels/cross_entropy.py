"""Head matrix product + softmax cross-entropy + z-loss: the definition, and the choice of a kernel by name.

The kernels take the weight of each token and the z-loss coefficient, so that they can form the gradients while they
have the logits: the gradient of the head sums over tokens, so weights from the cotangents would come too late.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from runtime.kernels import cross_entropy_chunked, cross_entropy_gpu
from runtime.kernels.shapes import Head, Hidden, Labels, Losses, PerToken, Scalar


class CrossEntropy(NamedTuple):
    """`objective` is `sum(weights * (loss + z_loss * log_normalizer ** 2))`; only it has a gradient.

    `loss` and `log_normalizer` are per token, unweighted, float32 whatever goes in.
    """

    objective: Scalar
    loss: PerToken
    log_normalizer: PerToken


def reference(hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """Return the losses by their definition. It keeps all logits."""
    logits = jnp.einsum("th,hv->tv", hidden, head, preferred_element_type=jnp.float32)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    loss = log_normalizer - jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return jnp.sum(weights * (loss + z_loss * jnp.square(log_normalizer))), loss, log_normalizer


KERNELS: dict[str, Callable[[Hidden, Head, Labels, PerToken, Scalar], Losses]] = {
    "reference": reference,
    "chunked": cross_entropy_chunked.chunked,
    "chunked_wide": cross_entropy_chunked.chunked_wide,
    "mosaic_gpu": cross_entropy_gpu.fused,
}


def linear_cross_entropy(
    hidden: Hidden, head: Head, labels: Labels, *, weights: PerToken, z_loss: Scalar, kernel: str
) -> CrossEntropy:
    """Run the kernel of that name; a kernel that does not take the shape raises ValueError, and none replaces it.

    Give a token without target the weight 0 and any label inside the vocabulary.
    """
    if kernel not in KERNELS:
        raise ValueError(f"loss kernel {kernel!r} is unknown; use one of {', '.join(sorted(KERNELS))}.")
    weights, z_loss = lax.stop_gradient((weights, z_loss))
    objective, loss, log_normalizer = KERNELS[kernel](hidden, head, labels, weights, z_loss)
    return CrossEntropy(objective, *lax.stop_gradient((loss, log_normalizer)))
