"""One update as one program: the whole step under a single `jax.shard_map`, all collectives written out.

What a recipe changes from step to step (learning rate, weight decay, betas, clipping, z-loss, averaging, rotary
frequencies) is an argument of the program, so all phases with the same batch shape share one compiled step.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float32, Int32

from runtime.kernels.scatter_blocks import ScatterKernel, check_scatter_kernel
from runtime.model.computation import Computation, matmul_precision
from runtime.model.config import ModelConfig, Rope
from runtime.model.model import Params, materialized
from runtime.model.placement import check_placement
from runtime.optim.averaging import all_averaged
from runtime.optim.optimizer import ADAMW, Optimizer
from runtime.optim.skipping import judged, remembered, restarted, unless
from runtime.parallel.compiler_options import compiler_options
from runtime.parallel.mesh import BATCH_AXES, TOKEN_AXES, platform
from runtime.platform.remat import Remat, check_remat
from runtime.training.kernel_choice import check_kernels
from runtime.training.objective import (
    Batch,
    Scalar,
    Tokens,
    check_batch,
    computation_on,
    next_tokens,
    token_losses,
)
from runtime.training.part_norms import squares_of_parts
from runtime.training.state import TrainState, state_specs


class Hyperparameters(NamedTuple):
    """What one update is told; Python numbers. Changing any of them never recompiles.

    The program takes them as one float32 array (`packed`), and finds them by these names again in `told`.
    """

    learning_rate: float
    weight_decay: float
    b1: float
    b2: float
    eps: float
    max_norm: float  # of the gradient over all parameters; infinity to not clip
    z_loss: float
    skip_sigma: float = math.inf  # of the skip rule; these three are read only where the state has a history
    skip_warmup_steps: int = 0
    skip_begins_anew: bool = False  # whether this update is the first that the rule judges later ones by
    average_decays: tuple[float, ...] = ()  # share of each average that this update keeps, by their sorted names

    def packed(self) -> Float32[np.ndarray, "numbers"]:
        """As the program takes them: the decays last, as many as the state has averages."""
        *numbers, decays = self
        return np.asarray([*numbers, *decays], np.float32)


NUMBERS = Hyperparameters._fields[:-1]
"""What the packed array begins with, by name."""


class StepMetrics(NamedTuple):
    """Figures of one update over the global batch; the objective is `loss + z_loss`.

    A row is of one source, so the losses and log-normalisers of a source are those of its rows: what a row is made of
    stays off the device, no program depends on how many sources there are, and a sum over rows in float64 is the same
    on each mesh.
    """

    loss: Scalar  # mean cross-entropy of the predicted positions, nats, before the update
    z_loss: Scalar  # the term as it enters the objective, coefficient included
    grad_norm: Scalar  # before clipping
    update_norm: Scalar  # of what was added to the parameters
    param_norm: Scalar  # after the update
    num_targets: Int32[Array, ""]
    mean_log_normalizer: Scalar
    row_loss: Float32[Array, "batch"]  # sum of the cross-entropy over the predicted positions of each row, nats
    row_log_normalizer: Float32[Array, "batch"]  # sum of the log-normaliser over the same positions of each row
    row_targets: Int32[Array, "batch"]  # how many positions of the row were predicted
    part_norms: Float32[Array, "measured parts"]  # as the three norms above, by tensor and layer: see tracking.parts
    skip: "SkipMetrics | None" = None  # where the state has a history


class SkipMetrics(NamedTuple):
    """What the skip rule decided; where `is_skipped`, parameters, moments and count are those before the update."""

    is_skipped: Bool[Array, ""]
    loss_limit: Scalar
    grad_norm_limit: Scalar
    num_consecutive: Int32[Array, ""]  # updates left out since the last good one, this one included


TrainStep = Callable[[TrainState, Tokens, Tokens, Hyperparameters], tuple[TrainState, StepMetrics]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """How the program of an update runs; whatever they are, it computes the same but for rounding."""

    attention_kernel: str
    loss_kernel: str
    compute_dtype: jax.typing.DTypeLike
    """Of activations and of products."""
    remat: Remat
    num_microbatches: int = 1
    """Parts of each device's share of the batch, one after the other, whose gradients are summed in float32."""
    reduce_dtype: jax.typing.DTypeLike = np.float32
    """What gradients are summed in over all devices."""
    scatter_kernel: ScatterKernel = "xla"
    optimizer: Optimizer = ADAMW

    @classmethod
    def of(cls, source: Any, **changes: Any) -> "ProgramOptions":
        """Return options with `source`'s fields of the same names (a phase's config, say), but for `changes`."""
        names = [field.name for field in dataclasses.fields(cls) if field.name != "optimizer"]
        return cls(**{name: getattr(source, name) for name in names} | changes)


