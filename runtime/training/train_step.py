"""The train step: one program under a single `jax.shard_map`, with all collectives written out.

The numbers that a recipe changes from step to step (learning rate, weight decay, betas, clipping, z-loss, averaging,
rotary frequencies) are arguments of the program. All phases with the same batch shape share one compiled step.
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
from runtime.optim.optimizer import ADAMW, Optimizer
from runtime.optim.optimizer import NUMBERS as OPTIMIZER_NUMBERS
from runtime.optim.skipping import judged, remembered, restarted, unless
from runtime.parallel.compiler_options import compiler_options
from runtime.parallel.mesh import BATCH_AXES, TOKEN_AXES, platform
from runtime.platform.remat import Remat, check_remat
from runtime.training.kernel_choice import check_kernels
from runtime.training.objective import (
    BatchShard,
    Scalar,
    Tokens,
    check_batch,
    computation_on,
    next_tokens,
    token_losses,
)
from runtime.training.part_norms import squares_of_parts
from runtime.training.state import TrainState, all_averaged, state_specs


class Hyperparameters(NamedTuple):
    """The numbers of one training step; changing any of them never recompiles."""

    learning_rate: float
    weight_decay: float
    b1: float
    b2: float
    eps: float
    max_norm: float  # of the gradient over all parameters; infinity to not clip
    z_loss: float
    skip_sigma: float = math.inf  # of the skip rule; these three are read only where the state has a history
    skip_warmup_steps: int = 0
    skip_restarts: bool = False  # whether this step starts a new window of the rule
    average_decays: tuple[float, ...] = ()  # share of each average that this step keeps, in order of sorted names

    def packed(self) -> Float32[np.ndarray, "numbers"]:
        """Return one array for the program: the numbers in the order of `NUMBERS`, then the decays."""
        return np.asarray([*(getattr(self, name) for name in NUMBERS), *self.average_decays], np.float32)

    @classmethod
    def unpacked(cls, packed: Array) -> Any:
        """Return the numbers of a `packed` array as traced scalars, by their names."""
        numbers: dict[str, Any] = dict(zip(NUMBERS, packed[: len(NUMBERS)], strict=True))
        return cls(**numbers | {"average_decays": packed[len(NUMBERS) :]})


NUMBERS = tuple(name for name in Hyperparameters._fields if name != "average_decays")


class StepMetrics(NamedTuple):
    """Figures of one training step over the global batch; the objective is `loss + z_loss`.

    The host sums the rows of each source in float64, so programs do not depend on the number of sources.
    """

    loss: Scalar  # mean cross-entropy of the targets, nats, before the step
    z_loss: Scalar  # the term of the objective, coefficient included
    grad_norm: Scalar  # before clipping
    update_norm: Scalar  # of what the step adds to the parameters
    param_norm: Scalar  # after the step
    num_targets: Int32[Array, ""]
    mean_log_normalizer: Scalar
    row_loss: Float32[Array, "batch"]  # sum of the cross-entropy over the targets of each row, nats
    row_log_normalizer: Float32[Array, "batch"]  # sum of the log-normaliser over the targets of each row
    row_targets: Int32[Array, "batch"]  # number of targets of each row
    part_norms: Float32[Array, "measured parts"]  # the three norms above by tensor and layer: see tracking.parts
    skip: "SkipMetrics | None" = None  # where the state has a history


class SkipMetrics(NamedTuple):
    """The decision of the skip rule; a skipped step leaves parameters and optimizer state unchanged."""

    is_skipped: Bool[Array, ""]
    loss_limit: Scalar
    grad_norm_limit: Scalar
    num_consecutive: Int32[Array, ""]  # consecutive skipped steps, this one included


TrainStep = Callable[[TrainState, Tokens, Tokens, Hyperparameters], tuple[TrainState, StepMetrics]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """Options of the program, which change its results by rounding only."""

    attention_kernel: str
    loss_kernel: str
    compute_dtype: jax.typing.DTypeLike
    """Dtype of activations and products."""
    remat: Remat
    num_microbatches: int = 1
    """Sequential parts of each device's share of the batch, whose gradients are summed in float32."""
    reduce_dtype: jax.typing.DTypeLike = np.float32
    """Dtype in which gradients are summed over all devices."""
    scatter_kernel: ScatterKernel = "xla"
    optimizer: Optimizer = ADAMW


