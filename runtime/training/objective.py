"""The loss of a batch inside `jax.shard_map`: what train and evaluation step share, from tokens to a loss for each.

Each device computes the losses of its own tokens (`parallel.spread`); nothing is counted twice on any mesh.
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
from runtime.parallel.mesh import copy_size, data_size, num_batch_parts, platform
from runtime.parallel.spread import ALONE, Spread
from runtime.platform.platform import PLATFORMS
from runtime.platform.remat import Remat

Scalar = Float32[Array, ""]
Tokens = Int32[Array | np.ndarray, "batch sequence"]


class Batch(NamedTuple):
    """A device's part of a batch, or a micro-batch of it."""

    tokens: Int32[Array, "batch sequence"]
    segment_ids: Int32[Array, "batch sequence"]
    labels: Int32[Array, "batch sequence"]
    weights: Float32[Array, "batch sequence"]
    """Of each position in the mean; 0 where nothing is predicted."""


def computation_on(
    mesh: Mesh,
    config: ModelConfig,
    *,
    attention_kernel: str,
    compute_dtype: jax.typing.DTypeLike,
    remat: Remat,
    reduce_dtype: jax.typing.DTypeLike,
    scatter_kernel: ScatterKernel = "xla",
) -> Computation:
    """How the model runs on the devices of `mesh`."""
    dtype, spread = np.dtype(compute_dtype), Spread(model=mesh.shape["model"], context=mesh.shape["context"])
    on_mesh = partial(Computation, attention_kernel, dtype, remat, spread=spread, platform=PLATFORMS[platform(mesh)])
    if copy_size(mesh) == 1:  # no layer holds a collective
        if scatter_kernel != "xla":
            raise ValueError(
                f"scatter kernel {scatter_kernel!r}: each device of this mesh holds all parameters, and no gradient is "
                "scattered; use scatter kernel 'xla'."
            )
        return on_mesh(Whole(dtype))
    return on_mesh(
        Sharded(config.build(), tuple(dict(mesh.shape).items()), dtype, np.dtype(reduce_dtype), scatter_kernel)
    )


def next_tokens(
    tokens: Tokens, segment_ids: Tokens, spread: Spread = ALONE
) -> tuple[Int32[Array, "batch sequence"], Bool[Array, "batch sequence"]]:
    """Label of each position and whether it has one: the next token, where it is of the same document."""
    length = tokens.shape[1] * spread.context
    labels = spread.next_in_row(jnp.asarray(tokens))
    is_same = jnp.asarray(segment_ids) == spread.next_in_row(jnp.asarray(segment_ids))
    is_last = spread.own_positions(jnp.arange(length) == length - 1)
    return labels, is_same & ~is_last[None, :]


def token_losses(
    params: Params,
    batch: Batch,
    frequencies: Frequencies,
    *,
    z_loss: Scalar,
    config: ModelConfig,
    computation: Computation,
    loss_kernel: str,
) -> CrossEntropy:
    """Objective, losses and log-normalisers of this device's own tokens."""
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
    """Raises where a batch does not divide over the mesh, or is longer than the model can be asked for."""
    batch, sequence = tokens.shape
    parts, context, model = num_batch_parts(mesh) * num_microbatches, mesh.shape["context"], mesh.shape["model"]
    if batch % parts:
        raise ValueError(
            f"tokens: a global batch of {batch} sequences does not divide into {parts} equal parts "
            f"(replica {mesh.shape['replica']} x data {data_size(mesh)} x micro-batches {num_microbatches})."
        )
    if sequence % context or batch // parts * (sequence // context) % model:
        raise ValueError(
            f"tokens: {batch // parts} sequences of {sequence} tokens do not divide into {context} equal stretches "
            f"(context) of which each device of the model axis ({model}) takes an equal share of tokens."
        )
    if sequence > config.max_position_embeddings:
        raise ValueError(
            f"tokens: sequences of {sequence} tokens, and max_position_embeddings is {config.max_position_embeddings}."
        )
