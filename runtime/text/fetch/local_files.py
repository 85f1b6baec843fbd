"""Files that a user already has, in a folder or a bucket, identified by their content."""

import glob
import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import fsspec
from fsspec.implementations.local import LocalFileSystem

from runtime.cache_folder import cache_folder, keep
from runtime.text.fetch.errors import FetchError
from runtime.text.fetch.verified import filesystem_of, read_chunks

LARGE_FILE_IN_BYTES = 64 * 2**20
"""The checksum of a file of this size or more is cached."""
SETTLED_SECONDS = 2.0
"""A younger file may be written again within one tick of its file system's clock."""
MAX_NAMED = 3


def find_files(folder: str, patterns: tuple[str, ...]) -> list[str]:
    """Return the names, relative to `folder`, that match a pattern, sorted; hidden files do not count.

    Raise FetchError for no such folder, no match, or a match or folder that cannot be read (rights, dead links, pipes).
    """
    filesystem, root = fsspec.core.url_to_fs(folder)
    if not filesystem.isdir(root):
        what = "is a file" if filesystem.isfile(root) else "no such folder"
        raise FetchError(f"{folder}: {what}. Name the folder that holds the files ({', '.join(patterns)}).")
    root = root.rstrip("/")
    is_local = isinstance(filesystem, LocalFileSystem)
    if is_local:  # fsspec passes over a folder that it may not read
        is_deep = any("/" in pattern or "**" in pattern for pattern in patterns)
        _check_rights({root, *(_folders_below(root) if is_deep else ())}, os.R_OK | os.X_OK)
    matched = {path for pattern in patterns for path in filesystem.glob(f"{glob.escape(root)}/{pattern}")}
    paths = {path[len(root) + 1 :]: path for path in sorted(matched) if path.rstrip("/") != root}
    paths = {name: path for name, path in paths.items() if not any(part.startswith(".") for part in name.split("/"))}
    names = [name for name, path in paths.items() if filesystem.isfile(path)]
    unread = [name for name in paths if name not in set(names)]
    # `**` looks into a folder that is no link.
    links = {name for name in unread if is_local and Path(paths[name]).is_symlink()}
    others = [name for name in unread if name in links or not filesystem.isdir(paths[name])]
    if others:
        raise FetchError(
            f"{folder}: {', '.join(sorted(others)[:MAX_NAMED])} cannot be read: a link to nothing or to a folder, or "
            "no file. Fix it, or take it out of the folder."
        )
    if not names:
        raise FetchError(
            f"{folder}: no file matches {' or '.join(patterns)}. Add files of these names, or name another folder."
        )
    if is_local:
        _check_rights({paths[name] for name in names}, os.R_OK)
    return names


def _folders_below(root: str) -> Iterator[str]:
    """Yield the folders below a folder, without hidden ones and links."""
    for path, names, _ in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".")]
        yield from (f"{path}/{name}" for name in names if not Path(path, name).is_symlink())


def _check_rights(paths: set[str], rights: int) -> None:
    closed = sorted(path for path in paths if not os.access(path, rights))
    if closed:
        more = f" and {len(closed) - MAX_NAMED} more" if len(closed) > MAX_NAMED else ""
        raise FetchError(
            f"{', '.join(closed[:MAX_NAMED])}{more}: no right to read. Run `chmod -R u+rX {shlex.quote(closed[0])}`, "
            "or take it out of the folder."
        )


class Content(TypedDict):
    sha256: str
    size_in_bytes: int


def content_of(path: str) -> Content:
    """Return checksum and size of a file in any store.

    Recipes ask for it at every plan, so the checksum of a large file is cached until the file changes.
    """
    filesystem, inner = filesystem_of(path)
    version = _version(filesystem, inner)
    cached = cache_folder("checksums") / f"{hashlib.sha256(json.dumps([path, version]).encode()).hexdigest()}.json"
    if version and cached.exists():
        return json.loads(cached.read_text())
    digest = hashlib.sha256()
    size = 0
    for chunk in read_chunks([path]):
        digest.update(chunk)
        size += len(chunk)
    content: Content = {"sha256": digest.hexdigest(), "size_in_bytes": size}
    if size >= LARGE_FILE_IN_BYTES and version and version == _version(filesystem, inner):
        keep(cached, json.dumps(content))
    return content


def _version(filesystem: Any, path: str) -> list[str]:
    """Return values that change when the file is written; empty if nothing would show a change."""
    if isinstance(filesystem, LocalFileSystem):
        found = Path(path).stat()
        if time.time() - max(found.st_mtime, found.st_ctime) < SETTLED_SECONDS:
            return []
        return [str(part) for part in (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)]
    filesystem.invalidate_cache(path.rpartition("/")[0])
    found = filesystem.info(path)
    return next(([name, str(found[name])] for name in ("generation", "ETag", "etag") if found.get(name)), [])
