"""Checkpoints: a pytree of sharded arrays and its JSON metadata, complete or invisible, restored on any mesh.

A checkpoint exists if and only if its `manifest.json` does. The manifest is written last and holds the size and CRC32C
of every file, computed from the bytes in memory. Loading verifies what it reads, and never falls back to another
checkpoint.

    {path}/manifest.json                format, leaves, files; written last
    {path}/metadata.json                step, consumed_tokens, data position, ...
    {path}/arrays/<leaf>/c.<i>.<j>      one file for each chunk; a chunk lies within one shard, so of one process
    {path}/arrays/<leaf>/zarr.json      if `described`: makes the leaf a zarr 3 array
"""

import collections
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from runtime.data.read_failure import write_fix
from runtime.optim.ema import HOT
from runtime.parallel.hosts import meet_hosts
from runtime.training.background import lower_priority
from runtime.training.checkpoint_files import CheckpointFiles, ChunkedArray, canonical_json, crc32c, recorded
from runtime.training.checkpoint_reader import (
    FORMAT,
    CheckpointError,
    Leaf,
    Reader,
    box_of,
    check_same_state,
    chunk_shape_of,
    chunk_starts,
    named_leaves,
)

LEAVES_READ_AHEAD = 8
CHUNKS_WRITTEN_AT_ONCE = 16
"""Chunks that are copied on their way to a bucket, or made by `save_pieces`."""
PARTS_WAIT_SECONDS = 1800
"""Longest wait for the parts of all processes; hosts may be many minutes apart."""

State = TypeVar("State")
Chunk = tuple[ChunkedArray, tuple[int, ...], np.ndarray]
"""An array, the first index of one of its chunks, and the chunk."""
Entries = dict[str, dict[str, int]]
"""Size and CRC32C of files, by key."""


