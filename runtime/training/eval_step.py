"""The evaluation step: losses of held-out text by token, with kernels and mesh as in the train step."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float32

from runtime.model.computation import matmul_precision
from runtime.model.config import ModelConfig, Rope
from runtime.model.model import Params
from runtime.model.placement import check_placement, parameter_specs
from runtime.parallel.compiler_options import compiler_options
from runtime.parallel.mesh import TOKEN_AXES, platform
from runtime.training.kernel_choice import check_kernels
from runtime.training.objective import BatchShard, Tokens, check_batch, computation_on, next_tokens, token_losses


class TokenLosses(NamedTuple):
    """Losses by position; `loss` is 0 without a target."""

    loss: Float32[Array, "batch sequence"]
    has_target: Bool[Array, "batch sequence"]


EvalStep = Callable[[Params, Tokens, Tokens], TokenLosses]


def build_eval_step(
    config: ModelConfig,
    rope: Rope,
    mesh: Mesh,
    *,
    attention_kernel: str,
    loss_kernel: str,
    compute_dtype: jax.typing.DTypeLike,
) -> EvalStep:
    """Return `step(params, tokens, segment_ids) -> TokenLosses`, for parameters sharded as in the train step."""
    program = eval_program(
        config, mesh, attention_kernel=attention_kernel, loss_kernel=loss_kernel, compute_dtype=np.dtype(compute_dtype)
    )
    frequencies = config.build().frequencies(rope)

    def step(params: Params, tokens: Tokens, segment_ids: Tokens) -> TokenLosses:
        check_batch(tokens, config, mesh, 1)
        return program(params, tokens, segment_ids, frequencies)

    return step


@functools.cache
def eval_program(
    config: ModelConfig, mesh: Mesh, *, attention_kernel: str, loss_kernel: str, compute_dtype: jax.typing.DTypeLike
) -> Callable:
    """Return the program of `build_eval_step`, with arguments parameters, tokens, segment ids, rotary frequencies."""
    check_placement(config, mesh)
    check_kernels(platform(mesh), attention_kernel=attention_kernel, loss_kernel=loss_kernel)
    computation = computation_on(mesh, config, attention_kernel=attention_kernel, compute_dtype=compute_dtype)
    spread = computation.spread

    def losses(params: Params, tokens: Array, segment_ids: Array, frequencies: Array) -> TokenLosses:
        labels, has_target = next_tokens(tokens, segment_ids, spread)
        batch = BatchShard(tokens, segment_ids, labels, has_target.astype(jnp.float32))
        # Labels come from the next device of the context axis, before the collectives of the layers.
        batch = computation.order.after(batch, (labels, has_target), tokens)
        with matmul_precision(computation.compute_dtype):
            result = token_losses(
                params,
                batch,
                frequencies,
                z_loss=jnp.zeros(()),
                config=config,
                computation=computation,
                loss_kernel=loss_kernel,
            )
        loss = spread.gather_tokens(result.loss)
        return TokenLosses(jnp.where(has_target, loss.reshape(tokens.shape), 0.0), has_target)

    return forward_program(losses, config, mesh)


def forward_program(forward: Callable, config: ModelConfig, mesh: Mesh) -> Callable:
    """Compile `forward(params, tokens, segment_ids, frequencies)`, whose results are by token, for a mesh."""
    mapped = jax.shard_map(
        forward,
        mesh=mesh,
        in_specs=(parameter_specs(config.build()), TOKEN_AXES, TOKEN_AXES, PartitionSpec()),
        out_specs=TOKEN_AXES,
        check_vma=False,
    )
    return jax.jit(mapped, compiler_options=compiler_options(mesh))