def build_train_step(
    config: ModelConfig, rope: Rope, mesh: Mesh, options: ProgramOptions, *, donate: bool = True
) -> TrainStep:
    """`step(state, tokens, segment_ids, hyperparameters) -> (state, metrics)`; calls with equal arguments share it.

    Tokens and segment ids are the global batch, as NumPy arrays or arrays placed along `TOKEN_AXES`. With `donate`,
    the state passed in is used up.

    Raises:
        ValueError: a kernel, a policy or the mesh does not suit the model or the devices, or a batch not the mesh.
    """
    program = train_program(config, mesh, options, donate=donate)
    frequencies = config.build().frequencies(rope)

    def step(
        state: TrainState, tokens: Tokens, segment_ids: Tokens, hyperparameters: Hyperparameters
    ) -> tuple[TrainState, StepMetrics]:
        check_batch(tokens, config, mesh, options.num_microbatches)
        if len(hyperparameters.average_decays) != len(state.averages):
            raise ValueError(
                f"average_decays are {hyperparameters.average_decays}, and the state keeps averages called "
                f"{sorted(state.averages)}; pass one for each, in this order."
            )
        return program(state, tokens, segment_ids, hyperparameters.packed(), frequencies)

    return step


def train_program(config: ModelConfig, mesh: Mesh, options: ProgramOptions, *, donate: bool) -> Callable:
    """The program of `build_train_step`, not yet compiled: for machines that are not there, too.

    Its arguments: state, tokens, segment ids, the hyperparameters as one float32 array, and the rotary frequencies.
    """
    check_placement(config, mesh)
    check_kernels(platform(mesh), attention_kernel=options.attention_kernel, loss_kernel=options.loss_kernel)
    check_scatter_kernel(platform(mesh), options.scatter_kernel)
    check_remat(options.remat)
    if options.num_microbatches < 1:
        raise ValueError(f"num_microbatches is {options.num_microbatches}; it must be at least 1.")
    computation = computation_on(
        mesh,
        config,
        attention_kernel=options.attention_kernel,
        compute_dtype=options.compute_dtype,
        remat=options.remat,
        reduce_dtype=options.reduce_dtype,
        scatter_kernel=options.scatter_kernel,
    )
    reduce_dtype = np.dtype(options.reduce_dtype)
    return _train_program(
        config,
        mesh,
        computation,
        options.optimizer,
        options.loss_kernel,
        options.num_microbatches,
        reduce_dtype,
        donate,
    )


