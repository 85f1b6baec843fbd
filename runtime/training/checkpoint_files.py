"""Files of a checkpoint: every byte that one writes or reads goes through here, on a disk, on GCS or on S3.

Arrays are zarr 3 without compression and without OCDBT: a chunk file is the chunk's little-endian bytes and
nothing else, so equal states give equal bytes, and any zarr reader opens those that have a description beside
them. Missing chunks are an error of the caller's manifest: to zarr they are fill values, that is zeros.
Chunks on a local disk are written by direct_files.py; TensorStore writes all else, and reads.
"""

import contextlib
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import google_crc32c
import numpy as np
import tensorstore as ts

from runtime.data.key_value_store import key_value_store
from runtime.data.read_failure import read_failure
from runtime.training import direct_files

PIECE_IN_BYTES = 2**18


def crc32c(data: bytes | np.ndarray) -> int:
    """CRC32C of the bytes; an array counts as its C-order memory."""
    if isinstance(data, bytes):
        return int(google_crc32c.value(data))
    memory = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    checksum = 0
    for start in range(0, memory.size, PIECE_IN_BYTES):
        # The C function takes nothing but bytes; a piece that stays in the cache costs next to nothing to copy.
        checksum = int(google_crc32c.extend(checksum, memory[start : start + PIECE_IN_BYTES].tobytes()))
    return checksum


def canonical_json(document: object, where: str) -> bytes:
    """Equal documents give equal bytes; NaN and what is not JSON are refused.

    All in one line: Python indents fifty times as slowly, and the train step waits for the interpreter's lock.
    """
    try:
        return (json.dumps(document, sort_keys=True, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{where} is not JSON: {error}; use numbers that are finite, strings, lists and dicts."
        ) from error


def answer(future: Any, path: str) -> Any:
    """What TensorStore has read of `path`.

    Raises:
        ValueError: it is damaged.
        OSError: the store did not answer, or refused, or this machine failed; of what is there nothing is known.
    """
    try:
        return future.result()
    except ValueError as error:
        failure = read_failure(path, error)
        if failure is None:
            raise
        raise failure from error


class CheckpointFiles:
    """One folder, local, gs:// or s3://, with keys relative to it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder.rstrip("/")
        self._spec = key_value_store(self.folder)
        self._store = ts.KvStore.open(self._spec).result()

    def list_keys(self, below: str = "") -> set[str]:
        """Every file below `below`, in one listing. Of a bucket on GCS that refuses to be listed (401, 403) TensorStore
        says that there are none."""
        return {key.decode() for key in answer(self._store.list(_range(below)), f"{self.folder}/{below}")}

    def folders(self) -> set[str]:
        """Names of the folders right below; on a disk also those that a kill left without a finished file.

        One listing, in which the store leaves out what is in them: a checkpoint is of very many files.
        """
        if self._spec["driver"] == "file":
            path = Path(self._spec["path"])
            return {entry.name for entry in path.iterdir() if entry.is_dir()} if path.is_dir() else set()
        # TensorStore lists no other way than all keys.
        filesystem, path_in_bucket = fsspec.core.url_to_fs(self.folder, use_listings_cache=False)
        try:
            entries = filesystem.ls(path_in_bucket, detail=True, refresh=True)
        except FileNotFoundError:
            return set()
        return {entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory"}

    def has(self, key: str) -> bool:
        """Whether there is such a file; its bytes are not fetched."""
        # Not listed: see `list_keys`. Of no bytes TensorStore asks GCS and S3 for what they know of the object.
        return answer(self._store.read(key, byte_range=slice(0, 0)), f"{self.folder}/{key}").state == "value"

    def read(self, key: str) -> bytes | None:
        """The file's bytes, or None if there is no such file."""
        result = answer(self._store.read(key), f"{self.folder}/{key}")
        return bytes(result.value) if result.state == "value" else None

    def write(self, key: str, data: bytes) -> None:
        """Returns when the bytes are durable; readers see all of them or none."""
        self.start_write(key, data).result()

    def start_write(self, key: str, data: bytes) -> Any:
        """A future of `write`."""
        return self._store.write(key, data)

    def delete(self, key: str) -> None:
        self._store.delete_range(ts.KvStore.KeyRange(key, key + "\0")).result()

    def delete_below(self, key: str) -> None:
        self._store.delete_range(_range(key)).result()

    def delete_folder(self) -> None:
        """Deletes every file, and on a disk the folders that held them."""
        if self._spec["driver"] != "file":
            self.delete_below("")
            return
        path = Path(self._spec["path"])  # TensorStore would take ten times as long, and leave the folders
        while path.exists():
            with contextlib.suppress(FileNotFoundError):  # somebody else deletes it too
                shutil.rmtree(path)

    def flush_folder(self, key: str) -> None:
        """Makes the names in a folder outlive a power cut, which forgets new folders with all that is in them."""
        if self._spec["driver"] == "file" and (path := Path(self._spec["path"]) / key).is_dir():
            direct_files.flush_folder(path)

    def array(self, key: str, shape: tuple[int, ...], chunk_shape: tuple[int, ...], dtype: str) -> "ChunkedArray":
        """The array at `key`; touches no file."""
        return ChunkedArray(self, key, shape, chunk_shape, dtype)


def _range(below: str) -> ts.KvStore.KeyRange:
    if not below:
        return ts.KvStore.KeyRange()
    return ts.KvStore.KeyRange(below, below[:-1] + chr(ord(below[-1]) + 1))  # the first key past the prefix


class ChunkedArray:
    """A zarr 3 array whose chunks divide its shape exactly, so that none is padded."""

    def __init__(
        self, files: CheckpointFiles, key: str, shape: tuple[int, ...], chunk_shape: tuple[int, ...], dtype: str
    ) -> None:
        self.key, self.shape, self.chunk_shape, self.dtype = key, shape, chunk_shape, dtype
        self.description = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": False if dtype == "bool" else 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {},
        }
        self._folder = files._spec["path"] if files._spec["driver"] == "file" else None
        self._spec = {
            "driver": "zarr3",
            "kvstore": {**files._spec, "path": f"{files._spec['path']}{key}/"},
            "metadata": self.description,
            # Otherwise a chunk of zeros, such as moments that are new, would leave no file to check.
            "store_data_equal_to_fill_value": True,
        }

    @functools.cached_property
    def _array(self) -> ts.TensorStore:
        # Opened at first use: the training loop waits while a snapshot is taken, and need not wait for this.
        return ts.open(self._spec, open=True, assume_metadata=True).result()

    @property
    def description_key(self) -> str:
        return f"{self.key}/zarr.json"

    def chunk_key(self, start: tuple[int, ...]) -> str:
        """File of the chunk whose first element is at `start`."""
        grid = (str(first // size) for first, size in zip(start, self.chunk_shape, strict=True))
        return ".".join([f"{self.key}/c", *grid])

    def _chunk(self, start: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(first, first + size) for first, size in zip(start, self.chunk_shape, strict=True))

    def write_chunk(self, start: tuple[int, ...], data: np.ndarray) -> Any:
        """A future of the durable write; `data` must not change before it is done."""
        if self._folder is not None:  # the bytes that TensorStore would write, for a fifth of the processor time
            little = data.astype(data.dtype.newbyteorder("<"), copy=False)
            return direct_files.start_write(f"{self._folder}{self.chunk_key(start)}", little)
        return self._array[self._chunk(start)].write(data, can_reference_source_data_indefinitely=True)

    def read_chunk(self, start: tuple[int, ...]) -> Any:
        """A future of the chunk as a NumPy array."""
        return self._array[self._chunk(start)].read()
