"""Checkpoints: a pytree of sharded arrays and its JSON metadata, complete or invisible, restored on any mesh.

A checkpoint exists if and only if its `manifest.json` does. The manifest is written last and holds the size
and CRC32C of every file, taken from the bytes in memory and not read back, so that a fault of the disk shows.
Loading verifies what it reads and raises `CheckpointError` otherwise: there is no fresh start, and no older
checkpoint, behind the caller's back.

    {path}/manifest.json                format, leaves, files; written last
    {path}/metadata.json                step, consumed_tokens, data position, ...
    {path}/arrays/<leaf>/c.<i>.<j>      one file a chunk; a chunk lies within one shard, so no two processes share one
    {path}/arrays/<leaf>/zarr.json      of what is `described`: makes it a zarr 3 array, named by its path in the pytree
"""

import collections
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from runtime.data.read_failure import write_fix
from runtime.optim.ema import HOT
from runtime.training.background import step_back
from runtime.training.checkpoint_files import CheckpointFiles, ChunkedArray, canonical_json, crc32c
from runtime.training.checkpoint_leaves import (
    Leaf,
    box_of,
    chunk_shape_of,
    chunk_starts,
    named_leaves,
)
from runtime.training.checkpoint_reader import (
    FORMAT,
    CheckpointError,
    Reader,
    refuse_other_state,
)

LEAVES_READ_AHEAD = 8
CHUNKS_WRITTEN_AT_ONCE = 8
"""Of `save_pieces`, which holds them in memory."""
PART_WAIT_SECONDS = 600.0
"""From the newest part of a process to the next: hosts may be minutes behind one another."""
LISTED_EVERY_SECONDS = 1.0

State = TypeVar("State")