def build_train_step(
    config: ModelConfig, rope: Rope, mesh: Mesh, options: ProgramOptions, *, donate: bool = True
) -> TrainStep:
    """Return `step(state, tokens, segment_ids, hyperparameters) -> (state, metrics)`; equal arguments share a program.

    Tokens and segment ids are the global batch, as NumPy arrays or arrays sharded along `TOKEN_AXES`. With `donate`,
    the step reuses the memory of the state passed in.

    Raises:
        ValueError: a kernel, an option or the mesh does not suit the model or the devices, or a batch the mesh.
    """
    program = train_program(config, mesh, options, donate=donate)
    frequencies = config.build().frequencies(rope)

    def step(
        state: TrainState, tokens: Tokens, segment_ids: Tokens, hyperparameters: Hyperparameters
    ) -> tuple[TrainState, StepMetrics]:
        check_batch(tokens, config, mesh, options.num_microbatches)
        if len(hyperparameters.average_decays) != len(state.averages):
            raise ValueError(
                f"average_decays is {hyperparameters.average_decays}, and the averages of the state are "
                f"{sorted(state.averages)}; pass one decay for each, in this order."
            )
        return program(state, tokens, segment_ids, hyperparameters.packed(), frequencies)

    return step


def train_program(config: ModelConfig, mesh: Mesh, options: ProgramOptions, *, donate: bool) -> Callable:
    """Return the program of `build_train_step`, not compiled yet; the machines of the mesh need not exist.

    Its arguments: state, tokens, segment ids, packed hyperparameters, rotary frequencies.
    """
    check_placement(config, mesh)
    check_kernels(platform(mesh), attention_kernel=options.attention_kernel, loss_kernel=options.loss_kernel)
    check_scatter_kernel(platform(mesh), options.scatter_kernel)
    check_remat(options.remat)
    names = ("attention_kernel", "compute_dtype", "remat", "reduce_dtype", "scatter_kernel")
    computation = computation_on(mesh, config, **{name: getattr(options, name) for name in names})
    return _train_program(_DeviceStep(config, mesh, options, computation), donate)


@functools.cache
def _train_program(device_step: "_DeviceStep", donate: bool) -> Callable:
    mesh, everywhere = device_step.mesh, PartitionSpec()

    def program(state: TrainState, tokens: Array, segment_ids: Array, packed: Array, frequencies: Array) -> Any:
        specs = state_specs(state, device_step.config)
        mapped = jax.shard_map(
            device_step.take,
            mesh=mesh,
            in_specs=(specs, TOKEN_AXES, TOKEN_AXES, everywhere, everywhere),
            out_specs=(specs, everywhere),
            check_vma=False,  # the splash kernel's outputs carry no varying-axes type
        )
        with matmul_precision(device_step.computation.compute_dtype):
            return mapped(state, tokens, segment_ids, packed, frequencies)

    return jax.jit(program, donate_argnums=(0,) if donate else (), compiler_options=compiler_options(mesh))


Computed = tuple[Params, Float32[Array, "figures"], tuple[Array, Array]]
"""The result of the backward pass on one device: gradients, figures (weighted sums of loss, squared log-normaliser and
log-normaliser), and losses and log-normalisers of the device's own tokens, [micro-batch, token]."""


