"""Files of a checkpoint on a disk, GCS or S3.

Arrays are zarr 3 without compression: a chunk file holds the chunk's little-endian bytes alone, so equal states give
equal bytes, and any zarr reader opens an array with a description.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import google_crc32c
import numpy as np
import tensorstore as ts

from runtime.data.flat_array import key_value_store
from runtime.data.read_failure import read_failure
from runtime.training.background import lower_priority

PIECE_IN_BYTES = 2**18
WRITERS = 16
_writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="chunk writer", initializer=lower_priority)


def crc32c(data: bytes | np.ndarray) -> int:
    """Return the CRC32C of the bytes, or of an array's memory in C order."""
    if isinstance(data, bytes):
        return int(google_crc32c.value(data))
    memory = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    checksum = 0
    for start in range(0, memory.size, PIECE_IN_BYTES):
        # The C function takes bytes only; copying a piece that fits into the cache costs little.
        checksum = int(google_crc32c.extend(checksum, memory[start : start + PIECE_IN_BYTES].tobytes()))
    return checksum


def recorded(data: bytes | np.ndarray) -> dict[str, int]:
    """Return the entry of a file in a manifest."""
    return {"size": len(data) if isinstance(data, bytes) else data.nbytes, "crc32c": crc32c(data)}


def canonical_json(document: object, where: str) -> bytes:
    """Return the same bytes for equal documents; raise TypeError for NaN and for what is not JSON.

    They are one line: Python indents fifty times more slowly, and the train step waits for its lock.
    """
    try:
        return (json.dumps(document, sort_keys=True, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where} is not JSON: {error}; use finite numbers, strings, lists and dicts.") from error


def answer(future: Any, path: str) -> Any:
    """Return what TensorStore has read from `path`.

    Raises:
        ValueError: the file is damaged.
        OSError: the store did not answer or refused, or this machine failed, so the file may be good.
    """
    try:
        return future.result()
    except ValueError as error:
        failure = read_failure(path, error)
        if failure is None:
            raise
        raise failure from error


class CheckpointFiles:
    """A local, gs:// or s3:// folder, with keys relative to it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder.rstrip("/")
        self._spec = key_value_store(self.folder)
        self._store = ts.KvStore.open(self._spec).result()

    def folders(self) -> set[str]:
        """Return the names of the folders directly below, without listing their files."""
        if self._spec["driver"] == "file":
            path = Path(self._spec["path"])
            return {entry.name for entry in path.iterdir() if entry.is_dir()} if path.is_dir() else set()
        # TensorStore can only list all keys.
        filesystem, path_in_bucket = fsspec.core.url_to_fs(self.folder, use_listings_cache=False)
        try:
            entries = filesystem.ls(path_in_bucket, detail=True, refresh=True)
        except FileNotFoundError:
            return set()
        return {entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory"}

    def has(self, key: str) -> bool:
        """Return whether the file exists, without fetching it."""
        # No listing, which a bucket may refuse. For an empty range TensorStore asks GCS and S3 for the metadata alone.
        return answer(self._store.read(key, byte_range=slice(0, 0)), f"{self.folder}/{key}").state == "value"

    def read(self, key: str) -> bytes | None:
        """Return the file's bytes, or None if there is no such file."""
        result = answer(self.start_read(key), f"{self.folder}/{key}")
        return bytes(result.value) if result.state == "value" else None

    def start_read(self, key: str) -> Any:
        return self._store.read(key)

    def write(self, key: str, data: bytes) -> None:
        """Return when the bytes are durable; readers see all of them or none."""
        self.start_write(key, data).result()

    def start_write(self, key: str, data: bytes) -> Any:
        return self._store.write(key, data)

    def write_array(self, key: str, data: np.ndarray) -> None:
        """Write an array's memory in C order; on a disk a kill may leave a part of it, which no manifest lists."""
        memory = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if self._spec["driver"] != "file":
            self.write(key, memory.tobytes())
            return
        path = Path(f"{self._spec['path']}{key}")  # written in a fifth of TensorStore's processor time
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(memory.data)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(path.parent)

    def link(self, sources: Mapping[str, str], files: "CheckpointFiles") -> None:
        """Make each key the same file as a key of `files`, in the same store; bytes are copied only between disks."""
        if self._spec["driver"] != "file":
            filesystem, target = fsspec.core.url_to_fs(self.folder, use_listings_cache=False)
            source = fsspec.core.url_to_fs(files.folder)[1]
            filesystem.copy([f"{source}/{key}" for key in sources.values()], [f"{target}/{key}" for key in sources])
            return
        for key, segment in sources.items():
            path = Path(f"{self._spec['path']}{key}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            try:
                path.hardlink_to(f"{files._spec['path']}{segment}")
            except OSError as error:  # a folder of the prefix may lead to another disk
                if error.errno not in (errno.EXDEV, errno.EMLINK):
                    raise
                self.write(key, Path(f"{files._spec['path']}{segment}").read_bytes())
        for folder in {Path(f"{self._spec['path']}{key}").parent for key in sources}:
            _sync_folder(folder)

    def delete(self, key: str) -> None:
        self._store.delete_range(ts.KvStore.KeyRange(key, key + "\0")).result()

    def delete_below(self, key: str) -> None:
        self._store.delete_range(_range(key)).result()

    def delete_folder(self) -> None:
        """Delete every file, and on a disk the folders."""
        if self._spec["driver"] != "file":
            self.delete_below("")
            return
        path = Path(self._spec["path"])  # TensorStore takes ten times longer and leaves the folders
        while path.exists():
            with contextlib.suppress(FileNotFoundError):  # another process deletes it too
                shutil.rmtree(path)

    def flush_folder(self, key: str) -> None:
        """Sync the names in a folder on a disk: a power cut forgets new folders with their files."""
        if self._spec["driver"] == "file" and (path := Path(self._spec["path"]) / key).is_dir():
            _sync_folder(path)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _range(below: str) -> ts.KvStore.KeyRange:
    if not below:
        return ts.KvStore.KeyRange()
    return ts.KvStore.KeyRange(below, below[:-1] + chr(ord(below[-1]) + 1))  # first key past the prefix


class ChunkedArray:
    """A zarr 3 array whose chunks divide its shape, so that none is padded."""

    def __init__(
        self, files: CheckpointFiles, key: str, shape: tuple[int, ...], chunk_shape: tuple[int, ...], dtype: str
    ) -> None:
        self._files, self.key, self.shape, self.chunk_shape, self.dtype = files, key, shape, chunk_shape, dtype
        self.description_key = f"{key}/zarr.json"

    @property
    def description(self) -> dict[str, Any]:
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunk_shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": False if self.dtype == "bool" else 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {},
        }

    def chunk_key(self, start: tuple[int, ...]) -> str:
        """Return the file of the chunk whose first element is at `start`."""
        grid = (str(first // size) for first, size in zip(start, self.chunk_shape, strict=True))
        return ".".join([f"{self.key}/c", *grid])

    def write_chunk(self, start: tuple[int, ...], data: np.ndarray) -> Future[None]:
        """Return the future of the durable write; `data` must not change before it is done."""
        little = data.astype(data.dtype.newbyteorder("<"), copy=False)
        return _writers.submit(self._files.write_array, self.chunk_key(start), little)

    def read_chunk(self, start: tuple[int, ...]) -> Any:
        """Return the future of the chunk's file, as TensorStore's `ReadResult`."""
        return self._files.start_read(self.chunk_key(start))
