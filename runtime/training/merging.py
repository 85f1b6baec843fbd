"""MergedLeaf: the weighted sum of a leaf over several checkpoints, computed chunk by chunk.

Averages of checkpoints of one run stand in for a decay of the learning rate (arXiv:2505.12082, arXiv:2507.17634); those
of branches are model soups (arXiv:2203.05482).
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from runtime.training.checkpoint import leaf_prefix
from runtime.training.checkpoint_reader import CheckpointError, Leaf, Reader, chunk_starts


class Part(NamedTuple):
    """Weights of one checkpoint, and their coefficient in the sum."""

    reader: Reader
    prefix: str
    """Prefix of the names of their leaves."""
    coefficient: float

    @classmethod
    def open(cls, checkpoint: str, weights: str, coefficient: float) -> "Part":
        """Open a checkpoint; raise CheckpointError where it is missing or lacks these weights."""
        reader = Reader(checkpoint)
        return cls(reader, leaf_prefix(reader, weights), coefficient)

    def leaves(self) -> dict[str, Leaf]:
        """Return the leaves by their dotted paths in the parameters."""
        return {
            name.removeprefix(self.prefix): Leaf(name, tuple(entry["shape"]), entry["dtype"], None, None)
            for name, entry in self.reader.manifest.leaves.items()
            if name.startswith(self.prefix)
        }


class MergedLeaf:
    """A float32 leaf of the sum, in the first checkpoint's chunks; one chunk of each checkpoint is in memory."""

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        self._name, self._parts = name, parts
        first = parts[0]
        entry = first.reader.manifest.leaves[f"{first.prefix}{name}"]
        self.shape = tuple(entry["shape"])
        self.chunk_shape = tuple(entry["chunk_shape"])

    def pieces(self, chunk_shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        """Yield its chunks, the last axis fastest; raise CheckpointError if a value is not finite."""
        with ThreadPoolExecutor(len(self._parts)) as pool:  # one request at a time would take hours in a bucket
            for first in chunk_starts((0,) * len(self.shape), self.shape, chunk_shape):
                last = tuple(at + size for at, size in zip(first, chunk_shape, strict=True))
                total = np.zeros(chunk_shape, np.float32)
                reads = pool.map(functools.partial(self._read, first, last), self._parts)
                for part, read in zip(self._parts, reads, strict=True):
                    total += np.float32(part.coefficient) * read
                yield total

    def _read(self, first: tuple[int, ...], last: tuple[int, ...], part: Part) -> np.ndarray:
        read = part.reader.read_box(f"{part.prefix}{self._name}", first, last)
        if not np.isfinite(read).all():
            raise CheckpointError(
                f"{part.reader.path}: {part.prefix}{self._name} has values that are not finite, so the model diverged; "
                "merge earlier checkpoints."
            )
        return read


def merged_leaves(parts: Sequence[Part]) -> Mapping[str, MergedLeaf]:
    """Return the leaves of the sum by their dotted paths in the parameters; read only manifests.

    Raises:
        CheckpointError: a leaf of one checkpoint is missing in another, or has another shape or dtype there.
    """
    first = parts[0].leaves()
    for part in parts[1:]:
        other = part.leaves()
        for name in sorted(first.keys() | other.keys()):
            ours, theirs = (leaves[name].described if name in leaves else "missing" for leaves in (first, other))
            if ours != theirs:
                raise CheckpointError(
                    f"{part.reader.path}: leaf {name} is {theirs}, and {ours} in {parts[0].reader.path}, so they are "
                    "of different models; merge checkpoints of one model."
                )
    return {name: MergedLeaf(name, parts) for name in first}
