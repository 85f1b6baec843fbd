"""A complete checkpoint, opened to be read: nothing of it is used that does not match its manifest."""

import json
from typing import Any, NamedTuple

import jax
import numpy as np

from runtime.training.checkpoint_files import CheckpointFiles, ChunkedArray, answer, canonical_json, crc32c
from runtime.training.checkpoint_leaves import Index, Leaf, box_of, chunk_starts, held_indices

FORMAT = 3
READABLE_FORMATS = (2, FORMAT)
"""In format 2 each array has a `zarr.json`; in 3 it may be left out, as the manifest tells."""
NO_LONGER_KEPT = {"history.num_skipped"}
"""Leaves that a state had when older checkpoints were written. They are checked as all are, and left out."""

FOR_A_MILESTONE = (
    "run the step that made it again with --force, restore the file from a copy, or take another milestone."
)


class CheckpointError(RuntimeError):
    """A checkpoint that is torn, missing, or made for another state."""


class TornCheckpointError(CheckpointError):
    """A file of a complete checkpoint is damaged or gone; `damage` is which, and that nothing of it was used."""

    def __init__(self, damage: str, cure: str = FOR_A_MILESTONE) -> None:
        super().__init__(f"{damage}; {cure}")
        self.damage, self.cure = damage, cure

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.damage, self.cure)


class Manifest(NamedTuple):
    """`leaves`: dtype, shape, chunk_shape (and key_impl for PRNG keys) by name. `files`: size and CRC32C by key."""

    leaves: dict[str, dict[str, Any]]
    files: dict[str, dict[str, int]]
    lease_epoch: int | None


