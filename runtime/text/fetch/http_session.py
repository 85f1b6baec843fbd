"""Requests for one file: tried again where that may help, and never told to another host than they were meant for."""

import dataclasses
import email.message
import email.utils
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import IO, NamedTuple, TypeVar

import fsspec

from runtime.text.fetch.copy import CHUNK_BYTES
from runtime.text.fetch.errors import ChangedFileError, FetchError, MissingFileError, UnreachableError

ResultT = TypeVar("ResultT")
OnBytes = Callable[[int, int | None], None]
"""Told how many bytes of a file are here, and of how many, if that is known."""

TIMEOUT_SECONDS = 60
STRONG_DATE_SECONDS = 60
"""A file that was unchanged for so long when it was asked for is told from others by its date."""
_TRANSIENT = frozenset((408, 425, 429, 500, 502, 503, 504))
_CONNECTION_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)
# RFC 9110, section 14.4.
_GIVEN = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(?:(\d{1,18})|\*)")
_UNSATISFIED = re.compile(r"bytes \*/0")


@dataclasses.dataclass(frozen=True)
class Retries:
    """How often a request is tried and how long to wait in between, doubling; longer if the server asks for it."""

    attempts: int = 5
    first_wait_seconds: float = 1.0
    max_asked_wait_seconds: float = 120.0
    """A server that asks for more is not waited for, and not asked again before: the file fails."""
    sleep: Callable[[float], None] = time.sleep


class Remote(NamedTuple):
    """What a server says of a file."""

    size_in_bytes: int | None
    """None: no ranges, or none of a known whole, so the file comes in one go."""
    validator: str | None
    is_strong: bool
    """Whether bytes that come under the same validator are of one version (RFC 9110, section 8.8.1)."""


