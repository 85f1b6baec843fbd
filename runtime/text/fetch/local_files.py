"""Files that a user already has, locally or in a bucket, named by their content."""

import glob
import hashlib
from typing import TypedDict

import fsspec

from runtime.text.fetch.copy import CHUNK_BYTES
from runtime.text.fetch.errors import FetchError


def find_files(folder: str, patterns: tuple[str, ...]) -> list[str]:
    """Names relative to `folder` that match one of the patterns, in alphabetical order."""
    filesystem, root = fsspec.core.url_to_fs(folder)
    if not filesystem.isdir(root):
        raise FetchError(f"{folder}: no such folder; name the folder that holds the files ({', '.join(patterns)}).")
    inside = glob.escape(root.rstrip("/"))
    found = {path for pattern in patterns for path in filesystem.glob(f"{inside}/{pattern}") if filesystem.isfile(path)}
    names = sorted(path[len(root.rstrip("/")) + 1 :] for path in found)
    if not names:
        raise FetchError(f"{folder}: no file matches {' or '.join(patterns)}.")
    return names


class Content(TypedDict):
    sha256: str
    size_in_bytes: int


def content_of(path: str) -> Content:
    digest = hashlib.sha256()
    size = 0
    with fsspec.open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return {"sha256": digest.hexdigest(), "size_in_bytes": size}
