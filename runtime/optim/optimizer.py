"""Optimizers: the interface, and the settings of each as plain values (the arithmetic is in `adamw` and `muon`).

An optimizer is optax's `GradientTransformationExtraArgs` with what plans and meshes need beside it.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import optax

    from runtime.model.config import ModelConfig
    from runtime.model.model import Model

NUMBERS = ("learning_rate", "weight_decay", "b1", "b2", "eps", "max_norm")
"""Traced scalars that an update takes, by their names in `Hyperparameters`: changing one compiles nothing."""


@runtime_checkable
class Optimizer(Protocol):
    """An algorithm: a frozen value that hashes, since compiled programs are cached by it."""

    def __hash__(self) -> int: ...

    @property
    def kind(self) -> str:
        """Name of the algorithm. No algorithm can use the state of another."""
        ...

    def state_size(self, model: "ModelConfig") -> int:
        """Return how many numbers of the optimizer's state are split over devices as parameters are."""
        ...

    def update_flops(self, model: "ModelConfig", copy_axes: Sequence[int]) -> int:
        """Return the FLOPs of an update's products on a device; `copy_axes`: sizes of axes that split a model copy."""
        ...

    def build(
        self, model: "Model", axis_sizes: Mapping[str, int] | None = None
    ) -> "optax.GradientTransformationExtraArgs":
        """Return the transformation for the parameters of `model`, on a mesh with these axes.

        Its `update(gradients, state, params, *, grad_norm, **numbers)` gets all `NUMBERS`, and ignores those that the
        algorithm does not use. `grad_norm` is that over all devices, and the update itself clips to `max_norm`, decays
        the tensors that the model's table marks, and scales by the learning rate. The update works element by element,
        or writes out its collectives, because it runs on shards inside `jax.shard_map`. The first state is zero in
        every leaf. A leaf whose path ends in a parameter's name lies where that parameter does.
        """
        ...


@dataclasses.dataclass(frozen=True)
class AdamW:
    """AdamW (arXiv:1711.05101) with clipping by global norm."""

    kind: Literal["adamw"] = dataclasses.field(default="adamw", repr=False)

    def state_size(self, model: "ModelConfig") -> int:
        return 2 * model.num_parameters

    def update_flops(self, model: "ModelConfig", copy_axes: Sequence[int]) -> int:
        return 0

    def build(
        self, model: "Model", axis_sizes: Mapping[str, int] | None = None
    ) -> "optax.GradientTransformationExtraArgs":
        """Return the transformation; its state is optax's `ScaleByAdamState`."""
        from runtime.optim.adamw import adamw

        return adamw(model)


@dataclasses.dataclass(frozen=True)
class Muon:
    """Muon (arXiv:2502.16982) for the matrices of the layers, AdamW for all other tensors; names follow optax's.

    Learning rate, weight decay and clipping of the phase apply to both, `b1`, `b2` and `eps` to AdamW alone.
    """

    beta: float = 0.95
    """Decay of the momentum, which is Nesterov's."""
    consistent_rms: float | None = 0.2
    """Root mean square of an update, near AdamW's, so that AdamW's learning rates work too. None scales by
    sqrt(max(1, out / in)) instead."""
    ns_steps: int = 5
    """Newton-Schulz iterations."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Dtype in which matrices are gathered and orthogonalised."""
    kind: Literal["muon"] = dataclasses.field(default="muon", repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1 - 2**-25:  # half way from the largest float32 below 1
            raise ValueError(f"Muon.beta is {self.beta}; use at least 0 and less than 1 as float32, such as 0.95.")
        if self.consistent_rms is not None and not 0 < self.consistent_rms < math.inf:
            raise ValueError(f"Muon.consistent_rms is {self.consistent_rms}; use a finite number above 0, or None.")
        if self.ns_steps < 1:
            raise ValueError(f"Muon.ns_steps is {self.ns_steps}; use at least 1.")

    def state_size(self, model: "ModelConfig") -> int:
        in_layers = sum(rows * columns for rows, columns in model.layer_matrices)
        return 2 * model.num_parameters - model.num_hidden_layers * in_layers

    def update_flops(self, model: "ModelConfig", copy_axes: Sequence[int]) -> int:
        dealt = math.prod(copy_axes[index] for index in dealt_axes(model.num_hidden_layers, copy_axes))
        shapes = [sorted(shape) for shape in model.layer_matrices]
        iteration = sum(4 * short**2 * long + 2 * short**3 for short, long in shapes)
        return self.ns_steps * iteration * model.num_hidden_layers // dealt

    def build(
        self, model: "Model", axis_sizes: Mapping[str, int] | None = None
    ) -> "optax.GradientTransformationExtraArgs":
        """Return the transformation; its state is a `MuonState`."""
        from runtime.optim.muon import muon

        return muon(self, model, axis_sizes or {})


ADAMW = AdamW()
ChosenOptimizer = Muon | None
"""Optimizers of a phase; None is AdamW."""


def chosen(optimizer: Optimizer | None) -> Optimizer:
    """Return the optimizer that a phase's field names."""
    return ADAMW if optimizer is None else optimizer


def dealt_axes(num_layers: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of axes whose devices can share the layers evenly, the largest axis first."""
    found: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        if num_layers % sizes[index] == 0:
            num_layers //= sizes[index]
            found.append(index)
    return tuple(found)
