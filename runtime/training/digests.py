"""Digests of parameters: equal bits give equal digests on any mesh.

Each value is mixed with its index in the whole array, and all are added as 32-bit integers, in any order, so each
device reads only what it holds. Two sums make 64 bits a tensor. They are no defence against forgery.
"""

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, UInt32

from runtime.model.model import leaves_by_name

_LANES = (0x9E3779B9, 0x85EBCA6B)
_STRIDES = (0x27D4EB2F, 0x165667B1, 0x9E3779B1, 0xC2B2AE3D)  # odd and one an axis, so that axes do not fold


class Digests(NamedTuple):
    """`whole` covers the name and the digest of every tensor; both are hexadecimal."""

    whole: str
    tensors: dict[str, str]


@jax.jit
def begin_digests(params: object) -> dict[str, Array]:
    """Start the computation on the devices without waiting; every host must call it."""
    return {name: digest_of(leaf) for name, leaf in leaves_by_name(params).items()}


def finish_digests(started: dict[str, Array]) -> Digests:
    """Wait for the computation that `begin_digests` started."""
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
