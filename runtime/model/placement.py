"""Placement: where each parameter lies on a mesh, split over one copy's devices; the replica axis holds copies."""

import dataclasses
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.kernels.linear import Scattering
from runtime.kernels.scatter_blocks import ScatterKernel
from runtime.model.config import ModelConfig
from runtime.model.model import STACKED, Model, Params, Tensor, abstract_params, map_tensors
from runtime.parallel.collectives import gather, splits, stand_in
from runtime.parallel.mesh import COPY_AXES, DATA_AXES, copy_size

PartT = TypeVar("PartT")


def check_placement(config: ModelConfig, mesh: Mesh) -> None:
    """Raise ValueError where the mesh cannot hold the model."""
    config.check_divides(copy_size=copy_size(mesh), model_axis=mesh.shape["model"])


def parameter_specs(model: Model) -> Params:
    """Return a partition spec for each tensor; the stacking axis of the layers is never split."""

    def spec(name: str, tensor: Tensor, _: Any) -> PartitionSpec:
        return PartitionSpec(None, *tensor.spec) if name.startswith(STACKED) else tensor.spec

    return map_tensors(model, spec, abstract_params(model))


def shardings(specs: PartT, mesh: Mesh) -> PartT:
    """Return the same tree with a `NamedSharding` for each spec."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)


def is_spec(leaf: object) -> bool:
    """Return whether a node of a tree is a partition spec."""
    return isinstance(leaf, PartitionSpec)


@dataclasses.dataclass(frozen=True)
class Sharded:
    """The `Gather` of parameters placed by `parameter_specs`, inside `jax.shard_map`.

    Gradients come back split as the parameters are and summed over all axes but replica. The caller sums over that
    one, once a step and not once a micro-batch.
    """

    has_collectives: ClassVar[bool] = True
    model: Model
    axis_sizes: tuple[tuple[str, int], ...]
    compute_dtype: np.dtype
    reduce_dtype: np.dtype
    scatter_kernel: ScatterKernel = "xla"

    def __call__(self, name: str, part: PartT) -> PartT:
        sizes = dict(self.axis_sizes)

        def gather_one(name: str, tensor: Tensor, shard: jax.Array) -> jax.Array | Scattering:
            # Each device has seen other tokens, or other heads: a gradient is the sum over all of them.
            split = splits(tensor.spec, sizes)
            copied = tuple(axis for axis in COPY_AXES if sizes[axis] > 1 and not split)
            own_columns = {index for index, entry in enumerate(tensor.spec) if entry == "model"}
            gathered = tuple((dimension, axis) for dimension, axis in split if dimension not in own_columns)
            if self.scatter_kernel == "pallas_tpu" and name.startswith(STACKED) and shard.ndim == 2:
                if not gathered or gathered[0][1] not in DATA_AXES:
                    raise ValueError(
                        "scatter kernel 'pallas_tpu': no data axis of this mesh scatters gradients; use 'xla'."
                    )
                whole = gather(lax.stop_gradient(shard), gathered, copied, self.compute_dtype, self.reduce_dtype)
                return Scattering(whole, stand_in(shard, gathered, self.reduce_dtype), *gathered[0])
            return gather(shard, gathered, copied, self.compute_dtype, self.reduce_dtype)

        gathered_part: PartT = map_tensors(self.model, gather_one, part, prefix=name)
        return gathered_part
