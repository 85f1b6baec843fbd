"""Optimizers: the interface, and the settings of each as plain values (the arithmetic of AdamW is in `adamw`).

An optimizer is optax's `GradientTransformationExtraArgs` with what a mesh needs beside it.
"""

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    import optax

    from runtime.model.model import Model


@runtime_checkable
class Optimizer(Protocol):
    """An algorithm: a frozen value that hashes, since compiled programs are cached by it."""

    num_trees: ClassVar[int]
    """Trees of the parameters' size in its state."""
    hyperparameters: ClassVar[tuple[str, ...]]
    """Numbers that each update takes as traced scalars, by their names in `Hyperparameters`: changing one compiles
    nothing."""

    def __hash__(self) -> int: ...

    def build(self, model: "Model") -> "optax.GradientTransformationExtraArgs":
        """Return the transformation for the parameters of `model`.

        Its update takes `params`, `grad_norm` (over all devices, before clipping) and the `hyperparameters`. It works
        element by element or writes its collectives out, for it runs on shards inside `jax.shard_map`. Its first state
        is zero in every leaf, and trees in it that have the structure of the parameters lie where the parameters do.
        """
        ...


@dataclasses.dataclass(frozen=True)
class AdamW:
    """AdamW (arXiv:1711.05101) with clipping by global norm."""

    num_trees: ClassVar[int] = 2
    hyperparameters: ClassVar[tuple[str, ...]] = ("learning_rate", "weight_decay", "b1", "b2", "eps", "max_norm")

    def build(self, model: "Model") -> "optax.GradientTransformationExtraArgs":
        """Return the transformation; its state is optax's `ScaleByAdamState`."""
        from runtime.optim.adamw import adamw

        return adamw(model)


ADAMW = AdamW()
