"""Leaves of a state, and the reader of a complete checkpoint, which verifies every file by the manifest."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from runtime.model.model import leaves_by_name
from runtime.training.checkpoint_files import CheckpointFiles, ChunkedArray, answer, canonical_json, crc32c

FORMAT = 3
MAX_CHUNK_IN_BYTES = 64 * 2**20
"""Largest chunk of a shard; chunks are written and read in parallel."""
Index = tuple[slice, ...]

RESTORE_A_MILESTONE = (
    "rerun the step that made it with --force, restore the file from a copy, or use another milestone."
)


class CheckpointError(RuntimeError):
    """A checkpoint that is torn, missing, or of another state."""


class TornCheckpointError(CheckpointError):
    """A complete checkpoint with a damaged or missing file, which `damage` names."""

    def __init__(self, damage: str, fix: str = RESTORE_A_MILESTONE) -> None:
        super().__init__(f"{damage}; {fix}")
        self.damage, self.fix = damage, fix

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.damage, self.fix)


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


class Manifest(NamedTuple):
    """The verified content of `manifest.json`."""

    leaves: dict[str, dict[str, Any]]
    """Name -> dtype, shape and chunk_shape."""
    files: dict[str, dict[str, int]]
    """Key -> size and CRC32C."""
    lease_epoch: int | None


class Reader:
    """An open checkpoint; opening verifies the manifest, and reading verifies each file."""

    def __init__(self, path: str) -> None:
        """Read the manifest; raise CheckpointError where there is none, or one that is damaged or of another format."""
        self.path = path.rstrip("/")
        parent, _, self.name = self.path.rpartition("/")
        self.files = CheckpointFiles(parent or ".")
        data = self.files.read(f"{self.name}/manifest.json")
        if data is None:
            raise CheckpointError(
                f"{self.path}: there is no complete checkpoint here (no manifest.json); check the path, or start from "
                "another milestone."
            )
        try:
            body = json.loads(data)
            seal = body.pop("crc32c")
            # Another format may be sealed in another way.
            has_other_format = body["format"] != FORMAT
            sealed = canonical_json({**body, "crc32c": crc32c(canonical_json(body, "manifest"))}, "manifest")
            if not has_other_format and data != sealed:
                raise ValueError(f"it does not match its CRC32C {seal}")
        except KeyError as error:
            raise self._torn("manifest.json", f"it has no {error}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise self._torn("manifest.json", str(error)) from error
        if has_other_format:
            raise CheckpointError(
                f"{self.path}: manifest.json has format {body['format']}, and this program reads format {FORMAT}; use "
                "the version of the program that wrote it."
            )
        self.manifest = Manifest(body["leaves"], body["files"], body.get("lease_epoch"))

    def _torn(self, key: str, what: str) -> TornCheckpointError:
        below = key.removeprefix(f"{self.name}/arrays/")
        owner = f"leaf {below.rpartition('/')[0]} (file {key})" if below != key else f"file {key}"
        return TornCheckpointError(
            f"{self.path}: {owner} is damaged: {what}. The checkpoint is torn, and nothing of it is used"
        )

    def read(self, key: str) -> bytes:
        """Return the bytes of a file; raise TornCheckpointError where it is damaged or missing."""
        return self._verified(key, self.files.read(key), self.manifest.files.get(key))

    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.read(f"{self.name}/metadata.json"))
        return found

    def read_parts(self, key: str) -> list[bytes]:
        """Return the bytes of all files in the folder `key`, in order of their names."""
        parts = sorted(each for each in self.manifest.files if each.startswith(f"{key}/"))
        return [self.read(each) for each in parts or [key]]

    def _verified(self, key: str, data: bytes | None, recorded: Mapping[str, Any] | None) -> bytes:
        if data is None:
            raise self._torn(key, "the file is missing")
        if recorded is None:
            raise self._torn(key, "the manifest does not list the file")
        if len(data) != recorded["size"]:
            raise self._torn(key, f"it has {len(data)} bytes, and the manifest has {recorded['size']}")
        found = crc32c(data)
        if found != recorded["crc32c"]:
            raise self._torn(key, f"its CRC32C is {found:08x}, and the manifest has {recorded['crc32c']:08x}")
        return data

    def start_leaf(self, leaf: Leaf) -> tuple[ChunkedArray, dict[tuple[int, ...], Any]]:
        """Start to read every chunk of a leaf that this process needs."""
        recorded = self.manifest.leaves[leaf.name]
        key = f"{self.name}/arrays/{leaf.name}"
        array = ChunkedArray(self.files, key, leaf.shape, tuple(recorded["chunk_shape"]), leaf.dtype)
        if array.description_key in self.manifest.files:
            self.read(array.description_key)
        starts: dict[tuple[int, ...], Any] = {}
        for index in held_indices(leaf):
            for start in chunk_starts(*box_of(index, leaf.shape), array.chunk_shape):
                if start not in starts:
                    starts[start] = array.read_chunk(start)
        return array, starts

    def finish_leaf(self, leaf: Leaf, array: ChunkedArray, reads: dict[tuple[int, ...], Any]) -> jax.Array:
        """Wait for the `reads` of `start_leaf`, and return the leaf with its sharding.

        Raises:
            TornCheckpointError: a chunk is damaged or missing.
            OSError: a chunk cannot be read, and may be good.
        """
        chunks = {start: self._chunk(array, start, future) for start, future in reads.items()}
        whole = tuple(slice(None) for _ in leaf.shape)

        def held(index: Index | None) -> np.ndarray:
            return _cut(array, chunks, *box_of(index or whole, leaf.shape))

        if leaf.sharding is None:
            return jax.numpy.asarray(held(whole))
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, held)

    def read_box(self, name: str, first: tuple[int, ...], last: tuple[int, ...]) -> np.ndarray:
        """Return the box [first, last) of a leaf, with the chunks that it intersects in memory.

        Raises:
            TornCheckpointError: a chunk is damaged or missing.
            OSError: a chunk cannot be read, and may be good.
        """
        entry = self.manifest.leaves[name]
        shape, chunk_shape = tuple(entry["shape"]), tuple(entry["chunk_shape"])
        array = ChunkedArray(self.files, f"{self.name}/arrays/{name}", shape, chunk_shape, entry["dtype"])
        reads = {start: array.read_chunk(start) for start in chunk_starts(first, last, chunk_shape)}
        chunks = {start: self._chunk(array, start, future) for start, future in reads.items()}
        return _cut(array, chunks, first, last)

    def _chunk(self, array: ChunkedArray, start: tuple[int, ...], future: Any) -> np.ndarray:
        key = array.chunk_key(start)
        try:
            result = answer(future, f"{self.files.folder}/{key}")
        except ValueError as error:  # a file that is cut short on its way
            raise self._torn(key, str(error)) from error
        data = bytes(result.value) if result.state == "value" else None
        data = self._verified(key, data, self.manifest.files.get(key))
        return np.frombuffer(data, np.dtype(array.dtype).newbyteorder("<")).reshape(array.chunk_shape)


def _cut(
    array: ChunkedArray, chunks: Mapping[tuple[int, ...], np.ndarray], first: tuple[int, ...], last: tuple[int, ...]
) -> np.ndarray:
    """Return the box [first, last) of an array from the chunks that it intersects."""
    extent = tuple(b - a for a, b in zip(first, last, strict=True))
    if first in chunks and chunks[first].shape == extent:
        return chunks[first]
    block = np.empty(extent, np.dtype(array.dtype))
    for start in chunk_starts(first, last, array.chunk_shape):
        ends = [at + size for at, size in zip(start, array.chunk_shape, strict=True)]
        low = [max(a, at) for a, at in zip(first, start, strict=True)]
        high = [min(b, end) for b, end in zip(last, ends, strict=True)]
        into = tuple(slice(a - f, b - f) for a, b, f in zip(low, high, first, strict=True))
        within = tuple(slice(a - at, b - at) for a, b, at in zip(low, high, start, strict=True))
        block[into] = chunks[start][within]
    return block


def check_same_state(path: str, manifest: Manifest, leaves: list[Leaf], *, partial: bool) -> None:
    """Raise CheckpointError where a leaf is missing, differs from the state, or (unless `partial`) is not in it."""
    names = {leaf.name for leaf in leaves}
    for leaf in leaves:
        recorded = manifest.leaves.get(leaf.name)
        if recorded is None:
            raise CheckpointError(
                f"{path}: the checkpoint has no leaf {leaf.name}, which the state needs as {leaf.described}; the run "
                "that wrote it has another model or other averages. Start from a checkpoint that has the leaf, or "
                'restore less: restore="weights".'
            )
        found = Leaf(leaf.name, tuple(recorded["shape"]), recorded["dtype"], None, None)
        if found.described != leaf.described:
            raise CheckpointError(
                f"{path}: leaf {leaf.name} is {found.described} in the checkpoint and {leaf.described} in the state; "
                "the run that wrote it has another model. Use that model, or start from scratch."
            )
    surplus = sorted(set(manifest.leaves) - names)
    if surplus and not partial:
        raise CheckpointError(
            f"{path}: leaf {surplus[0]} of the checkpoint ({len(surplus)} in all) has no place in the state; the run "
            "that wrote it has another model or other averages. Give the phase the same, or restore less: "
            'restore="weights".'
        )


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
