"""Files over HTTP: fetched in parts that survive a kill, verified as a whole; the requests are `http_session`'s.

A part is one object in the store, so that resuming works where files cannot be appended to. A part counts as
there if it has its full length; the publisher's ETag, or the date of the file, is in the folder's name, so that
parts of two versions of a file never meet. Where neither tells two versions apart and no checksum is known, the file
comes in one go: nothing could tell that its parts are of one version.
"""

import fnmatch
import gzip
import hashlib
import itertools
import urllib.parse
from collections.abc import Mapping, Sequence
from operator import not_

import fsspec

from runtime.text.fetch.copy import CHUNK_BYTES, Copied, wrong_checksum
from runtime.text.fetch.errors import ChangedFileError, ChecksumError, FetchError
from runtime.text.fetch.http_session import OnBytes, Retries, Session

PART_BYTES = 64 << 20
MAX_CHANGES = 3
"""So often a file may change while it is fetched, and is begun anew."""


def fetch_url(
    url: str,
    destination: str,
    *,
    parts_path: str,
    sha256: str | None,
    size_in_bytes: int | None = None,
    headers: Mapping[str, str] | None = None,
    part_bytes: int = PART_BYTES,
    retries: Retries | None = None,
    on_bytes: OnBytes | None = None,
) -> Copied:
    """Fetches `url` to `destination`; unfinished parts lie below `parts_path` until the file is complete.

    A file that changes meanwhile is begun anew.

    Args:
        url: What to fetch.
        destination: Anything that fsspec opens.
        parts_path: A folder that survives a kill.
        sha256: What the file must be, if that is known. Without it, and without a strong validator of the server's, a
            file larger than a part comes in one go.
        size_in_bytes: What its size must be, if that is known.
        headers: Sent to the origin of `url` alone, and not to where it redirects.
        part_bytes: Size of a part.
        retries: How often to try.
        on_bytes: Told how much of the file is here, and its size where the server says it, first of what was here
            before and then as the rest comes.
    """
    session = Session(url, dict(headers or {}), retries or Retries(), on_bytes or (lambda done, total: None))
    folder, parts = _fetch_parts(session, url, parts_path, part_bytes, size_in_bytes, may_mix=sha256 is not None)
    copied = _join(parts, destination)
    filesystem, path = fsspec.core.url_to_fs(folder)
    if filesystem.exists(path):
        filesystem.rm(path, recursive=True)
    if size_in_bytes not in (None, copied.size_in_bytes):
        filesystem, path = fsspec.core.url_to_fs(destination)
        filesystem.rm(path)
        _refuse_another_size(url, size_in_bytes, copied.size_in_bytes)
    if sha256 is not None and copied.sha256 != sha256:
        filesystem, path = fsspec.core.url_to_fs(destination)
        filesystem.rm(path)
        raise wrong_checksum(
            url,
            expected=sha256,
            found=copied.sha256,
            size_in_bytes=copied.size_in_bytes,
            cure="The publisher changed the file, or what lies between changed it; the file was thrown away. If the "
            "new one is meant, put its checksum into the recipe.",
        )
    return copied


def _fetch_parts(
    session: Session, url: str, parts_path: str, part_bytes: int, size_in_bytes: int | None, *, may_mix: bool
) -> tuple[str, list[str]]:
    """The folder of the parts, and all of them in order; begins anew where the file changes meanwhile."""
    for _ in range(MAX_CHANGES):
        try:
            return _fetch_parts_of_one_version(session, url, parts_path, part_bytes, size_in_bytes, may_mix=may_mix)
        except ChangedFileError:  # the parts of the former version lie in another folder than those of the next
            continue
    return _fetch_parts_of_one_version(session, url, parts_path, part_bytes, size_in_bytes, may_mix=may_mix)


def _fetch_parts_of_one_version(
    session: Session, url: str, parts_path: str, part_bytes: int, size_in_bytes: int | None, *, may_mix: bool
) -> tuple[str, list[str]]:
    remote = session.probe()
    key = hashlib.sha256(f"{url}\0{remote.validator}\0{remote.size_in_bytes}".encode()).hexdigest()[:16]
    folder = f"{parts_path}/{key}"
    if remote.size_in_bytes is not None:
        _refuse_another_size(url, size_in_bytes, remote.size_in_bytes)  # before it is fetched for nothing
    if remote.size_in_bytes is None or not (may_mix or remote.is_strong or remote.size_in_bytes <= part_bytes):
        session.fetch_whole(f"{folder}/whole")
        return folder, [f"{folder}/whole"]
    starts = range(0, remote.size_in_bytes, part_bytes)
    parts = [f"{folder}/{index:05d}" for index in range(len(starts))]
    lengths = [min(part_bytes, remote.size_in_bytes - start) for start in starts]
    sizes = _sizes(folder)
    is_here = [sizes.get(part.rpartition("/")[2]) == length for part, length in zip(parts, lengths, strict=True)]
    num_here = sum(itertools.compress(lengths, is_here))
    session.on_bytes(num_here, remote.size_in_bytes)
    for part, start, length in itertools.compress(zip(parts, starts, lengths, strict=True), map(not_, is_here)):
        session.fetch_part(part, start, start + length, remote, num_here=num_here)
        num_here += length
    return folder, parts


def list_index(url: str, path: str, *, base: str, patterns: Sequence[str], sha256: str | None) -> list[str]:
    """Addresses in a publisher's list that match one of the shell patterns, in alphabetical order."""
    fetch_url(url, path, parts_path=f"{path}-parts", sha256=sha256)
    with fsspec.open(path, "rb") as file:
        data = file.read()
    lines = (gzip.decompress(data) if url.endswith(".gz") else data).decode().split()
    found = [line for line in lines if any(fnmatch.fnmatchcase(line, pattern) for pattern in patterns)]
    if not found:
        raise FetchError(f"{url}: none of {len(lines)} lines matches {list(patterns)} (first: {', '.join(lines[:3])}).")
    return sorted(urllib.parse.urljoin(base, line) for line in found)


def _sizes(folder: str) -> dict[str, int]:
    """Sizes of the files of a folder, by name."""
    filesystem, inner = fsspec.core.url_to_fs(folder)
    filesystem.invalidate_cache()
    found = filesystem.find(inner, detail=True)
    return {path.rpartition("/")[2]: entry["size"] for path, entry in found.items()}


def _refuse_another_size(url: str, expected: int | None, found: int) -> None:
    if expected not in (None, found):
        raise ChecksumError(
            f"{url}: wrong size\n  expected: {expected:,} bytes\n  found:    {found:,} bytes\nThe publisher changed "
            "the file, or what lies between changed it; it was thrown away. Run the same command again, and check the "
            "revision in the recipe if it comes again."
        )


def _join(parts: list[str], destination: str) -> Copied:
    digest = hashlib.sha256()
    size = 0
    with fsspec.open(destination, "wb", auto_mkdir=True) as writer:
        for part in parts:
            with fsspec.open(part, "rb") as reader:
                while chunk := reader.read(CHUNK_BYTES):
                    digest.update(chunk)
                    writer.write(chunk)
                    size += len(chunk)
    return Copied(digest.hexdigest(), size)
