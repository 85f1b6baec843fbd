"""Files over HTTP: fetched in parts that survive a kill, retried, and verified as a whole.

Each part is one object in the store, because objects cannot be appended to; a part with its full length is never
fetched again. The folder of the parts is named by address, ETag and size, so parts of two versions never mix. A file
without a strong ETag and without a known checksum is fetched in one request. `huggingface_hub` resumes on a local disk
only, and fsspec's HTTP files know neither resume, retries nor a change of the file meanwhile.
"""

import contextlib
import gzip
import hashlib
import http.client
import io
import itertools
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import sleep
from typing import NamedTuple, TypeVar

import fsspec
import requests
import urllib3

from runtime.text.extraction.limits import DEFAULTS, Unpacked
from runtime.text.fetch.errors import (
    ChangedFileError,
    ChecksumError,
    FetchError,
    MissingFileError,
    UnreachableError,
    matching,
)
from runtime.text.fetch.verified import CHUNK_BYTES, Written, check_size, read_chunks, write_verified

ResultT = TypeVar("ResultT")

PART_BYTES = 64 << 20
MAX_RESTARTS = 3
"""How often a fetch restarts because the file changed meanwhile."""
TIMEOUT_SECONDS = 60
ATTEMPTS = 5
FIRST_WAIT_SECONDS = 1.0
"""The wait doubles from attempt to attempt; a server may ask for a longer one."""
MAX_ASKED_WAIT_SECONDS = 120.0
"""A server that asks for a longer wait fails the file."""
_TRANSIENT = frozenset((408, 425, 429, 500, 502, 503, 504))
# RFC 9110, section 14.4.
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(?:(\d{1,18})|\*)")
_CHANGED = "The publisher or a proxy changed the file; it was deleted. If the new one is right, pin its checksum."


class Remote(NamedTuple):
    size_in_bytes: int | None
    """None if the server knows no ranges or no size."""
    etag: str | None
    """None unless strong: equal strong ETags mean equal bytes (RFC 9110, section 8.8.1)."""


def fetch_url(
    url: str,
    destination: str,
    *,
    parts_path: str,
    sha256: str | None,
    size_in_bytes: int | None = None,
    headers: Mapping[str, str] | None = None,
    part_bytes: int = PART_BYTES,
) -> Written:
    """Fetch `url` to a path in any store; verify checksum and size where they are known.

    `parts_path` is a folder that survives a kill; it holds the parts until the file is complete. An Authorization
    header is sent only to the host of `url`. Raise UnreachableError for no answer after all retries. Raise
    ChecksumError for wrong checksum or size. Raise FetchError for anything that another attempt would not change.
    """
    session = _Session(url, dict(headers or {}))
    for restart in range(MAX_RESTARTS + 1):
        try:
            folder, parts = _fetch_parts(session, url, parts_path, part_bytes, size_in_bytes, sha256 is not None)
            break
        except ChangedFileError:
            if restart == MAX_RESTARTS:
                raise
    try:
        written = write_verified(
            read_chunks(parts), destination, name=url, sha256=sha256, size_in_bytes=size_in_bytes, cure=_CHANGED
        )
    except ChecksumError:
        _remove(folder)
        raise
    _remove(folder)
    return written


