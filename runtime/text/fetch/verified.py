"""Verified writes: streams into a file of any store, hashed on the way; a wrong checksum or size leaves no file."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from runtime.text.fetch.errors import ChecksumError

CHUNK_BYTES = 1 << 20


def filesystem_of(path: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it; names may hold `::`, by which fsspec chains."""
    if "::" not in path:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(path))
    scheme, separator, _ = path.partition("://")
    filesystem = fsspec.filesystem(scheme if separator else "file")
    return filesystem, filesystem._strip_protocol(path)


def open_file(path: str, mode: str) -> IO[bytes]:
    """Open a file for reading ("rb") or writing ("wb"); writing makes its folders."""
    filesystem, inner = filesystem_of(path)
    if mode == "wb" and isinstance(filesystem, LocalFileSystem):
        filesystem.makedirs(filesystem._parent(inner), exist_ok=True)
    return cast(IO[bytes], filesystem.open(inner, mode))


class Written(NamedTuple):
    sha256: str
    size_in_bytes: int


def read_chunks(paths: Iterable[str]) -> Iterator[bytes]:
    """Yield the bytes of the files, one file after the other."""
    for path in paths:
        with open_file(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


def write_verified(
    chunks: Iterable[bytes],
    destination: str,
    *,
    name: str,
    sha256: str | None,
    cure: str,
    size_in_bytes: int | None = None,
) -> Written:
    """Write `chunks` to `destination`; None as checksum or size accepts any.

    Raise ChecksumError, which ends with `cure`, for another checksum or size.
    """
    digest = hashlib.sha256()
    size = 0
    with open_file(destination, "wb") as writer:
        for chunk in chunks:
            digest.update(chunk)
            writer.write(chunk)
            size += len(chunk)
    written = Written(digest.hexdigest(), size)
    try:
        check_size(name, expected=size_in_bytes, found=size)
        check_sha256(name, expected=sha256, found=written, cure=cure)
    except ChecksumError:
        filesystem, path = filesystem_of(destination)
        filesystem.rm(path)
        raise
    return written


def check_size(name: str, *, expected: int | None, found: int) -> None:
    """Raise ChecksumError if a size is known and the file has another."""
    if expected not in (None, found):
        raise ChecksumError(
            f"{name}: wrong size\n  expected: {expected:,} bytes\n  found:    {found:,} bytes\nThe publisher or a "
            "proxy changed the file; it was deleted. Run the same command again. If the error returns, check the "
            "revision in the recipe."
        )


def check_sha256(name: str, *, expected: str | None, found: Written, cure: str) -> None:
    """Raise ChecksumError if a checksum is known and the file has another."""
    if expected not in (None, found.sha256):
        raise ChecksumError(
            f"{name}: wrong checksum\n  expected sha256: {expected}\n  found    sha256: {found.sha256} "
            f"({found.size_in_bytes} bytes)\n{cure}"
        )