class Pieces(Protocol):
    """A leaf that is made chunk by chunk: float32, the last axis varying fastest."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def chunk_shape(self) -> tuple[int, ...] | None:
        """Shape of the chunks that the leaf is cheapest to make in; None leaves it to the writer."""

    def pieces(self, chunk_shape: tuple[int, ...]) -> Iterator[np.ndarray]: ...


class Save:
    """A checkpoint that a thread writes."""

    def __init__(self, path: str, snapshot_seconds: float, size_in_bytes: int) -> None:
        self.path = path
        self.snapshot_seconds = snapshot_seconds
        """How long the caller waited."""
        self.size_in_bytes = size_in_bytes
        """Bytes of arrays that this process writes."""
        self.write_seconds = 0.0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def _start(self, before: Callable[[], object], write: Callable[[], None], after: Callable[[], object]) -> None:
        def run() -> None:
            started = time.monotonic()
            try:  # `wait` raises each error
                lower_priority()
                before()
                try:
                    write()
                except jax.errors.JaxRuntimeError:  # a lost host; the runner knows it by its type
                    raise
                except BaseException as error:
                    raise CheckpointError(
                        f"checkpoint {self.path} is not written and stays invisible: {str(error).rstrip('.')}. "
                        f"{write_fix(error)}"
                    ) from error
                finally:
                    self.write_seconds = time.monotonic() - started
                after()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name=f"checkpoint {self.path}", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def wait(self) -> None:
        """Return when the checkpoint is complete; raise an error of the write, of `before` or of `after`."""
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error


def save(
    path: str,
    state: object,
    metadata: Mapping[str, Any],
    *,
    beside: Mapping[str, Callable[[], bytes]] | None = None,
    link: Callable[[CheckpointFiles], Entries] = lambda files: {},
    lease_epoch: int | None = None,
    described: bool = True,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> Save:
    """Copy `state` to the host, then write it in a thread; on return the state may be donated.

    Each process writes the shards of which it holds the first replica. With several processes `path` must be a fresh
    folder, and the first process writes the manifest once the parts of all are there.

    Args:
        beside: files next to the folder `path`, such as a table of metrics; the manifest covers them.
        link: links further files next to the folder, and returns what the manifest holds of them.
        described: write a `zarr.json` for each array, for other zarr readers; `load` needs none.
        before: called in the thread before the write; if it raises, nothing is written.
        after: called in the thread after the write.
    """
    started = time.monotonic()
    metadata_bytes = canonical_json(dict(metadata), "checkpoint metadata")
    files, name = _files_of(path)
    leaves, arrays = _start_copies(files, name, state)
    chunks = [chunk for array, shards in arrays for shard in shards for chunk in _chunks(array, shard)]

    def small_files() -> dict[str, bytes]:
        descriptions = [array for array, _ in arrays] if described else []
        return {
            f"{name}/metadata.json": metadata_bytes,
            **{key: form() for key, form in (beside or {}).items()},
            **{array.description_key: canonical_json(array.description, array.key) for array in descriptions},
        }

    body: dict[str, Any] = {"format": FORMAT, "leaves": leaves}
    if lease_epoch is not None:
        body["lease_epoch"] = lease_epoch
    handle = Save(path, time.monotonic() - started, sum(data.nbytes for _, _, data in chunks))
    handle._start(before, lambda: _write(files, name, chunks, small_files, link, body), after)
    return handle


def _files_of(path: str) -> tuple[CheckpointFiles, str]:
    parent, _, name = path.rstrip("/").rpartition("/")
    return CheckpointFiles(parent or "."), name


def _start_copies(
    files: CheckpointFiles, name: str, state: object
) -> tuple[dict[str, dict[str, Any]], list[tuple[ChunkedArray, list[jax.Shard]]]]:
    """Start to copy the shards of this process; return the leaves of the manifest, and each array with its shards."""
    leaves: dict[str, dict[str, Any]] = {}
    arrays = []
    for leaf in named_leaves(state):
        if leaf.array is None:
            raise TypeError(f"{leaf.name}: a shape cannot be saved; pass arrays.")
        chunk_shape = chunk_shape_of(leaf.array.sharding.shard_shape(leaf.shape), np.dtype(leaf.dtype).itemsize)
        leaves[leaf.name] = {"shape": list(leaf.shape), "dtype": leaf.dtype, "chunk_shape": list(chunk_shape)}
        array = ChunkedArray(files, f"{name}/arrays/{leaf.name}", leaf.shape, chunk_shape, leaf.dtype)
        shards = [shard for shard in leaf.array.addressable_shards if shard.replica_id == 0]
        for shard in shards:
            shard.data.copy_to_host_async()
        arrays.append((array, shards))
    return leaves, arrays


def _chunks(array: ChunkedArray, shard: jax.Shard) -> Iterator[Chunk]:
    """Wait for the copy of a shard, and cut it into chunks."""
    # On a CPU NumPy sees the buffer, which the next train step reuses; elsewhere it sees the copy.
    data = np.array(shard.data) if shard.device.platform == "cpu" else np.asarray(shard.data)
    first, last = box_of(shard.index, array.shape)
    for start in chunk_starts(first, last, array.chunk_shape):
        within = tuple(
            slice(at - low, at - low + size) for at, low, size in zip(start, first, array.chunk_shape, strict=True)
        )
        yield array, start, np.asarray(data[within], order="C")


def _write(
    files: CheckpointFiles,
    name: str,
    chunks: list[Chunk],
    small_files: Callable[[], Mapping[str, bytes]],
    link: Callable[[CheckpointFiles], Entries],
    body: dict[str, Any],
) -> None:
    """Write chunks, small files (first process only; made here so that `save` does not wait), and the manifest."""
    process, num_processes = jax.process_index(), jax.process_count()
    if num_processes == 1:
        # The manifest first: a folder that is being replaced must not look complete.
        files.delete(f"{name}/manifest.json")
        files.delete_below(f"{name}/")
    written = _write_files(files, name, chunks, small_files if process == 0 else dict)
    written |= link(files) if process == 0 else {}
    if num_processes > 1:
        files.write(f"{name}/parts/{process:05d}.json", canonical_json(written, "part of a manifest"))
        meet_hosts(f"parts of {files.folder}/{name}", seconds=PARTS_WAIT_SECONDS)
        if process > 0:
            return
        for other in range(1, num_processes):
            written |= json.loads(_read_part(files, f"{name}/parts/{other:05d}.json"))
    _seal(files, name, {**body, "files": written})


def _read_part(files: CheckpointFiles, key: str) -> bytes:
    """Return a part that its host has written; a network file system may show it seconds later."""
    for pause in (0, 1, 5, 30):
        time.sleep(pause)
        if (part := files.read(key)) is not None:
            return part
    raise FileNotFoundError(
        f"{files.folder}/{key}: its process has written this part, and process {jax.process_index()} does not see it"
    )


def _write_files(
    files: CheckpointFiles, name: str, chunks: Iterable[Chunk], small_files: Callable[[], Mapping[str, bytes]]
) -> Entries:
    """Write chunks and small files durably, and return size and CRC32C of each."""
    written: Entries = {}
    pending: collections.deque[Any] = collections.deque()
    for array, start, data in chunks:
        pending.append(array.write_chunk(start, data))
        written[array.chunk_key(start)] = recorded(data)
        if len(pending) > CHUNKS_WRITTEN_AT_ONCE:
            pending.popleft().result()
    for key, content in small_files().items():
        pending.append(files.start_write(key, content))
        written[key] = recorded(content)
    for future in pending:
        future.result()
    for folder in ("", f"{name}/arrays"):  # whose folders are new
        files.flush_folder(folder)
    return written


def _seal(files: CheckpointFiles, name: str, body: Mapping[str, Any]) -> None:
    """Write the manifest, which makes the checkpoint complete."""
    seal = crc32c(canonical_json(body, "manifest"))
    files.write(f"{name}/manifest.json", canonical_json({**body, "crc32c": seal}, "manifest"))


def save_pieces(
    path: str,
    leaves: Mapping[str, Pieces],
    metadata: Mapping[str, Any],
    *,
    beside: Mapping[str, bytes],
    on_leaf: Callable[[int, int], object] = lambda done, total: None,
) -> None:
    """Write a complete checkpoint of float32 leaves chunk by chunk, with the files that `save` would write.

    `path` must be a fresh folder, and there is one process. `on_leaf` receives the number of leaves done and their
    total.
    """
    files, name = _files_of(path)
    described: dict[str, dict[str, Any]] = {}
    small_files = {f"{name}/metadata.json": canonical_json(dict(metadata), "checkpoint metadata"), **beside}

    def chunks() -> Iterator[Chunk]:
        for done, (leaf_name, leaf) in enumerate(sorted(leaves.items()), start=1):
            chunk_shape = leaf.chunk_shape or chunk_shape_of(leaf.shape, np.dtype(np.float32).itemsize)
            described[leaf_name] = {"shape": list(leaf.shape), "dtype": "float32", "chunk_shape": list(chunk_shape)}
            array = ChunkedArray(files, f"{name}/arrays/{leaf_name}", leaf.shape, chunk_shape, "float32")
            small_files[array.description_key] = canonical_json(array.description, array.key)
            starts = chunk_starts((0,) * len(leaf.shape), leaf.shape, chunk_shape)
            for start, data in zip(starts, leaf.pieces(chunk_shape), strict=True):
                yield array, start, data
            on_leaf(done, len(leaves))

    written = _write_files(files, name, chunks(), lambda: small_files)
    _seal(files, name, {"format": FORMAT, "leaves": described, "files": written})


def is_complete(path: str) -> bool:
    return CheckpointFiles(path).has("manifest.json")


def remove(path: str) -> None:
    """Delete a checkpoint, manifest first: killed half-way it is invisible, not torn."""
    files = CheckpointFiles(path)
    files.delete("manifest.json")
    files.delete_folder()


def load(path: str | Reader, like: State, *, partial: bool = False) -> tuple[State, dict[str, Any]]:
    """Return the state and metadata of a checkpoint, sharded like `like` (arrays, or shapes with shardings).

    A process reads the chunks that its devices need, on any mesh. `partial` allows further leaves in the checkpoint;
    without it the trees must agree.

    Raises:
        CheckpointError: there is no complete checkpoint, or it is of another state.
        TornCheckpointError: a file is damaged or missing.
        OSError: the store did not answer or refused, so the checkpoint may be good.
    """
    reader = path if isinstance(path, Reader) else Reader(path)
    leaves = named_leaves(like)
    check_same_state(reader.path, reader.manifest, leaves, partial=partial)
    metadata = reader.metadata()
    restored = []
    reads: collections.deque[tuple[Leaf, ChunkedArray, dict[tuple[int, ...], Any]]] = collections.deque()
    for leaf in leaves:
        reads.append((leaf, *reader.start_leaf(leaf)))
        if len(reads) > LEAVES_READ_AHEAD:
            restored.append(reader.finish_leaf(*reads.popleft()))
    restored += [reader.finish_leaf(*read) for read in reads]
    return jax.tree.unflatten(jax.tree.structure(like), restored), metadata


def load_params(path: str, like_params: State, which: str) -> State:
    """Return the trained weights ("hot"), or the EMA weights of that name."""
    if which == HOT:
        return load(path, {"params": like_params}, partial=True)[0]["params"]
    reader = Reader(path)
    leaf_prefix(reader, which)
    return load(reader, {"averages": {which: like_params}}, partial=True)[0]["averages"][which]


def leaf_prefix(reader: Reader, which: str) -> str:
    """Return how the names of the leaves of the weights "hot", or of the EMA weights of that name, begin."""
    if which == HOT:
        return "params."
    kept = sorted({name.split(".")[1] for name in reader.manifest.leaves if name.startswith("averages.")})
    if which not in kept:
        have = f"the EMA weights {', '.join(kept)}" if kept else "no EMA weights"
        raise CheckpointError(
            f'{reader.path}: there are no weights {which!r}; the checkpoint has {have}. Use one of these or "hot", or '
            "add the average to the phase."
        )
    return f"averages.{which}."


def read_metadata(path: str) -> dict[str, Any]:
    """Return the verified metadata of a complete checkpoint."""
    return Reader(path).metadata()


def read_beside(path: str, key: str) -> list[bytes]:
    """Return the verified Parquet files of a table that was saved beside the checkpoint."""
    return Reader(path).read_parts(key)
