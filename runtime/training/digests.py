"""Digests of parameters, which are equal on any mesh for equal bits, and a monitor of the copies that a mesh holds.

Each value is mixed with its index in the whole array, and all are added as 32-bit integers, in any order, so each
device reads only what it holds. Two sums make 64 bits per tensor. They are no defence against forgery.

All copies of a parameter take the same training steps, so only a device that computes or remembers wrongly can separate
them. BLOOM-176B met such a fault, never found its cause, and averaged its copies in every forward pass.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, UInt32

from runtime.model.model import leaves_by_name
from runtime.training.observer import Alarm

_LANES = (0x9E3779B9, 0x85EBCA6B)
_STRIDES = (0x27D4EB2F, 0x165667B1, 0x9E3779B1, 0xC2B2AE3D)  # odd, and one per axis, so that axes do not fold


class Digests(NamedTuple):
    """`whole` covers the name and the digest of every tensor; both are hexadecimal."""

    whole: str
    tensors: dict[str, str]


@jax.jit
def begin_digests(params: object) -> dict[str, Array]:
    """Start the computation on the devices without waiting; every host must call it."""
    return {name: digest_of(leaf) for name, leaf in leaves_by_name(params).items()}


def finish_digests(started: dict[str, Array]) -> Digests:
    words = {name: np.asarray(jax.device_get(lanes)) for name, lanes in started.items()}
    tensors = {name: "".join(f"{lane:08x}" for lane in lanes.tolist()) for name, lanes in words.items()}
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(tensors.items()))
    return Digests(hashlib.sha256(lines.encode()).hexdigest()[:16], tensors)


def digest_of(values: Array) -> UInt32[Array, "2"]:
    """Return the two sums of one array, or of a shard of one."""
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis, stride in zip(range(bits.ndim), _STRIDES, strict=False):
        place += lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride)
    sums = [jnp.sum(_mixed(bits ^ _mixed(place + jnp.uint32(lane))), dtype=jnp.uint32) for lane in _LANES]
    return jnp.stack(sums)


def _mixed(words: Array) -> Array:
    """Apply the finalizer of MurmurHash3: each bit of a word reaches all bits of the result."""
    words = (words ^ (words >> jnp.uint32(16))) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> jnp.uint32(16))


class Copies:
    """The copies of one attempt, all equal at `begin_step`, where one checkpoint or one program made them."""

    def __init__(self, begin_step: int) -> None:
        self._same_step = begin_step
        self.are_apart = False
        """Whether a comparison found them to differ; copies do not converge again."""

    def observe(self, step: int, apart: Sequence[str]) -> list[Alarm]:
        """Return the alarm of the first comparison that finds tensors `apart`."""
        if not apart:
            self._same_step = step
        if not apart or self.are_apart:
            return []
        self.are_apart = True
        return [Alarm("copies", step, float(len(apart)), 0.0, {"tensors": apart, "same_step": self._same_step})]


def begin_comparison(params: object) -> dict[str, Bool[Array, ""]]:
    """Start to compare the copies of each tensor on the devices, without waiting; every host must call it.

    Tensors with a single copy are left out.
    """
    copied = {
        name: leaf
        for name, leaf in leaves_by_name(params).items()
        if isinstance(leaf.sharding, NamedSharding) and _axes_of_copies(leaf.sharding.mesh, leaf.sharding.spec)
    }
    if not copied:
        return {}
    (mesh,) = {leaf.sharding.mesh for leaf in copied.values()}
    specs = tuple(leaf.sharding.spec for leaf in copied.values())
    return dict(zip(copied, _comparison(mesh, specs)(*copied.values()), strict=True))


def finish_comparison(started: dict[str, Array]) -> list[str]:
    """Wait for `begin_comparison`, and return the tensors whose copies differ."""
    return [name for name, are_apart in jax.device_get(started).items() if are_apart]


@functools.cache
def _comparison(mesh: Mesh | AbstractMesh, specs: tuple[PartitionSpec, ...]) -> Callable[..., tuple[Array, ...]]:
    def are_apart(*parts: Array) -> tuple[Array, ...]:
        found = []
        for part, spec in zip(parts, specs, strict=True):
            words = lax.bitcast_convert_type(digest_of(part), jnp.int32)  # some devices compare signed integers only
            copies = _axes_of_copies(mesh, spec)
            is_apart = jnp.any(lax.pmin(words, copies) != lax.pmax(words, copies))
            others = tuple(axis for axis in mesh.axis_names if axis not in copies)
            found.append(lax.pmax(is_apart.astype(jnp.int32), others) > 0)
        return tuple(found)

    whole = tuple(PartitionSpec() for _ in specs)
    return jax.jit(jax.shard_map(are_apart, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False))


def _axes_of_copies(mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> tuple[str, ...]:
    """Return the axes of several devices that do not split the tensor."""
    splitting = {axis for part in spec if part is not None for axis in ((part,) if isinstance(part, str) else part)}
    return tuple(axis for axis, size in mesh.shape.items() if size > 1 and axis not in splitting)
