"""Where each parameter lives: split along its hidden_size dimension over the data axes, copied over the others.

One rule for all tensors. Every tensor of a Llama but the QK-norms has a dimension of size hidden_size, so a mesh fits
if and only if the product of its data axes divides hidden_size.
"""

import dataclasses
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.model.config import LlamaConfig
from runtime.model.llama import Llama, LlamaLayers
from runtime.parallel.collectives import gather, splits
from runtime.parallel.mesh import DATA_AXES, data_size

PartT = TypeVar("PartT")

_FIRST, _SECOND = PartitionSpec(DATA_AXES), PartitionSpec(None, DATA_AXES)
_LAYERS = {
    "input_layernorm": _FIRST,
    "q_proj": _FIRST,
    "k_proj": _FIRST,
    "v_proj": _FIRST,
    "o_proj": _SECOND,
    "q_norm": PartitionSpec(),
    "k_norm": PartitionSpec(),
    "post_attention_layernorm": _FIRST,
    "gate_proj": _FIRST,
    "up_proj": _FIRST,
    "down_proj": _SECOND,
}


def check_placement(config: LlamaConfig, mesh: Mesh) -> None:
    """Raises where the mesh cannot hold the model."""
    if config.hidden_size % data_size(mesh):
        raise ValueError(
            f"LlamaConfig.hidden_size is {config.hidden_size}, which the data axes of {data_size(mesh)} devices "
            "do not divide; choose data axes that do, and put the other devices on the replica axis."
        )


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

    Gradients come back split as the parameters are and summed over the data axes; the replica axis is left to the
    caller, who sums once a step and not once a micro-batch.
    """

    config: LlamaConfig
    axis_sizes: tuple[tuple[str, int], ...]
    compute_dtype: np.dtype
    reduce_dtype: np.dtype

    def __call__(self, name: str, part: PartT) -> PartT:
        specs = layer_specs(self.config) if name == "layers" else getattr(parameter_specs(self.config), name)
        sizes = dict(self.axis_sizes)

        def gather_one(spec: PartitionSpec, shard: jax.Array) -> jax.Array:
            split = splits(spec, sizes)
            split_axes = {axis for _, axis in split}
            sum_axes = tuple(axis for axis in DATA_AXES if sizes[axis] > 1 and axis not in split_axes)
            return gather(shard, split, sum_axes, self.compute_dtype, self.reduce_dtype)

        return jax.tree.map(gather_one, specs, part, is_leaf=_is_spec)


def _is_spec(value: object) -> bool:
    return isinstance(value, PartitionSpec)
