"""Leaves of a state: their names, and how their shards are cut into chunks."""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from runtime.model.model import leaves_by_name

MAX_CHUNK_IN_BYTES = 64 * 2**20
"""Largest chunk of a shard; chunks are written and read in parallel."""

Index = tuple[slice, ...]


class Leaf(NamedTuple):
    """A leaf as it is stored; `array` is None where only the shape is known."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sharding: Sharding | None
    array: jax.Array | None

    @property
    def described(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def named_leaves(tree: object) -> list[Leaf]:
    """Return all leaves: arrays, or their shapes."""
    leaves = []
    for name, leaf in leaves_by_name(tree).items():
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
            raise TypeError(f"{name}: {type(leaf).__name__} {leaf!r} cannot be saved; make it a jax.Array.")
        array = leaf if isinstance(leaf, jax.Array) else None
        leaves.append(Leaf(name, tuple(leaf.shape), np.dtype(leaf.dtype).name, leaf.sharding, array))
    return leaves


def chunk_shape_of(shard_shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the shape of a shard with leading axes divided until a chunk is small enough."""
    chunk = [max(size, 1) for size in shard_shape]
    for axis, size in enumerate(chunk):
        excess = math.prod(chunk) * itemsize / MAX_CHUNK_IN_BYTES
        if excess > 1:
            pieces = next(pieces for pieces in range(1, size + 1) if size % pieces == 0 and pieces >= min(excess, size))
            chunk[axis] = size // pieces
    return tuple(chunk)


def chunk_starts(first: tuple[int, ...], last: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Return the first indices of the chunks that intersect the box [first, last)."""
    return itertools.product(*(range(a // size * size, b, size) for a, b, size in zip(first, last, chunk, strict=True)))


def box_of(index: Index, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first index along each axis, and the one past the last."""
    bounds = [piece.indices(size) for piece, size in zip(index, shape, strict=True)]
    return tuple(first for first, _, _ in bounds), tuple(last for _, last, _ in bounds)


def held_indices(leaf: Leaf) -> list[Index]:
    """Return the parts of a leaf that this process's devices hold."""
    whole = tuple(slice(None) for _ in leaf.shape)
    if leaf.sharding is None:
        return [whole]
    return [index or whole for index in leaf.sharding.addressable_devices_indices_map(leaf.shape).values()]