class Session:
    """Requests for one file."""

    def __init__(self, url: str, headers: dict[str, str], retries: Retries, on_bytes: OnBytes) -> None:
        self._url = url
        self._headers = headers
        self._retries = retries
        self.on_bytes = on_bytes
        self._opener = urllib.request.build_opener(Redirects(headers))

    def probe(self) -> Remote:
        """Asks for the first byte, which tells whether the server knows ranges, and how many bytes there are."""

        def ask() -> Remote:
            try:
                with self._open({"Range": "bytes=0-0"}) as response:
                    given = _content_range(response) if response.status == http.client.PARTIAL_CONTENT else None
                    return _remote(given and given.total, response.headers)
            except urllib.error.HTTPError as error:
                if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                with error:  # an empty file has no first byte; of another such answer nothing is known
                    is_empty = _UNSATISFIED.fullmatch(error.headers.get("Content-Range", "").strip()) is not None
                    return _remote(0 if is_empty else None, error.headers)

        return self._with_retries(ask)

    def fetch_part(self, path: str, start: int, end: int, remote: Remote, *, num_here: int) -> None:
        """Bytes from `start` to before `end` of the file that was probed, of which `num_here` others are here.

        Raises:
            ChangedFileError: the server has another file by now.
        """
        headers = {"Range": f"bytes={start}-{end - 1}"}
        # If-Range takes no weak validators (RFC 9110, section 13.1.5).
        if remote.validator is not None and remote.is_strong:
            headers["If-Range"] = remote.validator

        def fetch() -> None:
            with self._open(headers) as response:
                given = _content_range(response) if response.status == http.client.PARTIAL_CONTENT else None
                # There are servers that know ranges and no If-Range.
                is_same = _validator(response.headers) in (None, remote.validator)
                if given not in (_Given(start, end, remote.size_in_bytes), _Given(start, end, None)) or not is_same:
                    raise ChangedFileError(
                        f"{self._url}: the file changed while it was being fetched; run the same command again."
                    )
                self._save(response, path, end - start, num_here, remote.size_in_bytes)

        self._with_retries(fetch)

    def fetch_whole(self, path: str) -> None:
        """All of it in one go, and so of one version."""

        def fetch() -> None:
            with self._open({}) as response:
                length = response.length  # of Content-Length, where it is a number
                self._save(response, path, length, 0, length)

        self._with_retries(fetch)

    def _save(
        self,
        response: http.client.HTTPResponse,
        path: str,
        expected_bytes: int | None,
        num_here: int,
        total: int | None,
    ) -> None:
        size = 0
        with fsspec.open(path, "wb", auto_mkdir=True) as file:
            while chunk := _read(response):
                file.write(chunk)
                size += len(chunk)
                self.on_bytes(num_here + size, total)
        if expected_bytes is not None and size != expected_bytes:
            raise ConnectionError(f"the connection ended after {size} of {expected_bytes} bytes")

    def _open(self, headers: dict[str, str]) -> http.client.HTTPResponse:
        request = urllib.request.Request(self._url, headers={"Accept-Encoding": "identity", **self._headers, **headers})
        response: http.client.HTTPResponse = self._opener.open(request, timeout=TIMEOUT_SECONDS)
        return response

    def _with_retries(self, action: Callable[[], ResultT]) -> ResultT:
        wait, asked = self._retries.first_wait_seconds, 0.0
        for attempt in range(1, self._retries.attempts + 1):
            try:
                return action()
            except urllib.error.HTTPError as error:
                asked = _asked_wait(error.headers.get("Retry-After"))
                error.close()
                failure = self._refused(error.code, error.reason, asked)
                cause: Exception = error
            except _CONNECTION_ERRORS as error:
                reason = getattr(error, "reason", None) or error
                failure = UnreachableError(
                    f"{self._url}: no network: {reason}\nCheck the connection and the proxy, then run the same command "
                    "again; the parts that are complete are kept."
                )
                cause = error
            # Not before the server wants to be asked again: rather not at all.
            is_too_long = asked > self._retries.max_asked_wait_seconds
            if not isinstance(failure, UnreachableError) or is_too_long or attempt == self._retries.attempts:
                raise failure from cause
            self._retries.sleep(max(wait, asked))
            wait, asked = 2 * wait, 0.0
        raise AssertionError("attempts is at least 1")

    def _refused(self, status: int, reason: str, asked: float) -> FetchError:
        answer = f"{self._url}: the server answers {status} {reason}"
        if status in _TRANSIENT and asked > self._retries.max_asked_wait_seconds:
            return UnreachableError(
                f"{answer} and asks to be left alone for {asked:,.0f} s, longer than the "
                f"{self._retries.max_asked_wait_seconds:,.0f} s that a download waits. Run the same command again "
                "then: the parts that are complete are kept."
            )
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
        until = _seconds_since_1970(asked)
        seconds = 0.0 if until is None else until - time.time()
    return max(seconds, 0.0)


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects without what was meant for the first origin alone; hubs redirect to hosts of other people."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._private = frozenset(name.lower() for name in headers) - {"user-agent"}

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        before, after = _origin(req.full_url), _origin(newurl)
        if before.scheme == "https" and after.scheme != "https":
            raise FetchError(
                f"{req.full_url}: redirects to {after.scheme}://{after.host}, where anybody could change the file on "
                "its way; ask the publisher for an address that stays with https."
            )
        if request is not None and before != after:
            for name in [name for name in request.headers if name.lower() in self._private]:
                request.remove_header(name)
        return request


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int | None


def _origin(url: str) -> _Origin:
    parts = urllib.parse.urlsplit(url)
    return _Origin(parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme))


class _Given(NamedTuple):
    start: int
    end: int
    total: int | None


def _content_range(response: http.client.HTTPResponse) -> _Given | None:
    given = _GIVEN.fullmatch((response.headers.get("Content-Range") or "").strip())
    return given and _Given(int(given[1]), int(given[2]) + 1, None if given[3] is None else int(given[3]))


def _remote(size_in_bytes: int | None, headers: email.message.Message) -> Remote:
    return Remote(size_in_bytes, _validator(headers), _is_strong(headers))


def _validator(headers: email.message.Message) -> str | None:
    return headers.get("ETag") or headers.get("Last-Modified")


def _is_strong(headers: email.message.Message) -> bool:
    if etag := headers.get("ETag"):
        return not etag.startswith("W/")
    modified, now = (_seconds_since_1970(headers.get(name)) for name in ("Last-Modified", "Date"))
    # Of two versions within one second the date is the same (RFC 9110, section 8.8.2.2).
    return modified is not None and now is not None and now - modified >= STRONG_DATE_SECONDS


def _seconds_since_1970(date: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date or "").timestamp()
    except ValueError:  # no date, or not there
        return None


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK_BYTES)
    except OSError as error:  # of the connection, whatever its class (ssl.SSLError, no route): no store is asked here
        raise ConnectionError(f"the connection broke ({error})") from error