class Pieces(Protocol):
    """A leaf that comes in pieces."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def pieces(self, chunk_shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        """Its chunks as float32, those of the last axis fastest."""


class Save:
    """A checkpoint on its way to the disk."""

    def __init__(self, path: str, snapshot_seconds: float, size_in_bytes: int) -> None:
        self.path = path
        self.snapshot_seconds = snapshot_seconds
        """How long the caller was held up."""
        self.size_in_bytes = size_in_bytes
        """Bytes of arrays that this process writes."""
        self.write_seconds = 0.0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def _start(self, before: Callable[[], object], write: Callable[[], None], after: Callable[[], object]) -> None:
        def run() -> None:
            started = time.monotonic()
            try:  # each error is handed to the thread that waits
                step_back()
                before()
                try:
                    write()
                except BaseException as error:
                    raise CheckpointError(
                        f"checkpoint {self.path} was not written: {str(error).rstrip('.')}; it stays invisible. "
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
        """True once the write has ended, well or not; `wait` tells which."""
        return self._thread is not None and not self._thread.is_alive()

    def wait(self) -> None:
        """Returns when the checkpoint is complete, or raises what stopped it, or what `before` or `after` raised."""
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
    lease_epoch: int | None = None,
    described: bool = True,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> Save:
    """Copies `state` to the host, then writes it in the background; the state may be donated on return.

    `beside` are files next to the folder `path` (a table of metrics), written before the manifest and covered
    by it. Each process writes the shards of which it holds the first replica. With several processes `path`
    must be a fresh folder, and the first process writes the manifest when the parts of all are there. `described`
    arrays are opened by any zarr reader; `load` needs the manifest only, and is spared half the files. `before` and
    `after` the writing these are called, in its thread: if the first raises, nothing is written.
    """
    started = time.monotonic()
    metadata_bytes = canonical_json(dict(metadata), "checkpoint metadata")
    parent, _, name = path.rstrip("/").rpartition("/")
    files = CheckpointFiles(parent or ".")
    leaves: dict[str, dict[str, Any]] = {}
    chunks: list[tuple[ChunkedArray, tuple[int, ...], np.ndarray]] = []
    arrays = []
    for leaf in named_leaves(state):
        if leaf.array is None:
            raise TypeError(f"{leaf.name}: a shape cannot be saved; pass arrays.")
        chunk_shape = chunk_shape_of(leaf.array.sharding.shard_shape(leaf.shape), np.dtype(leaf.dtype).itemsize)
        leaves[leaf.name] = {"shape": list(leaf.shape), "dtype": leaf.dtype, "chunk_shape": list(chunk_shape)}
        if leaf.key_impl:
            leaves[leaf.name]["key_impl"] = leaf.key_impl
        array = files.array(f"{name}/arrays/{leaf.name}", leaf.shape, chunk_shape, leaf.dtype)
        shards = [shard for shard in leaf.array.addressable_shards if shard.replica_id == 0]
        for shard in shards:
            shard.data.copy_to_host_async()  # all copies run while the first is waited for
        arrays.append((array, shards))
    for array, shards in arrays:
        for shard in shards:
            # On a CPU NumPy sees the buffer, which the next train step takes over; elsewhere the copy that was made.
            data = np.array(shard.data) if shard.device.platform == "cpu" else np.asarray(shard.data)
            first, last = box_of(shard.index, array.shape)
            for start in chunk_starts(first, last, array.chunk_shape):
                within = tuple(
                    slice(at - low, at - low + size)
                    for at, low, size in zip(start, first, array.chunk_shape, strict=True)
                )
                chunks.append((array, start, np.asarray(data[within], order="C")))
    small_files: dict[str, Callable[[], bytes]] = {f"{name}/metadata.json": lambda: metadata_bytes, **(beside or {})}
    for array, _ in arrays if described else []:
        small_files[array.description_key] = functools.partial(canonical_json, array.description, array.key)
    handle = Save(path, time.monotonic() - started, sum(data.nbytes for _, _, data in chunks))
    handle._start(before, lambda: _write(files, name, chunks, small_files, leaves, lease_epoch), after)
    return handle


def _write(
    files: CheckpointFiles,
    name: str,
    chunks: list[tuple[ChunkedArray, tuple[int, ...], np.ndarray]],
    small_files: Mapping[str, Callable[[], bytes]],
    leaves: dict[str, dict[str, Any]],
    lease_epoch: int | None,
) -> None:
    """`small_files` are written by the first process, and formed here: the caller of `save` does not wait for them."""
    process, num_processes = jax.process_index(), jax.process_count()
    if num_processes == 1:
        # The manifest goes first: a folder that is being replaced must not look complete.
        files.delete(f"{name}/manifest.json")
        files.delete_below(f"{name}/")
    written: dict[str, dict[str, int]] = {}
    pending = [array.write_chunk(start, data) for array, start, data in chunks]
    for array, start, data in chunks:
        written[array.chunk_key(start)] = _recorded(data)
    for key, form in small_files.items() if process == 0 else []:
        content = form()
        pending.append(files.start_write(key, content))
        written[key] = _recorded(content)
    for future in pending:
        future.result()
    files.flush_folder(f"{name}/arrays")
    if num_processes > 1:
        files.write(f"{name}/parts/{process:05d}.json", canonical_json(written, "part of a manifest"))
        if process > 0:
            return
        written = _gathered_parts(files, name, num_processes)
    body = {"format": FORMAT, "leaves": leaves, "files": written}
    if lease_epoch is not None:
        body["lease_epoch"] = lease_epoch
    _seal(files, name, body)


def _recorded(data: bytes | np.ndarray) -> dict[str, int]:
    """What the manifest holds of a file."""
    return {"size": len(data) if isinstance(data, bytes) else data.nbytes, "crc32c": crc32c(data)}


def _seal(files: CheckpointFiles, name: str, body: Mapping[str, Any]) -> None:
    """Writes the manifest, which makes the checkpoint complete."""
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
    """Writes a checkpoint of float32 leaves that no process need hold whole; returns when it is complete.

    As `save` would have written them, in a fresh folder, from one process. After each leaf `on_leaf` is told how many
    are done, and of how many.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    files = CheckpointFiles(parent or ".")
    described: dict[str, dict[str, Any]] = {}
    written: dict[str, dict[str, int]] = {}
    small_files = {f"{name}/metadata.json": canonical_json(dict(metadata), "checkpoint metadata"), **beside}
    pending: collections.deque[Any] = collections.deque()
    for done, (leaf_name, leaf) in enumerate(sorted(leaves.items()), start=1):
        chunk_shape = chunk_shape_of(leaf.shape, np.dtype(np.float32).itemsize)
        described[leaf_name] = {"shape": list(leaf.shape), "dtype": "float32", "chunk_shape": list(chunk_shape)}
        array = files.array(f"{name}/arrays/{leaf_name}", leaf.shape, chunk_shape, "float32")
        small_files[array.description_key] = canonical_json(array.description, array.key)
        starts = chunk_starts((0,) * len(leaf.shape), leaf.shape, chunk_shape)
        for start, data in zip(starts, leaf.pieces(chunk_shape), strict=True):
            written[array.chunk_key(start)] = _recorded(data)
            pending.append(array.write_chunk(start, data))
            if len(pending) > CHUNKS_WRITTEN_AT_ONCE:
                pending.popleft().result()
        on_leaf(done, len(leaves))
    for key, content in small_files.items():
        pending.append(files.start_write(key, content))
        written[key] = _recorded(content)
    for future in pending:
        future.result()
    files.flush_folder(f"{name}/arrays")
    _seal(files, name, {"format": FORMAT, "leaves": described, "files": written})


