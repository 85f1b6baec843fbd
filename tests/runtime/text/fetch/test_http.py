"""HTTP downloads: a file comes whole and verified or not at all, in parts that are never fetched twice."""

import email.utils
import hashlib
import http.client
import http.server
import itertools
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
import requests

from runtime.text.fetch import http as fetch_http
from runtime.text.fetch.errors import ChecksumError, FetchError, UnreachableError
from runtime.text.fetch.http import fetch_url, list_index
from tests.catalogue import expect_error

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """A server of CONTENT that answers `failures` first; `cut_after` ends one body early."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.failures: list[int] = []
        self.ranges: list[str | None] = []
        self.knows_ranges = True
        self.sends_length = True
        self.cut_after: int | None = None
        self.retry_after: str | None = None
        self.content = CONTENT
        self.redirect_to: str | None = None
        self.total: str | None = None
        self.heeds_if_range = True
        self.validators: Callable[[bytes], dict[str, str]] = lambda content: {"ETag": etag_of(content)}
        self.next_content: dict[str, bytes] = {}
        """Content that the server has from the first request for a range on."""
        self.seen: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/data.bin"


def etag_of(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()}"'


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.headers["Host"].partition(":")[0], self.headers.get("Authorization")))
        if self.server.redirect_to is not None and self.path != "/moved":
            self.send_response(302)
            self.send_header("Location", self.server.redirect_to)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.server.failures:
            self.send_response(self.server.failures.pop(0))
            if self.server.retry_after is not None:
                self.send_header("Retry-After", self.server.retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        self.server.content = content = self.server.next_content.pop(asked or "", self.server.content)
        body = content
        validators = self.server.validators(content)
        condition = self.headers.get("If-Range")
        if self.server.heeds_if_range and condition not in (None, *validators.values()):
            asked = None
        if asked and self.server.knows_ranges and not content:
            self.send_response(416)
            self.send_header("Content-Range", "bytes */0")
        elif asked and self.server.knows_ranges:
            first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
            body = content[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{self.server.total or len(content)}")
        else:
            self.send_response(200)
        for name, value in validators.items():
            self.send_header(name, value)
        if self.server.sends_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.cut_after is not None and len(body) > 1:
            body, self.server.cut_after = body[: self.server.cut_after], None
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def waited(monkeypatch) -> list[float]:
    """Return the waits between attempts, of which there are three."""
    waits: list[float] = []
    monkeypatch.setattr(fetch_http, "ATTEMPTS", 3)
    monkeypatch.setattr(fetch_http, "sleep", waits.append)
    return waits


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def fetch(server, tmp_path, **changes):
    arguments = {"sha256": SHA256, "part_bytes": 4_000, **changes}
    return fetch_url(server.url, str(tmp_path / "out/data.bin"), parts_path=str(tmp_path / "parts"), **arguments)


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_file_arrives_whole_and_its_parts_are_gone(server, tmp_path, knows_ranges):
    server.knows_ranges = knows_ranges
    assert fetch(server, tmp_path) == (SHA256, len(CONTENT))
    assert (tmp_path / "out/data.bin").read_bytes() == CONTENT
    assert not list((tmp_path / "parts").rglob("0*"))


def test_finished_parts_are_not_fetched_again_and_a_torn_one_is(server, tmp_path):
    server.failures = []
    with expect_error(ChecksumError):
        fetch(server, tmp_path, sha256="0" * 64)
    server.ranges.clear()
    key = hashlib.sha256(f'{server.url}\0"{SHA256}"\0{len(CONTENT)}'.encode()).hexdigest()[:16]
    folder = tmp_path / "parts" / key
    folder.mkdir(parents=True)
    (folder / "00000").write_bytes(CONTENT[:4_000])
    (folder / "00001").write_bytes(CONTENT[4_000:4_100])
    fetch(server, tmp_path)
    assert server.ranges == ["bytes=0-0", "bytes=4000-7999", "bytes=8000-10239"]
    assert (tmp_path / "out/data.bin").read_bytes() == CONTENT


def test_parts_of_another_version_of_the_file_are_not_used(server, tmp_path):
    server.failures = []
    key = hashlib.sha256(f'{server.url}\0"old"\0{len(CONTENT)}'.encode()).hexdigest()[:16]
    (tmp_path / "parts" / key).mkdir(parents=True)
    (tmp_path / "parts" / key / "00000").write_bytes(b"x" * 4_000)
    assert fetch(server, tmp_path).sha256 == SHA256


OTHER = CONTENT[::-1]
OLD_DATE = email.utils.formatdate(1_000_000_000, usegmt=True)


@pytest.mark.parametrize("heeds_if_range", [True, False])
@pytest.mark.parametrize("other", [OTHER, OTHER[:-1]])
def test_a_file_that_changes_during_its_fetch_is_fetched_again(server, tmp_path, heeds_if_range, other):
    server.heeds_if_range, server.next_content = heeds_if_range, {"bytes=4000-7999": other}
    assert fetch(server, tmp_path, sha256=None).sha256 == hashlib.sha256(other).hexdigest()


def test_a_file_that_grows_during_its_fetch_is_fetched_again(server, tmp_path):
    server.validators = lambda content: {}
    grown = OTHER + b"!"
    server.next_content = {"bytes=4000-7999": grown}
    assert fetch(server, tmp_path, sha256=hashlib.sha256(grown).hexdigest()).size_in_bytes == len(grown)


def test_a_file_that_always_changes_fails(server, tmp_path):
    changes = itertools.count()
    server.validators = lambda content: {"ETag": f'"{next(changes)}"'}
    with expect_error(FetchError):
        fetch(server, tmp_path, sha256=None)
    assert server.ranges == ["bytes=0-0", "bytes=0-3999"] * 4


@pytest.mark.parametrize(
    ("validators", "is_strong"),
    [
        ({}, False),
        ({"ETag": 'W/"one"'}, False),
        ({"ETag": 'W/"one"', "Last-Modified": OLD_DATE}, False),
        ({"Last-Modified": OLD_DATE}, False),
        ({"ETag": '"one"'}, True),
    ],
)
def test_a_file_without_a_strong_etag_and_checksum_is_fetched_in_one_request(server, tmp_path, validators, is_strong):
    server.validators = lambda content: validators
    for given, comes_in_parts in ((None, is_strong), (SHA256, True)):
        server.ranges.clear()
        assert fetch(server, tmp_path, sha256=given).sha256 == SHA256
        assert server.ranges[1:] == (
            ["bytes=0-3999", "bytes=4000-7999", "bytes=8000-10239"] if comes_in_parts else [None]
        )
    server.ranges.clear()
    assert fetch(server, tmp_path, sha256=None, part_bytes=len(CONTENT)).sha256 == SHA256
    assert server.ranges == ["bytes=0-0", "bytes=0-10239"]  # one part is of one version


def test_a_connection_that_ends_early_is_retried(server, tmp_path):
    server.cut_after = 1_000
    assert fetch(server, tmp_path).sha256 == SHA256


def test_a_server_error_is_retried(server, tmp_path):
    server.failures = [503, 500]
    assert fetch(server, tmp_path).sha256 == SHA256


@pytest.mark.parametrize(
    ("asked", "waits"),
    [("7", [7.0, 7.0]), ("120", [120.0, 120.0]), ("0", [1.0, 2.0]), ("Fri, 31 Dec", [1.0, 2.0])],
)
def test_a_retry_waits_as_long_as_the_server_asks(server, tmp_path, waited, asked, waits):
    server.failures, server.retry_after = [429, 503], asked
    fetch(server, tmp_path)
    assert waited == waits


def test_a_retry_waits_until_the_date_that_the_server_asks_for(server, tmp_path, waited, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_000_000_000.0)
    server.failures, server.retry_after = [429, 503], email.utils.formatdate(1_000_000_030, usegmt=True)
    fetch(server, tmp_path)
    assert waited == [30.0, 30.0]


@pytest.mark.parametrize("asked", ["3600", email.utils.formatdate(1_000_003_600, usegmt=True)])
def test_a_server_that_asks_for_too_long_a_wait_is_not_asked_again(server, tmp_path, waited, monkeypatch, asked):
    monkeypatch.setattr("time.time", lambda: 1_000_000_000.0)
    server.failures, server.retry_after = [429, 429], asked
    with expect_error(UnreachableError):
        fetch(server, tmp_path)
    assert (waited, server.failures) == ([], [429])
    monkeypatch.setattr(fetch_http, "MAX_ASKED_WAIT_SECONDS", 4_000)
    assert fetch(server, tmp_path).sha256 == SHA256
    assert waited == [3_600.0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_redirect_to_another_host_does_not_carry_the_login(server, tmp_path, host):
    server.redirect_to = f"http://{host}:{server.server_address[1]}/moved"
    headers = {"authorization": "Bearer planted"}
    assert fetch(server, tmp_path, headers=headers).sha256 == SHA256
    kept = "Bearer planted" if host == "127.0.0.1" else None
    assert set(server.seen) == {("127.0.0.1", "Bearer planted"), (host, kept)}


def test_a_redirect_from_https_to_http_is_refused(tmp_path, monkeypatch):
    answer = requests.Response()
    answer.status_code, answer.url = 200, "http://a.org/y"
    monkeypatch.setattr(requests.Session, "get", lambda *given, **also: answer)
    with expect_error(FetchError):
        fetch_url("https://a.org/x", str(tmp_path / "x"), parts_path=str(tmp_path / "parts"), sha256=None)


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_an_empty_file_is_a_file(server, tmp_path, knows_ranges):
    server.knows_ranges, server.content = knows_ranges, b""
    assert fetch(server, tmp_path, sha256=hashlib.sha256().hexdigest()).size_in_bytes == 0
    assert (tmp_path / "out/data.bin").read_bytes() == b""


def test_a_file_of_unknown_size_is_fetched_in_one_request(server, tmp_path):
    server.total = "*"
    assert fetch(server, tmp_path).sha256 == SHA256
    assert server.ranges == ["bytes=0-0", None]


def test_a_broken_encryption_is_retried(server, tmp_path, monkeypatch):
    read, broken = http.client.HTTPResponse.read, [ssl.SSLError("bad record mac")]

    def read_or_break(response, *given):
        if response.headers.get("Content-Length") != "1" and broken:
            raise broken.pop()
        return read(response, *given)

    monkeypatch.setattr(http.client.HTTPResponse, "read", read_or_break)
    assert fetch(server, tmp_path).sha256 == SHA256
    assert not broken


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_file_of_another_size_than_the_publisher_lists_is_refused(server, tmp_path, knows_ranges):
    server.knows_ranges = knows_ranges
    with expect_error(ChecksumError):
        fetch(server, tmp_path, sha256=None, size_in_bytes=7)
    assert not (tmp_path / "out/data.bin").exists()
    assert fetch(server, tmp_path, sha256=None, size_in_bytes=len(CONTENT)).sha256 == SHA256


def test_a_lasting_server_error_is_unreachable(server, tmp_path):
    server.failures = [503] * 3
    with expect_error(UnreachableError):
        fetch(server, tmp_path)


def test_a_missing_file_is_not_retried(server, tmp_path):
    server.failures = [404, 404]
    with expect_error(FetchError):
        fetch(server, tmp_path)
    assert server.failures == [404]


def test_a_wrong_checksum_shows_both_and_leaves_no_file(server, tmp_path):
    with expect_error(ChecksumError):
        fetch(server, tmp_path, sha256="0" * 64)
    assert not (tmp_path / "out/data.bin").exists()


def test_a_missing_network_is_unreachable(tmp_path):
    with expect_error(UnreachableError):
        fetch_url(
            "http://127.0.0.1:9/data.bin",
            str(tmp_path / "data.bin"),
            parts_path=str(tmp_path / "parts"),
            sha256=None,
        )


def test_an_index_gives_the_matching_addresses_sorted(server, tmp_path):
    server.content = b"data/web/b.jsonl\ndata/web/a.jsonl\ndata/code/c.jsonl\n"
    found = list_index(
        server.url, str(tmp_path / "index"), base="https://example.org/", patterns=("*/web/*",), sha256=None
    )
    assert found == ["https://example.org/data/web/a.jsonl", "https://example.org/data/web/b.jsonl"]
    with expect_error(FetchError):
        list_index(
            server.url, str(tmp_path / "index"), base="https://example.org/", patterns=("*/math/*",), sha256=None
        )