@dataclasses.dataclass(frozen=True)
class _DeviceStep:
    """The training step of one device, inside `jax.shard_map`; a frozen value, since programs are cached by it."""

    config: ModelConfig
    mesh: Mesh
    options: ProgramOptions
    computation: Computation

    def take(
        self, state: TrainState, tokens: Array, segment_ids: Array, packed: Array, frequencies: Array
    ) -> tuple[TrainState, StepMetrics]:
        numbers, order = Hyperparameters.unpacked(packed), self.computation.order
        labels, has_target = next_tokens(tokens, segment_ids, self.computation.spread)
        row_targets = jnp.sum(has_target, axis=1, dtype=jnp.int32)
        num_targets = self._sum_over((*BATCH_AXES, "context"), jnp.sum(row_targets))
        # A batch without targets gets weights and gradients of 0, not 0/0; the loop reads `num_targets`.
        weights = has_target.astype(jnp.float32) / jnp.maximum(num_targets, 1).astype(jnp.float32)
        # Collectives before the layers (labels, number of targets) must precede those of the layers.
        batch = order.after(BatchShard(tokens, segment_ids, labels, weights), (labels, weights), tokens)
        objective = functools.partial(self._objective, frequencies=frequencies, z_loss=numbers.z_loss)
        computed = _gradients(objective, state.params, batch, self.options.num_microbatches)
        gradients, figures, per_token = order.after(computed, computed, tokens)
        row_targets = order.after(row_targets, computed, tokens)
        gradients = self._reduced(gradients)
        loss, mean_square, mean_log_normalizer = self._sum_over((*BATCH_AXES, "context", "model"), figures)
        row_loss, row_log_normalizer = self._row_sums(per_token, has_target)
        row_targets = self._all_rows(self._sum_over(("context",), row_targets))
        squares = functools.partial(squares_of_parts, config=self.config, mesh=self.mesh)
        (gradient_squares,) = squares([gradients])
        grad_norm = jnp.sqrt(jnp.sum(gradient_squares))
        # The optimizer clips by the norm, so that its collectives come after the collectives of the figures.
        grad_norm = order.after(grad_norm, (loss, row_loss, row_targets), tokens)
        new_state, step = self._updated(state, gradients, grad_norm, numbers)
        new_state, skip = _skipped_if_bad(state, new_state, loss, grad_norm, num_targets, numbers)
        # After the skip rule: where a step is skipped, the averages take the unchanged weights.
        averages = all_averaged(state.averages, new_state.params, numbers.average_decays)
        new_state = dataclasses.replace(new_state, averages=averages)
        step_squares, param_squares = squares([step, new_state.params])
        if skip is not None:
            step_squares = jnp.where(skip.is_skipped, 0.0, step_squares)
        metrics = StepMetrics(
            loss=loss,
            z_loss=numbers.z_loss * mean_square,
            grad_norm=grad_norm,
            update_norm=jnp.sqrt(jnp.sum(step_squares)),
            param_norm=jnp.sqrt(jnp.sum(param_squares)),
            num_targets=num_targets,
            mean_log_normalizer=mean_log_normalizer,
            row_loss=row_loss,
            row_log_normalizer=row_log_normalizer,
            row_targets=row_targets,
            part_norms=jnp.sqrt(jnp.stack([gradient_squares, step_squares, param_squares])),
            skip=skip,
        )
        return new_state, metrics

    def _objective(
        self, params: Params, batch: BatchShard, *, frequencies: Array, z_loss: Array
    ) -> tuple[Array, tuple[Array, tuple[Array, Array]]]:
        result = token_losses(
            params,
            batch,
            frequencies,
            z_loss=z_loss,
            config=self.config,
            computation=self.computation,
            loss_kernel=self.options.loss_kernel,
        )
        own, normalizer = self.computation.spread.own_tokens(batch.weights.reshape(-1)), result.log_normalizer
        figures = [own * result.loss, own * jnp.square(normalizer), own * normalizer]
        return result.objective, (jnp.stack([jnp.sum(figure) for figure in figures]), (result.loss, normalizer))

    def _reduced(self, gradients: Params) -> Params:
        """Sum gradients over replicas; the layers have summed them over the other axes."""
        gradients = materialized(self.config.build(), gradients, self.computation)
        if self.mesh.shape["replica"] == 1:
            return gradients
        sent = jax.tree.map(lambda leaf: leaf.astype(self.options.reduce_dtype), gradients)
        return jax.tree.map(lambda leaf: lax.psum(leaf, "replica").astype(jnp.float32), sent)

    def _row_sums(self, per_token: tuple[Array, Array], has_target: Array) -> Array:
        """Return the sums of losses and log-normalisers of all rows, in one collective."""
        gather = jax.vmap(jax.vmap(self.computation.spread.gather_tokens))
        values = gather(jnp.stack(per_token)).reshape(2, *has_target.shape)
        # Select, do not multiply: a position without target may hold anything.
        sums = jnp.sum(jnp.where(has_target[None], values, 0.0), axis=2)
        return self._all_rows(self._sum_over(("context",), sums))

    def _updated(
        self, state: TrainState, gradients: Params, grad_norm: Array, numbers: Any
    ) -> tuple[TrainState, Params]:
        """Return the state after the optimizer's step, and the step."""
        optimizer = self.options.optimizer.build(self.config.build(), self.mesh.shape)
        step, optimizer_state = optimizer.update(
            gradients,
            state.optimizer,
            state.params,
            grad_norm=grad_norm,
            **{name: getattr(numbers, name) for name in OPTIMIZER_NUMBERS},
        )
        params = optax.apply_updates(state.params, step)
        return TrainState(params=params, optimizer=optimizer_state, averages=state.averages, key=state.key), step

    def _axes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if self.mesh.shape[axis] > 1)

    def _sum_over(self, axes: tuple[str, ...], value: Array) -> Array:
        axes = self._axes(axes)
        return lax.psum(value, axes) if axes else value

    def _all_rows(self, rows: Array) -> Array:
        """Gather the rows (last dimension) of all devices in the order of the batch, innermost axis first."""
        for axis in reversed(self._axes(BATCH_AXES)):
            rows = lax.all_gather(rows, axis, axis=rows.ndim - 1, tiled=True)
        return rows


