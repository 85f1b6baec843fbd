"""Flat array: one long row of numbers on TensorStore, written once front to back, read in windows of any length.

The format is zarr3 with sharding, not OCDBT: equal numbers give equal files, byte for byte. Each inner chunk carries
its CRC32C, checked at each read; a missing chunk is an error and never the fill value.
"""

import os
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import tensorstore as ts
from jaxtyping import Int64, Integer

from runtime.data.read_failure import read_failure

FILE_LENGTH = 1 << 24
"""Elements of a file, which is one object of the store."""
CHUNK_LENGTH = 1 << 14
"""Elements that a checksum covers, and the least that a read fetches."""


Numbers = Int64[np.ndarray, "n"]
"""Where spans start, or how long they are."""
Elements = Integer[np.ndarray, "sum_of_lengths"]
"""The elements of spans, one span after the other."""


class DamagedArrayError(ValueError):
    """An array that is missing, torn, changed or not the expected one; the message names the file."""


class FlatArrayWriter:
    """Appends to an array; whole files are written while the next ones fill."""

    def __init__(self, path: str, dtype: np.dtype) -> None:
        self.path = path
        self.length = 0
        self._crc32c = google_crc32c.Checksum()
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._pending: list[np.ndarray] = []
        self._pending_length = 0
        self._write: ts.WriteFutures | None = None
        spec = _spec(path) | {"create": True, "delete_existing": True, "metadata": _metadata(self._dtype)}
        self._array = ts.open(spec, read=True, write=True).result()

    def append(self, values: np.ndarray) -> None:
        """Append `values`, or raise DamagedArrayError for a number that the type cannot hold."""
        limits = np.iinfo(self._dtype)
        fits = np.can_cast(values.dtype, self._dtype)
        if not fits and len(values) and (values.min() < limits.min or values.max() > limits.max):
            raise DamagedArrayError(
                f"{self.path}: values from {values.min()} to {values.max()} do not fit {self._dtype.name}: the "
                "vocabulary of the array is smaller than the ids. Write ids of the array's own tokenizer."
            )
        self._pending.append(values.astype(self._dtype, copy=False))
        self._pending_length += len(values)
        if self._pending_length >= FILE_LENGTH:
            joined = np.concatenate(self._pending)
            whole = len(joined) - len(joined) % FILE_LENGTH
            self._flush(joined[:whole])
            self._pending, self._pending_length = [joined[whole:]], len(joined) - whole

    def close(self) -> str:
        """Write the rest; return the CRC32C (hex) of all elements in little-endian order."""
        if self._pending_length:
            self._flush(np.concatenate(self._pending))
            self._pending, self._pending_length = [], 0
        if self._write is not None:
            self._write.result()
        return self._crc32c.digest().hex()

    def _flush(self, values: np.ndarray) -> None:
        if self._write is not None:
            self._write.result()
        self._crc32c.update(np.ascontiguousarray(values).view(np.uint8))
        end = self.length + len(values)
        self._array = self._array.resize(exclusive_max=[end], resize_metadata_only=True).result()
        self._write = self._array[self.length : end].write(values)
        self.length = end


class FlatArray:
    """A finished array; reads may be started together and awaited together."""

    def __init__(self, path: str, dtype: np.dtype, length: int, context: ts.Context | None = None) -> None:
        self.path = path
        try:
            self._array = ts.open(_spec(path), read=True, open=True, context=context).result()
        except ValueError as error:
            failure = read_failure(path, error)
            reason = str(error).partition(" [tensorstore_spec=")[0]
            raise failure or DamagedArrayError(f"{path}: cannot be opened as an array ({reason}).") from error
        found = (self._array.dtype.numpy_dtype, self._array.shape)
        if found != (np.dtype(dtype), (length,)):
            raise DamagedArrayError(f"{path}: recorded: {dtype} of ({length},); now: {found[0]} of {found[1]}.")

    def start_read(self, start: int, stop: int) -> ts.Future:
        """Return a future of the elements `start` to `stop`, for `finish_read`."""
        return self._array[start:stop].read()

    def finish_read(self, future: ts.Future) -> np.ndarray:
        """Return the elements, checked against their checksums.

        Raise DamagedArrayError if the array is damaged. Raise OSError if the store or this machine failed; the array
        may be intact.
        """
        try:
            return future.result()
        except ValueError as error:
            raise read_failure(self.path, error) or DamagedArrayError(f"{self.path}: {error}") from error


def key_value_store(folder: str) -> dict[str, Any]:
    """Return the spec of the folder's driver; keys lie directly below `path`.

    Raise ValueError if it is a URL of another kind.
    """
    scheme, separator, rest = folder.partition("://")
    if not separator:
        return {"driver": "file", "path": f"{Path(folder).absolute()}/"}
    if scheme == "file":
        return {"driver": "file", "path": rest.rstrip("/") + "/"}
    bucket, _, key = rest.partition("/")
    path = f"{key.rstrip('/')}/" if key.strip("/") else ""
    if scheme == "gs":
        if os.environ.get("STORAGE_EMULATOR_HOST"):
            # A stand-in asks for no credentials. TensorStore would look for them and print an error.
            os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
        return {"driver": "gcs", "bucket": bucket, "path": path}
    if scheme == "s3":
        # TensorStore finds credentials where AWS's own tools do, but does not read these two variables.
        named = {"endpoint": os.environ.get("AWS_ENDPOINT_URL"), "aws_region": os.environ.get("AWS_DEFAULT_REGION")}
        given = {name: value for name, value in named.items() if value}
        return {"driver": "s3", "bucket": bucket, "path": path, **given}
    raise ValueError(
        f"{folder}: arrays are stored in a local folder, under gs:// or under s3://, not under {scheme}://; use a "
        "prefix of one of these."
    )


def read_context(cache_in_bytes: int) -> ts.Context:
    """Return a pool of decoded chunks, of at most this size, that the arrays of one cache share."""
    return ts.Context({"cache_pool": {"total_bytes_limit": cache_in_bytes}})


def _spec(path: str) -> dict[str, Any]:
    # Without the two options a lost chunk would silently read as zeros, which is token 0.
    strict = {"fill_missing_data_reads": False, "store_data_equal_to_fill_value": True}
    return {"driver": "zarr3", "kvstore": key_value_store(path)} | strict


def _metadata(dtype: np.dtype) -> dict[str, Any]:
    integers = {"name": "bytes", "configuration": {"endian": "little"}}
    checked = [integers, {"name": "crc32c"}]
    sharding = {"chunk_shape": [CHUNK_LENGTH], "codecs": checked, "index_codecs": checked}
    return {
        "shape": [0],
        "data_type": dtype.name,
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [FILE_LENGTH]}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
