"""Norms of each part of the model, as the train step computes them; `runtime.tracking.parts` defines a part.

The sums of squares of all parts share one collective, and the global norm is the root of their sum. Each value is
squared and added once, so the norms of all parts cost as much as the global norm alone.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float32

from runtime.model.config import ModelConfig
from runtime.model.model import STACKED, Params, leaves_by_name
from runtime.model.placement import is_spec, parameter_specs
from runtime.parallel.collectives import splits
from runtime.parallel.mesh import COPY_AXES
from runtime.tracking.parts import Tensor


def tensors_of(params: object) -> tuple[Tensor, ...]:
    """Return the tensors of a tree of parameters or of their shapes, in the order of its leaves."""
    named = leaves_by_name(params).items()
    return tuple(Tensor(name, leaf.shape[0] if name.startswith(STACKED) else None) for name, leaf in named)


def squares_of_parts(trees: Sequence[Params], *, config: ModelConfig, mesh: Mesh) -> Float32[Array, "trees parts"]:
    """Return sums of squares over all devices, inside `jax.shard_map`; a value counts once, split or copied.

    `trees` are like the parameters, and sharded like them; all share one collective.
    """
    tensors, sizes = tensors_of(trees[0]), dict(mesh.shape)
    own = jnp.stack([_own_squares(tree, tensors) for tree in trees])
    axes = tuple(axis for axis in COPY_AXES if sizes[axis] > 1)
    if not axes:
        return own
    specs = jax.tree.leaves(parameter_specs(config.build()), is_leaf=is_spec)
    is_split = [bool(splits(spec, sizes)) for spec, tensor in zip(specs, tensors, strict=True) for _ in tensor.parts]
    return jnp.where(np.array(is_split), lax.psum(own.reshape(-1), axes).reshape(own.shape), own)


def _own_squares(tree: Params, tensors: Sequence[Tensor]) -> Float32[Array, "parts"]:
    sums = []
    for leaf, tensor in zip(jax.tree.leaves(tree), tensors, strict=True):
        axes = tuple(range(0 if tensor.num_layers is None else 1, leaf.ndim))
        sums.append(jnp.sum(jnp.square(leaf), axis=axes).reshape(-1))
    return jnp.concatenate(sums)