class Reader:
    """A complete checkpoint, opened: its manifest is verified, and each file as it is read."""

    def __init__(self, path: str) -> None:
        """Reads the manifest.

        Raises:
            CheckpointError: there is none, or one of another format.
            TornCheckpointError: it is damaged.
        """
        self.path = path.rstrip("/")
        parent, _, self.name = self.path.rpartition("/")
        self.files = CheckpointFiles(parent or ".")
        data = self.files.read(f"{self.name}/manifest.json")
        if data is None:
            raise CheckpointError(
                f"{self.path}: there is no complete checkpoint here (no manifest.json); "
                "check the path, or start from another milestone."
            )
        try:
            body = json.loads(data)
            seal = body.pop("crc32c")
            # The bytes of another format may have been sealed in another way.
            has_other_format = body["format"] not in READABLE_FORMATS
            sealed = canonical_json({**body, "crc32c": crc32c(canonical_json(body, "manifest"))}, "manifest")
            if not has_other_format and data != sealed:
                raise ValueError(f"it does not match its CRC32C, {seal}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._torn("manifest.json", str(error)) from error
        if has_other_format:
            raise CheckpointError(
                f"{self.path}: manifest.json has format {body['format']}, this program reads "
                f"{' and '.join(map(str, READABLE_FORMATS))}; use the version of the program that wrote it."
            )
        self.manifest = Manifest(body["leaves"], body["files"], body.get("lease_epoch"))

    def _torn(self, key: str, what: str) -> TornCheckpointError:
        return TornCheckpointError(
            f"{self.path}: {self._owner(key)} is damaged: {what}. The checkpoint is torn and nothing of it was used"
        )

    def _owner(self, key: str) -> str:
        below = key.removeprefix(f"{self.name}/arrays/")
        return f"leaf {below.rpartition('/')[0]} (file {key})" if below != key else f"file {key}"

    def refuse_missing_files(self) -> None:
        """Looks for every file of the manifest, in one listing; no file is read.

        Raises:
            TornCheckpointError: one is not there.
            OSError: the listing is not whole.
        """
        present, manifest = self.files.list_keys(f"{self.name}/"), f"{self.name}/manifest.json"
        if manifest not in present and self.files.read(manifest) is not None:
            raise OSError(
                f"{self.path}: the store does not list it, though it can be read; it is not known to be damaged: "
                "renew the credentials or let them list the bucket, then run the same command again."
            )
        for key in sorted(key for key in self.manifest.files if key.startswith(f"{self.name}/")):
            if key not in present:
                raise self._torn(key, "the file is missing")

    def read(self, key: str) -> bytes:
        """A file, verified.

        Raises:
            TornCheckpointError: it is damaged or gone.
        """
        data = self.files.read(key)
        if data is None:
            raise self._torn(key, "the file is missing")
        self._verify(key, data, len(data))
        return data

    def _verify(self, key: str, data: bytes | np.ndarray, size: int) -> None:
        recorded = self.manifest.files.get(key)
        if recorded is None:
            raise self._torn(key, "the manifest does not know the file")
        if size != recorded["size"]:
            raise self._torn(key, f"it has {size} bytes, the manifest says {recorded['size']}")
        found = crc32c(data)
        if found != recorded["crc32c"]:
            raise self._torn(key, f"its CRC32C is {found:08x}, the manifest says {recorded['crc32c']:08x}")

    def start_leaf(self, leaf: Leaf) -> tuple[ChunkedArray, dict[tuple[int, ...], Any]]:
        """Begins to read every chunk that this process needs of a leaf."""
        recorded = self.manifest.leaves[leaf.name]
        key = f"{self.name}/arrays/{leaf.name}"
        array = self.files.array(key, leaf.shape, tuple(recorded["chunk_shape"]), leaf.dtype)
        if array.description_key in self.manifest.files:
            self.read(array.description_key)
        starts: dict[tuple[int, ...], Any] = {}
        for index in held_indices(leaf):
            for start in chunk_starts(*box_of(index, leaf.shape), array.chunk_shape):
                if start not in starts:
                    starts[start] = array.read_chunk(start)
        return array, starts

    def finish_leaf(self, leaf: Leaf, array: ChunkedArray, reads: dict[tuple[int, ...], Any]) -> jax.Array:
        """Waits for the `reads` that `start_leaf` began, and places the leaf as its sharding says.

        Raises:
            TornCheckpointError: a chunk is damaged.
            OSError: a chunk cannot be read, and is not known to be damaged.
        """
        chunks = {}
        whole = tuple(slice(None) for _ in leaf.shape)
        for start, future in reads.items():
            key = array.chunk_key(start)
            try:
                data = np.asarray(answer(future, f"{self.files.folder}/{key}"))
            except ValueError as error:  # a file too short or too long
                raise self._torn(key, str(error)) from error
            self._verify(key, data, data.nbytes)
            chunks[start] = data

        def held(index: Index | None) -> np.ndarray:
            first, last = box_of(index or whole, leaf.shape)
            extent = tuple(b - a for a, b in zip(first, last, strict=True))
            if first in chunks and chunks[first].shape == extent:
                return chunks[first]
            block = np.empty(extent, np.dtype(leaf.dtype))
            for start in chunk_starts(first, last, array.chunk_shape):
                ends = [at + size for at, size in zip(start, array.chunk_shape, strict=True)]
                low = [max(a, at) for a, at in zip(first, start, strict=True)]
                high = [min(b, end) for b, end in zip(last, ends, strict=True)]
                into = tuple(slice(a - f, b - f) for a, b, f in zip(low, high, first, strict=True))
                within = tuple(slice(a - at, b - at) for a, b, at in zip(low, high, start, strict=True))
                block[into] = chunks[start][within]
            return block

        if leaf.key_impl:
            words = jax.numpy.asarray(held(whole))
            keys = jax.random.wrap_key_data(words, impl=leaf.key_impl)
            return keys if leaf.sharding is None else jax.device_put(keys, leaf.sharding)
        if leaf.sharding is None:
            return jax.numpy.asarray(held(whole))
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, held)


def refuse_other_state(path: str, manifest: Manifest, leaves: list[Leaf], *, partial: bool) -> None:
    """Raises CheckpointError where a leaf is missing, or another than in the state, or (unless `partial`) too many."""
    names = {leaf.name for leaf in leaves}
    for leaf in leaves:
        recorded = manifest.leaves.get(leaf.name)
        if recorded is None:
            raise CheckpointError(
                f"{path}: the checkpoint has no leaf {leaf.name}, which the state needs as {leaf.described}; "
                "the model or the averaging differs from the run that wrote it. Start from a checkpoint that has it, "
                'or take less: restore="weights".'
            )
        found = Leaf(leaf.name, tuple(recorded["shape"]), recorded["dtype"], None, recorded.get("key_impl"), None)
        if found.described != leaf.described:
            raise CheckpointError(
                f"{path}: leaf {leaf.name} is {found.described} in the checkpoint and {leaf.described} in the state; "
                "the model's shape differs from the run that wrote it. Use that run's model, or start from scratch."
            )
    surplus = sorted(set(manifest.leaves) - names - NO_LONGER_KEPT)
    if surplus and not partial:
        raise CheckpointError(
            f"{path}: leaf {surplus[0]} of the checkpoint ({len(surplus)} in all) has no place in the state; "
            "the model or the averaging differs from the run that wrote it. Give the phase what that run had, or take "
            'less: restore="weights".'
        )