def _skipped_if_bad(
    state: TrainState, new_state: TrainState, loss: Array, grad_norm: Array, num_targets: Array, numbers: Any
) -> tuple[TrainState, SkipMetrics | None]:
    """Return `state` instead of `new_state` where the skip rule finds the step bad, with the history after it."""
    if state.history is None:
        return new_state, None
    history = restarted(state.history, numbers.skip_restarts)
    verdict = judged(
        history, loss, grad_norm, num_targets, sigma=numbers.skip_sigma, warmup_steps=numbers.skip_warmup_steps
    )
    history = remembered(history, verdict, loss, grad_norm)
    new_state = unless(verdict.is_bad, new_state, dataclasses.replace(state, history=None))
    return dataclasses.replace(new_state, history=history), SkipMetrics(*verdict, history.num_consecutive)


def _gradients(objective: Callable, params: Params, batch: BatchShard, num_microbatches: int) -> Computed:
    """Return gradients and figures of this device's share of the batch, summed over micro-batches in float32."""
    differentiate = jax.grad(objective, has_aux=True)
    if num_microbatches == 1:
        gradients, (figures, per_token) = differentiate(params, batch)
        return gradients, figures, jax.tree.map(lambda values: values[None], per_token)
    parts = jax.tree.map(lambda leaf: leaf.reshape(num_microbatches, -1, *leaf.shape[1:]), batch)

    def add(total: Any, part: BatchShard) -> tuple[Any, tuple[Array, Array]]:
        gradients, (figures, per_token) = differentiate(params, part)
        return jax.tree.map(jnp.add, total, (gradients, figures)), per_token

    gradients, (figures, _) = jax.eval_shape(differentiate, params, jax.tree.map(lambda leaf: leaf[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (gradients, figures))
    (gradients, figures), per_token = lax.scan(add, zeros, parts)
    return gradients, figures, per_token
