"""Files that a user already has, locally or in a bucket, named by their content."""

import glob
import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import fsspec
from fsspec.implementations.local import LocalFileSystem

from runtime.cache_folder import cache_folder, keep
from runtime.text.fetch.copy import CHUNK_BYTES
from runtime.text.fetch.errors import FetchError

LARGE_FILE_IN_BYTES = 64 * 2**20
"""From here on reading it takes longer than a person waits for."""
SETTLED_SECONDS = 2.0
"""A file that was written so lately may be written again within one tick of its file system's clock."""
MAX_NAMED = 3
OF_AN_OBJECT = ("generation", "ETag", "etag")
"""What stores say of an object, and of another one at the same place say otherwise."""


def find_files(folder: str, patterns: tuple[str, ...]) -> list[str]:
    """Names relative to `folder` that match one of the patterns, in alphabetical order; as in a shell no hidden ones.

    Raises:
        FetchError: it is no folder, nothing in it matches, or what matches may not be read, or is a link that leads
            nowhere or to a folder, a pipe or the like: what it stands for would be missing, and nobody would be told.
    """
    filesystem, root = fsspec.core.url_to_fs(folder)
    if not filesystem.isdir(root):
        what = "is a file" if filesystem.isfile(root) else "no such folder"
        raise FetchError(f"{folder}: {what}; name the folder that holds the files ({', '.join(patterns)}).")
    root = root.rstrip("/")
    is_local = isinstance(filesystem, LocalFileSystem)
    if is_local:  # in a folder that may not be read fsspec finds nothing, and says nothing
        looked_into = dict.fromkeys(path for pattern in patterns for path in _folders_of(root, pattern))
        _refuse_closed(looked_into, os.R_OK | os.X_OK)
    matched = {path for pattern in patterns for path in filesystem.glob(f"{glob.escape(root)}/{pattern}")}
    shown = {path[len(root) + 1 :]: path for path in sorted(matched) if path.rstrip("/") != root}
    shown = {name: path for name, path in shown.items() if not any(part.startswith(".") for part in name.split("/"))}
    is_file = {name: filesystem.isfile(path) for name, path in shown.items()}
    names = [name for name in shown if is_file[name]]
    others = [name for name, path in shown.items() if not is_file[name] and not _is_own_folder(filesystem, path)]
    if others:
        raise FetchError(
            f"{folder}: {', '.join(others[:MAX_NAMED])} cannot be read: a link that leads nowhere or to a folder, or "
            "no file at all. Mend it, or take it out of the folder."
        )
    if not names:
        raise FetchError(f"{folder}: no file matches {' or '.join(patterns)}.")
    if is_local:
        _refuse_closed([shown[name] for name in names], os.R_OK)
    return names


def _folders_of(root: str, pattern: str) -> Iterator[str]:
    """Those that a pattern looks into: of `a/*/*.jsonl` the root, `a`, and what is in it; of `a/**` all below `a`."""
    levels = pattern.split("/")
    for index, level in enumerate(levels):
        folders = glob.glob("/".join([glob.escape(root), *levels[:index], ""]))  # noqa: PTH207 -- no hidden ones
        if "**" in level:
            for folder in folders:
                yield from _with_all_below(folder.rstrip("/"))
            return
        yield from (folder.rstrip("/") for folder in folders)


def _with_all_below(root: str) -> Iterator[str]:
    """But for hidden folders, and those behind a link."""
    yield root
    for folder, names, _ in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".")]
        yield from (f"{folder}/{name}" for name in names if not Path(folder, name).is_symlink())


def _refuse_closed(paths: Iterable[str], rights: int) -> None:
    closed = [path for path in paths if not os.access(path, rights)]
    if closed:
        more = f" and {len(closed) - MAX_NAMED} more" if len(closed) > MAX_NAMED else ""
        raise FetchError(
            f"{', '.join(closed[:MAX_NAMED])}{more}: you may not read what is there; give yourself the right to "
            f"(`chmod -R u+rX {shlex.quote(closed[0])}`, if it is yours), or take it out of the folder."
        )


def _is_own_folder(filesystem: Any, path: str) -> bool:
    """Whether it is a folder that `**` looks into: of one behind a link it would see nothing."""
    is_link = isinstance(filesystem, LocalFileSystem) and Path(path).is_symlink()
    return filesystem.isdir(path) and not is_link


class Content(TypedDict):
    sha256: str
    size_in_bytes: int


def content_of(path: str) -> Content:
    """Of a file here or in a bucket; a large one is read once, and not again as long as it stays as it is.

    A recipe asks for it whenever it is built, and a folder of weights has gigabytes.
    """
    filesystem, inner = fsspec.core.url_to_fs(path)
    marks = _marks(filesystem, inner)
    kept = cache_folder("checksums") / f"{hashlib.sha256(json.dumps([path, marks]).encode()).hexdigest()}.json"
    if marks and kept.exists():
        return json.loads(kept.read_text())
    digest = hashlib.sha256()
    size = 0
    with filesystem.open(inner, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    content: Content = {"sha256": digest.hexdigest(), "size_in_bytes": size}
    if size >= LARGE_FILE_IN_BYTES and marks and marks == _marks(filesystem, inner):
        keep(kept, json.dumps(content))
    return content


def _marks(filesystem: Any, path: str) -> list[str]:
    """What is another when the file has been written since; empty where nothing tells that."""
    if isinstance(filesystem, LocalFileSystem):
        found = Path(path).stat()
        if time.time() - max(found.st_mtime, found.st_ctime) < SETTLED_SECONDS:
            return []
        return [str(part) for part in (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)]
    filesystem.invalidate_cache(path.rpartition("/")[0])
    found = filesystem.info(path)
    return next(([name, str(found[name])] for name in OF_AN_OBJECT if found.get(name)), [])
