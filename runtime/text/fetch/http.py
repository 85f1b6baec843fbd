"""Files over HTTP: fetched in parts that survive a kill, verified as a whole.

A part is one object in the store, so that resuming works where files cannot be appended to. A part counts as
there if it has its full length; the publisher's ETag is in the folder's name, so that parts of two versions of
a file never meet.
"""

import dataclasses
import email.utils
import fnmatch
import gzip
import hashlib
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import fsspec

from runtime.text.fetch.copy import CHUNK_BYTES, Copied, wrong_checksum
from runtime.text.fetch.errors import FetchError, MissingFileError, UnreachableError

ResultT = TypeVar("ResultT")

PART_BYTES = 64 << 20
TIMEOUT_SECONDS = 60
MAX_ASKED_WAIT_SECONDS = 120.0
_TRANSIENT = frozenset((408, 425, 429, 500, 502, 503, 504))
_CONNECTION_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


@dataclasses.dataclass(frozen=True)
class Retries:
    """How often a request is tried and how long to wait in between, doubling; longer if the server asks for it."""

    attempts: int = 5
    first_wait_seconds: float = 1.0
    sleep: Callable[[float], None] = time.sleep


class _Remote(NamedTuple):
    size_in_bytes: int | None
    """None: no ranges, so the file comes in one go."""
    validator: str | None


def fetch_url(
    url: str,
    destination: str,
    *,
    parts_path: str,
    sha256: str | None,
    headers: Mapping[str, str] | None = None,
    part_bytes: int = PART_BYTES,
    retries: Retries | None = None,
) -> Copied:
    """Fetches `url` to `destination`; unfinished parts lie below `parts_path` until the file is complete."""
    session = _Session(url, dict(headers or {}), retries or Retries())
    remote = session.probe()
    key = hashlib.sha256(f"{url}\0{remote.validator}\0{remote.size_in_bytes}".encode()).hexdigest()[:16]
    folder = f"{parts_path}/{key}"
    if remote.size_in_bytes is None:
        parts = [f"{folder}/whole"]
        session.fetch_whole(parts[0])
    else:
        parts = []
        for index, start in enumerate(range(0, remote.size_in_bytes, part_bytes)):
            parts.append(f"{folder}/{index:05d}")
            session.fetch_part(parts[-1], start, min(start + part_bytes, remote.size_in_bytes), remote.validator)
    copied = _join(parts, destination)
    filesystem, path = fsspec.core.url_to_fs(folder)
    if filesystem.exists(path):
        filesystem.rm(path, recursive=True)
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


class _Session:
    def __init__(self, url: str, headers: dict[str, str], retries: Retries) -> None:
        self._url = url
        self._headers = headers
        self._retries = retries

    def probe(self) -> _Remote:
        def ask() -> _Remote:
            with self._open({"Range": "bytes=0-0"}) as response:
                validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
                if response.status != http.client.PARTIAL_CONTENT:
                    return _Remote(None, validator)
                return _Remote(int(response.headers["Content-Range"].rpartition("/")[2]), validator)

        return self._with_retries(ask)

    def fetch_part(self, path: str, start: int, end: int, validator: str | None) -> None:
        if _size(path) == end - start:
            return
        headers = {"Range": f"bytes={start}-{end - 1}"}
        # If-Range takes no weak validators (RFC 9110, section 13.1.5); the checksum is the last word anyway.
        if validator is not None and not validator.startswith("W/"):
            headers["If-Range"] = validator

        def fetch() -> None:
            with self._open(headers) as response:
                if response.status != http.client.PARTIAL_CONTENT:
                    raise FetchError(
                        f"{self._url}: the file changed while it was being fetched; run the same command again."
                    )
                self._save(response, path, end - start)

        self._with_retries(fetch)

    def fetch_whole(self, path: str) -> None:
        def fetch() -> None:
            with self._open({}) as response:
                length = response.headers.get("Content-Length")
                self._save(response, path, None if length is None else int(length))

        self._with_retries(fetch)

    def _save(self, response: http.client.HTTPResponse, path: str, expected_bytes: int | None) -> None:
        size = 0
        with fsspec.open(path, "wb", auto_mkdir=True) as file:
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                size += len(chunk)
        if expected_bytes is not None and size != expected_bytes:
            raise ConnectionError(f"the connection ended after {size} of {expected_bytes} bytes")

    def _open(self, headers: dict[str, str]) -> http.client.HTTPResponse:
        request = urllib.request.Request(self._url, headers={"Accept-Encoding": "identity", **self._headers, **headers})
        return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)

    def _with_retries(self, action: Callable[[], ResultT]) -> ResultT:
        wait, asked = self._retries.first_wait_seconds, 0.0
        for attempt in range(1, self._retries.attempts + 1):
            try:
                return action()
            except urllib.error.HTTPError as error:
                asked = _asked_wait(error.headers.get("Retry-After"))
                error.close()
                failure = self._refused(error.code, error.reason)
                cause: Exception = error
            except _CONNECTION_ERRORS as error:
                reason = getattr(error, "reason", None) or error
                failure = UnreachableError(
                    f"{self._url}: no network: {reason}\nCheck the connection and the proxy, then run the same command "
                    "again; the parts that are complete are kept."
                )
                cause = error
            if not isinstance(failure, UnreachableError) or attempt == self._retries.attempts:
                raise failure from cause
            self._retries.sleep(max(wait, asked))
            wait, asked = 2 * wait, 0.0
        raise AssertionError("attempts is at least 1")

    def _refused(self, status: int, reason: str) -> FetchError:
        answer = f"{self._url}: the server answers {status} {reason}"
        if status in _TRANSIENT:
            return UnreachableError(
                f"{answer}, {self._retries.attempts} times; it is overloaded or down. Run the same command again "
                "later: the parts that are complete are kept."
            )
        if status in (401, 403):
            return FetchError(f"{answer}; it wants a login or an accepted licence. Set the access token and run again.")
        if status in (404, 410):
            missing = f"{answer}; there is no such file. Check the address and the revision in the recipe."
            return MissingFileError(missing, status)
        return FetchError(f"{answer}; trying again would not help.")


def _asked_wait(retry_after: str | None) -> float:
    """Seconds that a server asks to be left alone for, told as a number or as a date (RFC 9110, section 10.2.3)."""
    asked = (retry_after or "").strip()
    if asked.isdigit():
        seconds = float(asked)
    else:
        try:
            until = email.utils.parsedate_to_datetime(asked)
        except ValueError:  # neither of the two, or not there
            return 0.0
        seconds = until.timestamp() - time.time()
    return min(max(seconds, 0.0), MAX_ASKED_WAIT_SECONDS)


def _size(path: str) -> int | None:
    filesystem, inner = fsspec.core.url_to_fs(path)
    return filesystem.size(inner) if filesystem.exists(inner) else None


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
