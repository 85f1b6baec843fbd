"""Where each parameter lives: split along its hidden_size dimension over all axes but replica, which holds copies.

Every tensor of a Llama but the QK-norms has a dimension of size hidden_size. The other dimension of the matrices of a
layer is one of heads or of intermediate_size: there the model axis splits it instead, for good. A device computes
with its own heads and columns and never gathers those of others.
"""

import dataclasses
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.kernels.linear import Scattering
from runtime.kernels.scatter_blocks import ScatterKernel
from runtime.model.config import LlamaConfig
from runtime.model.llama import Llama, LlamaLayers
from runtime.parallel.collectives import gather, splits, stand_in
from runtime.parallel.mesh import COPY_AXES, DATA_AXES, copy_size

PartT = TypeVar("PartT")

_FIRST, _SECOND = PartitionSpec(COPY_AXES), PartitionSpec(None, COPY_AXES)
_BUT_MODEL = tuple(axis for axis in COPY_AXES if axis != "model")
_IN, _OUT = PartitionSpec(_BUT_MODEL, "model"), PartitionSpec("model", _BUT_MODEL)
_LAYERS = {
    "input_layernorm": _FIRST,
    "q_proj": _IN,
    "k_proj": _IN,
    "v_proj": _IN,
    "o_proj": _OUT,
    "q_norm": PartitionSpec(),
    "k_norm": PartitionSpec(),
    "post_attention_layernorm": _FIRST,
    "gate_proj": _IN,
    "up_proj": _IN,
    "down_proj": _OUT,
}


def check_placement(config: LlamaConfig, mesh: Mesh) -> None:
    """Raises where the mesh cannot hold the model."""
    config.refuse_undivided(copy_size=copy_size(mesh), model_axis=mesh.shape["model"])


def layer_specs(config: LlamaConfig) -> LlamaLayers:
    """A partition spec for each tensor of one layer, as the scan sees it."""
    absent = () if config.use_qk_norm else ("q_norm", "k_norm")
    specs: dict[str, Any] = {name: None if name in absent else spec for name, spec in _LAYERS.items()}
    return bundle(LlamaLayers, specs)


def parameter_specs(config: LlamaConfig) -> Llama:
    """A partition spec for each tensor of the model; the stacking axis of the layers is never split."""
    stacked = jax.tree.map(lambda spec: PartitionSpec(None, *spec), layer_specs(config), is_leaf=_is_spec)
    head = None if config.tie_word_embeddings else _FIRST
    return bundle(Llama, {"embed_tokens": _SECOND, "layers": stacked, "norm": _FIRST, "lm_head": head})


def bundle(kind: type[PartT], fields: dict[str, Any]) -> PartT:
    """A module of `kind` whose fields are not arrays, which its constructor would rightly refuse."""
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def shardings(specs: PartT, mesh: Mesh) -> PartT:
    """The same tree with a `NamedSharding` for each spec."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=_is_spec)


@dataclasses.dataclass(frozen=True)
class Sharded:
    """The `Gather` of a model whose parameters are placed by `parameter_specs`, inside `jax.shard_map`.

    Gradients come back split as the parameters are and summed over all axes but replica, which is left to the
    caller, who sums once a step and not once a micro-batch.
    """

    has_collectives: ClassVar[bool] = True
    config: LlamaConfig
    axis_sizes: tuple[tuple[str, int], ...]
    compute_dtype: np.dtype
    reduce_dtype: np.dtype
    scatter_kernel: ScatterKernel = "xla"

    def __call__(self, name: str, part: PartT) -> PartT:
        specs = layer_specs(self.config) if name == "layers" else getattr(parameter_specs(self.config), name)
        sizes = dict(self.axis_sizes)

        def gather_one(spec: PartitionSpec, shard: jax.Array) -> jax.Array | Scattering:
            # Each device has seen other tokens, or other heads: a gradient is the sum over all of them.
            split = splits(spec, sizes)
            copied = tuple(axis for axis in COPY_AXES if sizes[axis] > 1 and not split)
            own_columns = {index for index, entry in enumerate(spec) if entry == "model"}
            gathered = tuple((dimension, axis) for dimension, axis in split if dimension not in own_columns)
            if self.scatter_kernel == "pallas_tpu" and name == "layers" and shard.ndim == 2:
                if not gathered or gathered[0][1] not in DATA_AXES:
                    raise ValueError(
                        "scatter kernel 'pallas_tpu': no data axis of this mesh scatters gradients; use 'xla'."
                    )
                whole = gather(lax.stop_gradient(shard), gathered, copied, self.compute_dtype, self.reduce_dtype)
                return Scattering(whole, stand_in(shard, gathered, self.reduce_dtype), *gathered[0])
            return gather(shard, gathered, copied, self.compute_dtype, self.reduce_dtype)

        return jax.tree.map(gather_one, specs, part, is_leaf=_is_spec)


def _is_spec(value: object) -> bool:
    return isinstance(value, PartitionSpec)
