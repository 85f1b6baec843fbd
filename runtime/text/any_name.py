"""Any name: files of any store whose names may hold `::`, by which fsspec's own functions chain file systems."""

from typing import IO, Any, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem


def filesystem_of(path: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it."""
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
