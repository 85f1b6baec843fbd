"""The objective of train and evaluation step inside `jax.shard_map`: from tokens to the loss of each token.

Each device computes the losses of its own tokens (`parallel.spread`); no mesh counts a token twice.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float32, Int32

from runtime.kernels.cross_entropy import CrossEntropy, linear_cross_entropy
from runtime.kernels.scatter_blocks import ScatterKernel
from runtime.model.computation import Computation, Whole
from runtime.model.config import ModelConfig
from runtime.model.model import Frequencies, Params
from runtime.model.placement import Sharded
from runtime.parallel.mesh import copy_size, data_size, platform
from runtime.parallel.mesh_shape import MeshShape
from runtime.parallel.spread import ALONE, Spread
from runtime.platform.platform import PLATFORMS
from runtime.platform.remat import Remat

Scalar = Float32[Array, ""]
Tokens = Int32[Array | np.ndarray, "batch sequence"]


class BatchShard(NamedTuple):
    """A device's part of a batch, or a micro-batch of it."""

    tokens: Int32[Array, "batch sequence"]
    segment_ids: Int32[Array, "batch sequence"]
    labels: Int32[Array, "batch sequence"]
    weights: Float32[Array, "batch sequence"]
    """Weight of each position in the mean; 0 without a target."""


def computation_on(
    mesh: Mesh,
    config: ModelConfig,
    *,
    attention_kernel: str,
    compute_dtype: jax.typing.DTypeLike,
    remat: Remat = "none",
    reduce_dtype: jax.typing.DTypeLike = np.float32,
    scatter_kernel: ScatterKernel = "xla",
) -> Computation:
    """Return how the model runs on the devices of `mesh`."""
    dtype, spread = np.dtype(compute_dtype), Spread(model=mesh.shape["model"], context=mesh.shape["context"])
    on_mesh = partial(Computation, attention_kernel, dtype, remat, spread=spread, platform=PLATFORMS[platform(mesh)])
    if copy_size(mesh) == 1:  # no layer holds a collective
        if scatter_kernel != "xla":
            raise ValueError(
                f"scatter kernel {scatter_kernel!r}: each device of this mesh holds all parameters, so no gradient is "
                "scattered; use scatter_kernel='xla'."
            )
        return on_mesh(Whole(dtype))
    return on_mesh(
        Sharded(config.build(), tuple(dict(mesh.shape).items()), dtype, np.dtype(reduce_dtype), scatter_kernel)
    )


def next_tokens(
    tokens: Tokens, segment_ids: Tokens, spread: Spread = ALONE
) -> tuple[Int32[Array, "batch sequence"], Bool[Array, "batch sequence"]]:
    """Return the label of each position, the next token, and whether it belongs to the same document."""
    length = tokens.shape[1] * spread.context
    labels = spread.next_in_row(jnp.asarray(tokens))
    is_same = jnp.asarray(segment_ids) == spread.next_in_row(jnp.asarray(segment_ids))
    is_last = spread.own_positions(jnp.arange(length) == length - 1)
    return labels, is_same & ~is_last[None, :]


def token_losses(
    params: Params,
    batch: BatchShard,
    frequencies: Frequencies,
    *,
    z_loss: Scalar,
    config: ModelConfig,
    computation: Computation,
    loss_kernel: str,
) -> CrossEntropy:
    """Return objective, losses and log-normalisers of this device's own tokens."""
    own_tokens = computation.spread.own_tokens
    hidden, head, auxiliary_loss = config.build().states(
        params, batch.tokens, batch.segment_ids, frequencies, computation=computation
    )
    weights = own_tokens(batch.weights.reshape(-1))
    found = linear_cross_entropy(
        hidden, head, own_tokens(batch.labels.reshape(-1)), weights=weights, z_loss=z_loss, kernel=loss_kernel
    )
    if auxiliary_loss is None:
        return found
    return found._replace(objective=found.objective + jnp.sum(weights) * auxiliary_loss)


def check_batch(tokens: Tokens, config: ModelConfig, mesh: Mesh, num_microbatches: int) -> None:
    """Raise ValueError where a batch does not divide over the mesh, or is longer than the model's context."""
    batch, sequence = tokens.shape
    axes = mesh.shape
    MeshShape(axes["replica"], data_size(mesh), axes["model"], axes["context"]).check_batch(
        batch, sequence, num_microbatches
    )
    if sequence > config.max_position_embeddings:
        raise ValueError(
            f"tokens: sequences of {sequence} tokens, and max_position_embeddings is {config.max_position_embeddings}."
        )
