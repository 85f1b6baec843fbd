"""Digests of parameters: equal bits give equal digests, whatever the mesh that they lie on.

Each value is mixed with its place in the whole array and all are added up as 32-bit integers, which no order of
summing changes: so each device reads only what it holds, and a replay on other devices can be compared as well. Two
such sums make 64 bits a tensor. They find faults and nondeterminism; they are no defence against forgery.
"""

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, UInt32

from runtime.training.checkpoint_leaves import leaves_by_name

_LANES = (0x9E3779B9, 0x85EBCA6B)
_STRIDES = (0x27D4EB2F, 0x165667B1, 0x9E3779B1, 0xC2B2AE3D)  # one an axis, odd, so that no axis folds onto another


class Digests(NamedTuple):
    """`whole` covers the name and the digest of every tensor; both are hexadecimal."""

    whole: str
    tensors: dict[str, str]


@jax.jit
def begin_digests(params: object) -> dict[str, Array]:
    """Starts to compute the digests on the devices, without waiting; every host must call it."""
    return {name: digest_of(leaf) for name, leaf in leaves_by_name(params).items()}


def finish_digests(begun: dict[str, Array]) -> Digests:
    """Waits for what `begin_digests` started."""
    words = {name: np.asarray(jax.device_get(lanes)) for name, lanes in begun.items()}
    tensors = {name: "".join(f"{lane:08x}" for lane in lanes.tolist()) for name, lanes in words.items()}
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(tensors.items()))
    return Digests(hashlib.sha256(lines.encode()).hexdigest()[:16], tensors)


def digest_of(values: Array) -> UInt32[Array, "2"]:
    """Of one array, or of what a device holds of one."""
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