@functools.cache
def _train_program(
    config: ModelConfig,
    mesh: Mesh,
    computation: Computation,
    optimizer: Optimizer,
    loss_kernel: str,
    num_microbatches: int,
    reduce_dtype: np.dtype,
    donate: bool,
) -> Callable:
    spread, order = computation.spread, computation.order
    losses = functools.partial(token_losses, config=config, computation=computation, loss_kernel=loss_kernel)
    row_axes, token_axes, all_axes = (
        tuple(axis for axis in axes if mesh.shape[axis] > 1)
        for axes in (BATCH_AXES, (*BATCH_AXES, "context"), (*BATCH_AXES, "context", "model"))
    )
    context = tuple(axis for axis in ("context",) if spread.context > 1)
    model = config.build()
    transformation = optimizer.build(model)

    def update(
        state: TrainState, tokens: Array, segment_ids: Array, packed: Array, frequencies: Array
    ) -> tuple[TrainState, StepMetrics]:
        told, decays = dict(zip(NUMBERS, packed[: len(NUMBERS)], strict=True)), packed[len(NUMBERS) :]
        labels, has_target = next_tokens(tokens, segment_ids, spread)
        row_targets = jnp.sum(has_target, axis=1, dtype=jnp.int32)
        num_targets = _sum_over(token_axes, jnp.sum(row_targets))
        # A batch without any target has weights 0 and gradients 0, not 0/0: the loop tells it by `num_targets`.
        weights = has_target.astype(jnp.float32) / jnp.maximum(num_targets, 1).astype(jnp.float32)

        def objective(params: Params, batch: Batch) -> tuple[Array, tuple[Array, tuple[Array, Array]]]:
            result = losses(params, batch, frequencies, z_loss=told["z_loss"])
            own, normalizer = spread.own_tokens(batch.weights.reshape(-1)), result.log_normalizer
            figures = [own * result.loss, own * jnp.square(normalizer), own * normalizer]
            return result.objective, (jnp.stack([jnp.sum(figure) for figure in figures]), (result.loss, normalizer))

        batch = Batch(tokens, segment_ids, labels, weights)
        # What came from other devices (labels, the number of targets) before the layers, and what goes to them after.
        batch = order.after(batch, (labels, weights), tokens)
        computed = _gradients(objective, state.params, batch, num_microbatches)
        gradients, figures, per_token = order.after(computed, computed, tokens)
        gradients = materialized(model, gradients, computation)
        row_targets = order.after(row_targets, computed, tokens)
        if mesh.shape["replica"] > 1:
            sent = jax.tree.map(lambda leaf: leaf.astype(reduce_dtype), gradients)
            gradients = jax.tree.map(lambda leaf: lax.psum(leaf, "replica").astype(jnp.float32), sent)
        loss, mean_square, mean_log_normalizer = _sum_over(all_axes, figures)
        # Loss and log-normaliser of a row go together, so that the second takes no collective of its own.
        of_tokens = jax.vmap(jax.vmap(spread.gather_tokens))(jnp.stack(per_token)).reshape(2, *tokens.shape)
        # Select, do not multiply: what lies at a position without target may be anything.
        row_sums = jnp.sum(jnp.where(has_target[None], of_tokens, 0.0), axis=2)
        row_loss, row_log_normalizer = _all_rows(row_axes, _sum_over(context, row_sums))

        squares = functools.partial(squares_of_parts, config=config, mesh=mesh)
        (of_gradient,) = squares([gradients])
        grad_norm = jnp.sqrt(jnp.sum(of_gradient))
        step, optimizer_state = transformation.update(
            gradients,
            state.optimizer,
            state.params,
            grad_norm=grad_norm,
            **{name: told[name] for name in optimizer.hyperparameters},
        )
        params = optax.apply_updates(state.params, step)
        new_state = TrainState(params=params, optimizer=optimizer_state, averages=state.averages, key=state.key)
        skip = None
        if state.history is not None:
            sigma, warmup_steps = told["skip_sigma"], told["skip_warmup_steps"]
            history = restarted(state.history, told["skip_begins_anew"])
            verdict = judged(history, loss, grad_norm, num_targets, sigma=sigma, warmup_steps=warmup_steps)
            history = remembered(history, verdict, loss, grad_norm)
            new_state = unless(verdict.is_bad, new_state, dataclasses.replace(state, history=None))
            new_state = dataclasses.replace(new_state, history=history)
            skip = SkipMetrics(*verdict, history.num_consecutive)
        # After the selection: of an update that is left out, an average takes the weights that stay.
        averages = all_averaged(state.averages, new_state.params, decays)
        new_state = dataclasses.replace(new_state, averages=averages)
        of_step, of_params = squares([step, new_state.params])
        if skip is not None:
            of_step = jnp.where(skip.is_skipped, 0.0, of_step)
        metrics = StepMetrics(
            loss=loss,
            z_loss=told["z_loss"] * mean_square,
            grad_norm=grad_norm,
            update_norm=jnp.sqrt(jnp.sum(of_step)),
            param_norm=jnp.sqrt(jnp.sum(of_params)),
            num_targets=num_targets,
            mean_log_normalizer=mean_log_normalizer,
            row_loss=row_loss,
            row_log_normalizer=row_log_normalizer,
            row_targets=_all_rows(row_axes, _sum_over(context, row_targets)),
            part_norms=jnp.sqrt(jnp.stack([of_gradient, of_step, of_params])),
            skip=skip,
        )
        return new_state, metrics

    def program(state: TrainState, tokens: Array, segment_ids: Array, packed: Array, frequencies: Array) -> Any:
        specs = state_specs(state, config, optimizer)
        everywhere = PartitionSpec()
        mapped = jax.shard_map(
            update,
            mesh=mesh,
            in_specs=(specs, TOKEN_AXES, TOKEN_AXES, everywhere, everywhere),
            out_specs=(specs, everywhere),
            check_vma=False,  # the splash kernel's outputs carry no varying-axes type
        )
        with matmul_precision(computation.compute_dtype):
            return mapped(state, tokens, segment_ids, packed, frequencies)

    return jax.jit(program, donate_argnums=(0,) if donate else (), compiler_options=compiler_options(mesh))


def _gradients(
    objective: Callable, params: Params, batch: Batch, num_microbatches: int
) -> tuple[Params, Array, tuple[Array, Array]]:
    """Of this device's share of the batch: gradients and figures, summed over micro-batches in float32, and losses and
    log-normalisers of its own tokens, each [micro-batch, token]."""
    differentiate = jax.grad(objective, has_aux=True)
    if num_microbatches == 1:
        gradients, (figures, per_token) = differentiate(params, batch)
        return gradients, figures, jax.tree.map(lambda values: values[None], per_token)
    parts = jax.tree.map(lambda leaf: leaf.reshape(num_microbatches, -1, *leaf.shape[1:]), batch)

    def add(total: Any, part: Batch) -> tuple[Any, tuple[Array, Array]]:
        gradients, (figures, per_token) = differentiate(params, part)
        return jax.tree.map(jnp.add, total, (gradients, figures)), per_token

    gradients, (figures, _) = jax.eval_shape(differentiate, params, jax.tree.map(lambda leaf: leaf[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (gradients, figures))
    (gradients, figures), per_token = lax.scan(add, zeros, parts)
    return gradients, figures, per_token


def _all_rows(axes: tuple[str, ...], rows: Array) -> Array:
    """The rows, the last dimension, of all devices in the order of the batch, on each of them; axis by axis, the
    innermost first."""
    for axis in reversed(axes):
        rows = lax.all_gather(rows, axis, axis=rows.ndim - 1, tiled=True)
    return rows


def _sum_over(axes: tuple[str, ...], value: Array) -> Array:
    return lax.psum(value, axes) if axes else value