def _remove(folder: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(folder)
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(path, recursive=True)


def _fetch_parts(
    session: "_Session", url: str, parts_path: str, part_bytes: int, size_in_bytes: int | None, is_pinned: bool
) -> tuple[str, list[str]]:
    """Return the folder of the parts and all parts in order; fetch those that are not there."""
    remote = session.probe()
    size = remote.size_in_bytes
    key = hashlib.sha256(f"{url}\0{remote.etag}\0{size}".encode()).hexdigest()[:16]
    folder = f"{parts_path}/{key}"
    if size is None or not (is_pinned or remote.etag or size <= part_bytes):
        session.fetch_whole(f"{folder}/whole")
        return folder, [f"{folder}/whole"]
    check_size(url, expected=size_in_bytes, found=size)
    filesystem, inner = fsspec.core.url_to_fs(folder)
    filesystem.invalidate_cache()
    sizes = {path.rpartition("/")[2]: entry["size"] for path, entry in filesystem.find(inner, detail=True).items()}
    parts = []
    for index, start in enumerate(range(0, size, part_bytes)):
        end = min(start + part_bytes, size)
        parts.append(f"{folder}/{index:05d}")
        if sizes.get(f"{index:05d}") != end - start:
            session.fetch_part(parts[-1], start, end, remote)
    return folder, parts


def list_index(url: str, path: str, *, base: str, patterns: Sequence[str], sha256: str | None) -> list[str]:
    """Return the addresses in a publisher's list that match a shell pattern, sorted; the list is kept at `path`."""
    fetch_url(url, path, parts_path=f"{path}-parts", sha256=sha256)
    with fsspec.open(path, "rb") as file:
        data = file.read()
    if url.endswith(".gz"):
        num_packed = len(data)
        data = Unpacked(gzip.GzipFile(fileobj=io.BytesIO(data)), lambda: num_packed, url, DEFAULTS).readall()
    lines = data.decode().split()
    found = matching(url, lines, patterns, "lines")
    return sorted(urllib.parse.urljoin(base, line) for line in lines if line in found)


class _BusyError(Exception):
    """A server that may answer later, and the seconds for which it asks to wait."""

    def __init__(self, message: str, asked: float) -> None:
        super().__init__(message)
        self.asked = asked


class _Session:
    """Requests for one file, with retries."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._headers = {"Accept-Encoding": "identity", **headers}
        self._session = requests.Session()
        self._session.auth = lambda request: request  # else requests replaces the header by what a .netrc file holds

    def probe(self) -> Remote:
        """Ask for the first byte: the answer says whether the server knows ranges, and the size."""

        def remote(response: requests.Response) -> Remote:
            range_ = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
            size = int(range_[3]) if range_ is not None and range_[3] is not None else None
            # An empty file has no first byte: it answers 416 with the size 0.
            is_known = range_ is not None and (range_[1] is not None or size == 0)
            return Remote(size if is_known else None, _strong_etag(response))

        return self._with_retries({"Range": "bytes=0-0"}, remote, http.client.REQUESTED_RANGE_NOT_SATISFIABLE)

    def fetch_part(self, path: str, start: int, end: int, remote: Remote) -> None:
        """Fetch the bytes from `start` to before `end`; raise ChangedFileError if the server has another file now."""
        headers = {"Range": f"bytes={start}-{end - 1}"} | ({"If-Range": remote.etag} if remote.etag else {})
        expected = {f"bytes {start}-{end - 1}/{size}" for size in (remote.size_in_bytes, "*")}

        def save(response: requests.Response) -> None:
            # Some servers ignore If-Range, so the ETag of the answer counts too.
            is_same = _strong_etag(response) in (None, remote.etag)
            if response.headers.get("Content-Range", "").strip() not in expected or not is_same:
                raise ChangedFileError(
                    f"{self._url}: the file changed during each of {MAX_RESTARTS + 1} fetches. Run the same command "
                    "again when its publisher has finished writing it."
                )
            _save(response, path, end - start)

        self._with_retries(headers, save)

    def fetch_whole(self, path: str) -> None:
        """Fetch all bytes in one request."""

        def save(response: requests.Response) -> None:
            length = response.headers.get("Content-Length", "")
            _save(response, path, int(length) if length.isdigit() else None)

        self._with_retries({}, save)

    def _with_retries(
        self, headers: dict[str, str], use: Callable[[requests.Response], ResultT], *accepted: int
    ) -> ResultT:
        """Return what `use` makes of the answer to a request."""
        for attempt in itertools.count(1):
            asked, cause = 0.0, Exception()
            try:
                with self._answer(headers, accepted) as response:
                    return use(response)
            except _BusyError as busy:
                asked, message, cause = busy.asked, str(busy), busy
            except requests.RequestException as error:
                cause = error
                cure = "Check the connection and the proxy, then run the same command again"
                message = f"no network: {_first_of(error)}\n{cure}"
            if asked > MAX_ASKED_WAIT_SECONDS or attempt >= ATTEMPTS:
                raise UnreachableError(f"{self._url}: {message}; complete parts are kept.") from cause
            sleep(max(FIRST_WAIT_SECONDS * 2 ** (attempt - 1), asked))
        raise AssertionError("the last attempt returns or raises")

    def _answer(self, headers: dict[str, str], accepted: Sequence[int]) -> requests.Response:
        """Return the answer to a request. Raise FetchError, or _BusyError if a later attempt may help."""
        response = self._session.get(self._url, headers=self._headers | headers, stream=True, timeout=TIMEOUT_SECONDS)
        if self._url.startswith("https:") and not response.url.startswith("https:"):
            raise FetchError(
                f"{self._url}: redirects to {response.url}, without encryption, where anyone could change the file. "
                "Ask the publisher for an address that stays with https."
            )
        status = response.status_code
        if response.ok or status in accepted:
            return response
        response.close()
        answer = f"the server answers {status} {response.reason}"
        if status in _TRANSIENT:
            asked, limit = _asked_wait(response), MAX_ASKED_WAIT_SECONDS
            wait = f" and asks for a wait of {asked:,.0f} s, longer than the {limit:,.0f} s that a download waits"
            why = wait if asked > limit else f", {ATTEMPTS} times; it is overloaded or down"
            raise _BusyError(f"{answer}{why}. Run the same command again later", asked)
        if status in (404, 410):
            cure = "there is no such file. Check the address and the revision in the recipe."
            raise MissingFileError(f"{self._url}: {answer}; {cure}", status)
        cure = "another attempt would not help. Check the address in the recipe."
        if status in (401, 403):
            cure = "it wants a login or an accepted licence. Set the access token and run again."
        raise FetchError(f"{self._url}: {answer}; {cure}")


def _first_of(error: BaseException) -> BaseException:
    """Return the error that led to this one: it says why, without the names of pools and retries."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _strong_etag(response: requests.Response) -> str | None:
    etag = response.headers.get("ETag")
    return None if etag is None or etag.startswith("W/") else etag


def _asked_wait(response: requests.Response) -> float:
    """Return the seconds that the server asks for, as a number or a date (RFC 9110, section 10.2.3)."""
    try:
        return urllib3.Retry().parse_retry_after(response.headers.get("Retry-After", "0"))
    except urllib3.exceptions.InvalidHeader:
        return 0.0


def _save(response: requests.Response, path: str, expected_bytes: int | None) -> None:
    size = 0
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        for chunk in _chunks(response):
            file.write(chunk)
            size += len(chunk)
    if expected_bytes not in (None, size):
        raise requests.ConnectionError(f"the connection ended after {size} of {expected_bytes} bytes")


def _chunks(response: requests.Response) -> Iterator[bytes]:
    """Yield the body as it was sent: requests would decompress it where a server sends a Content-Encoding."""
    try:
        yield from response.raw.stream(CHUNK_BYTES, decode_content=False)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise requests.ConnectionError(f"the connection broke ({error})") from error
