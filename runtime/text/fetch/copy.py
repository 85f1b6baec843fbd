"""Copies into a step's output, hashed on the way and refused if they are not what was asked for."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import fsspec

from runtime.text.fetch.errors import ChecksumError

CHUNK_BYTES = 1 << 20


class Copied(NamedTuple):
    sha256: str
    size_in_bytes: int


def copy_verified(
    source: str, destination: str, *, sha256: str | None, cure: str, on_bytes: Callable[[int], None] | None = None
) -> Copied:
    """Copies `source` to `destination`, both anything fsspec opens; a wrong checksum leaves no file to be used.

    `on_bytes` is told how many bytes are copied, as they are.
    """
    digest = hashlib.sha256()
    size = 0
    with fsspec.open(source, "rb") as reader, fsspec.open(destination, "wb", auto_mkdir=True) as writer:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
            size += len(chunk)
            if on_bytes is not None:
                on_bytes(size)
    found = digest.hexdigest()
    if sha256 is not None and found != sha256:
        filesystem, path = fsspec.core.url_to_fs(destination)
        filesystem.rm(path)
        raise wrong_checksum(source, expected=sha256, found=found, size_in_bytes=size, cure=cure)
    return Copied(found, size)


def wrong_checksum(name: str, *, expected: str, found: str, size_in_bytes: int, cure: str) -> ChecksumError:
    return ChecksumError(
        f"{name}: wrong checksum\n  expected sha256: {expected}\n  found    sha256: {found} ({size_in_bytes} bytes)\n"
        f"{cure}"
    )
