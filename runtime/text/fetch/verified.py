"""Verified writes: streams into a file of any store, hashed on the way; a wrong checksum or size leaves no file."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from runtime.text.any_name import filesystem_of, open_file
from runtime.text.fetch.errors import ChecksumError

CHUNK_BYTES = 1 << 20


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

    Raises:
        ChecksumError: the bytes have another checksum or size; names `name` and ends with `cure`.
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
