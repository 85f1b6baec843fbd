"""Digests of parameters: equal bits give equal digests, whatever the mesh that they lie on, and on each copy of them.

Each value is mixed with its place in the whole array and all are added up as 32-bit integers, which no order of
summing changes: so each device reads only what it holds, and a replay on other devices can be compared as well. Two
such sums make 64 bits a tensor. They find faults and nondeterminism; they are no defence against forgery.
"""

import functools
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, UInt32

_LANES = (0x9E3779B9, 0x85EBCA6B)
_STRIDES = (0x27D4EB2F, 0x165667B1, 0x9E3779B1, 0xC2B2AE3D)  # one an axis, odd, so that no axis folds onto another


class Digests(NamedTuple):
    """`whole` covers the name and the digest of every tensor; both are hexadecimal."""

    whole: str
    tensors: dict[str, str]


@jax.jit
def begin_digests(params: object) -> dict[str, Array]:
    """Starts to compute the digests on the devices, without waiting; every host must call it."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): _digest(leaf) for path, leaf in leaves}


def finish_digests(begun: dict[str, Array]) -> Digests:
    """Waits for what `begin_digests` started."""
    words = {name: np.asarray(jax.device_get(lanes)) for name, lanes in begun.items()}
    tensors = {name: "".join(f"{lane:08x}" for lane in lanes.tolist()) for name, lanes in words.items()}
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(tensors.items()))
    return Digests(hashlib.sha256(lines.encode()).hexdigest()[:16], tensors)


def begin_comparison(params: object) -> dict[str, Bool[Array, ""]]:
    """Starts to compare the copies that a mesh holds of each tensor, on the devices, without waiting.

    Every host must call it. What `finish_comparison` finds unlike is no rounding: copies take the same updates, so that
    only a device that computed or remembered wrongly can set them apart. Tensors that have one copy are left out.
    """
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    copied = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in leaves
        if isinstance(leaf.sharding, NamedSharding) and _axes_of_copies(leaf.sharding.mesh, leaf.sharding.spec)
    }
    if not copied:
        return {}
    (mesh,) = {leaf.sharding.mesh for leaf in copied.values()}
    specs = tuple(leaf.sharding.spec for leaf in copied.values())
    return dict(zip(copied, _comparison(mesh, specs)(*copied.values()), strict=True))


def finish_comparison(begun: dict[str, Array]) -> list[str]:
    """Waits for what `begin_comparison` started; the tensors whose copies are not the same."""
    return [name for name, are_apart in jax.device_get(begun).items() if are_apart]


@functools.cache
def _comparison(mesh: Mesh | AbstractMesh, specs: tuple[PartitionSpec, ...]) -> Callable[..., tuple[Array, ...]]:
    def are_apart(*parts: Array) -> tuple[Array, ...]:
        found = []
        for part, spec in zip(parts, specs, strict=True):
            words = lax.bitcast_convert_type(_digest(part), jnp.int32)  # some devices compare signed numbers alone
            copies = _axes_of_copies(mesh, spec)
            is_apart = jnp.any(lax.pmin(words, copies) != lax.pmax(words, copies))
            others = tuple(axis for axis in mesh.axis_names if axis not in copies)
            found.append(lax.pmax(is_apart.astype(jnp.int32), others) > 0)
        return tuple(found)

    whole = tuple(PartitionSpec() for _ in specs)
    return jax.jit(jax.shard_map(are_apart, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False))


def _axes_of_copies(mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> tuple[str, ...]:
    """Those of more than one device that do not split the tensor."""
    splitting = {axis for part in spec if part is not None for axis in ((part,) if isinstance(part, str) else part)}
    return tuple(axis for axis, size in mesh.shape.items() if size > 1 and axis not in splitting)


def _digest(values: Array) -> UInt32[Array, "2"]:
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis, stride in zip(range(bits.ndim), _STRIDES, strict=False):
        place += lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride)
    sums = [jnp.sum(_mixed(bits ^ _mixed(place + jnp.uint32(lane))), dtype=jnp.uint32) for lane in _LANES]
    return jnp.stack(sums)


def _mixed(words: Array) -> Array:
    """The finalizer of MurmurHash3: each bit of a word reaches all bits of the result."""
    words = (words ^ (words >> jnp.uint32(16))) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> jnp.uint32(16))
