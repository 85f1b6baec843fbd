"""Files that a user already has, locally or in a bucket, named by their content."""

import fsspec

from runtime.text.fetch.errors import FetchError


def find_files(folder: str, patterns: tuple[str, ...]) -> list[str]:
    """Names relative to `folder` that match one of the patterns, in alphabetical order."""
    filesystem, root = fsspec.core.url_to_fs(folder)
    if not filesystem.isdir(root):
        raise FetchError(f"{folder}: no such folder; name the folder that holds the files ({', '.join(patterns)}).")
    found = {path for pattern in patterns for path in filesystem.glob(f"{root.rstrip('/')}/{pattern}")}
    names = sorted(path[len(root.rstrip("/")) + 1 :] for path in found)
    if not names:
        raise FetchError(f"{folder}: no file matches {' or '.join(patterns)}.")
    return names


def sha256_of(path: str) -> str:
    import hashlib

    digest = hashlib.sha256()
    with fsspec.open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