def _gathered_parts(files: CheckpointFiles, name: str, num_processes: int) -> dict[str, dict[str, int]]:
    """What each process wrote; a part is written when all its chunks are durable."""
    written: dict[str, dict[str, int]] = {}
    keys = [f"{name}/parts/{process:05d}.json" for process in range(num_processes)]
    arrived: set[str] = set()
    newest = listed = time.monotonic()
    for key in keys:
        while (part := files.read(key)) is None:
            if time.monotonic() - listed > LISTED_EVERY_SECONDS:
                listed = time.monotonic()
                if new := files.list_keys(f"{name}/parts/") - arrived:
                    arrived, newest = arrived | new, listed
            if time.monotonic() - newest > PART_WAIT_SECONDS:
                missing = [str(process) for process, key in enumerate(keys) if key not in arrived]
                raise TimeoutError(
                    f"of {num_processes} processes {', '.join(missing)} did not finish their parts, and for "
                    f"{PART_WAIT_SECONDS:.0f} s no other did; their logs may tell why"
                )
            time.sleep(0.05)
        if key not in arrived:
            arrived.add(key)
            newest = time.monotonic()
        written |= json.loads(part)
    return written


def is_complete(path: str) -> bool:
    """True if and only if the checkpoint has a manifest."""
    return CheckpointFiles(path).read("manifest.json") is not None


def remove(path: str) -> None:
    """Deletes a checkpoint, manifest first: killed half-way it is invisible, not torn."""
    files = CheckpointFiles(path)
    files.delete("manifest.json")
    files.delete_folder()


def load(path: str | Reader, like: State, *, partial: bool = False) -> tuple[State, dict[str, Any]]:
    """The state and the metadata of a checkpoint, laid out as `like` (arrays, or shapes with shardings).

    Any mesh will do: a process reads the chunks that its devices hold parts of. `partial` allows leaves in the
    checkpoint that `like` does not ask for; without it the trees must agree.

    Raises:
        CheckpointError: there is no complete checkpoint, or it is of another state.
        TornCheckpointError: a file of it is damaged or gone.
        OSError: the store did not answer or refused; nothing is known of the checkpoint.
    """
    reader = _opened(path)
    leaves = named_leaves(like)
    refuse_other_state(reader.path, reader.manifest, leaves, partial=partial)
    reader.refuse_missing_files()
    metadata = read_metadata(reader)
    restored = []
    reads: collections.deque[tuple[Leaf, ChunkedArray, dict[tuple[int, ...], Any]]] = collections.deque()
    for leaf in leaves:
        reads.append((leaf, *reader.start_leaf(leaf)))
        if len(reads) > LEAVES_READ_AHEAD:
            restored.append(reader.finish_leaf(*reads.popleft()))
    restored += [reader.finish_leaf(*read) for read in reads]
    return jax.tree.unflatten(jax.tree.structure(like), restored), metadata


def load_params(path: str, like_params: State, which: str) -> State:
    """The weights alone: "hot", as last trained, or the average of that name."""
    if which == HOT:
        return load(path, {"params": like_params}, partial=True)[0]["params"]
    leaves = Reader(path).manifest.leaves
    kept = sorted({name.split(".")[1] for name in leaves if name.startswith("averages.")})
    if which not in kept:
        have = f"averages called {', '.join(kept)}" if kept else "no averaged weights"
        raise CheckpointError(
            f'{path}: the checkpoint holds {have}, and {which!r} is asked for; take one that it holds, or "hot", or '
            "train with such an average."
        )
    return load(path, {"averages": {which: like_params}}, partial=True)[0]["averages"][which]


def read_metadata(path: str | Reader) -> dict[str, Any]:
    """The metadata of a complete checkpoint, verified."""
    reader = _opened(path)
    return json.loads(reader.read(f"{reader.name}/metadata.json"))


def read_beside(path: str | Reader, key: str) -> bytes:
    """A file that was saved beside the checkpoint, verified."""
    return _opened(path).read(key)


def _opened(path: str | Reader) -> Reader:
    """Of thousands of chips the manifest is long: who reads several things opens the checkpoint once."""
    return path if isinstance(path, Reader) else Reader(path)
