"""Listings of a hub: the files of a pinned revision by pattern, with size and checksum."""

import http.server
import json
import threading

import pytest

from runtime.text.fetch.errors import FetchError, UnreachableError
from runtime.text.fetch.hub import list_files, parse_dataset_address
from tests.catalogue import expect_error

REPO, REVISION = "someone/texts", "0123456789012345678901234567890123456789"
LFS = {"oid": "e" * 64, "size": 5, "pointerSize": 1}
PAGES = [
    [
        {"type": "file", "path": "README.md", "size": 10, "oid": "b" * 40},
        {"type": "directory", "path": "data", "oid": "f" * 40},
        {"type": "file", "path": "data/b.jsonl.gz", "size": 7, "oid": "c" * 40},
    ],
    [{"type": "file", "path": "data/a.jsonl.gz", "size": 5, "oid": "d" * 40, "lfs": LFS}],
]


class Hub(http.server.BaseHTTPRequestHandler):
    described = ("README.md",)

    def do_GET(self) -> None:
        tree, host = f"/api/datasets/{REPO}/tree/{REVISION}", self.headers["Host"]
        if self.path.startswith(f"/api/datasets/{REPO}/revision/{REVISION}"):
            siblings = [{"rfilename": name} for name in self.described]
            self.answer({"id": REPO, "sha": REVISION, "siblings": siblings})
        elif self.path.startswith(f"{tree}?cursor=1"):
            self.answer(PAGES[1])
        elif self.path.startswith(tree):
            self.answer(PAGES[0], Link=f'<http://{host}{tree}?cursor=1>; rel="next"')
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def answer(self, value: object, **headers: str) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def endpoint():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_files_are_sorted_with_size_checksum_and_address(endpoint):
    first, second = list_files(REPO, REVISION, ("*.jsonl.gz",), repo_type="dataset", endpoint=endpoint)
    assert (first.name, first.size_in_bytes, first.sha256) == ("data/a.jsonl.gz", 5, "e" * 64)
    assert (second.name, second.size_in_bytes, second.sha256) == ("data/b.jsonl.gz", 7, None)
    assert first.url == f"{endpoint}/datasets/{REPO}/resolve/{REVISION}/data%2Fa.jsonl.gz" or first.url.endswith(
        "a.jsonl.gz"
    )


def test_a_listing_without_a_file_that_the_hub_describes_is_refused(endpoint, monkeypatch):
    monkeypatch.setattr(Hub, "described", ("README.md", "data/z.jsonl.gz"))
    with expect_error(UnreachableError):
        list_files(REPO, REVISION, ("*.jsonl.gz",), repo_type="dataset", endpoint=endpoint)


def test_a_pattern_without_matches_is_refused(endpoint):
    with expect_error(FetchError):
        list_files(REPO, REVISION, ("*.parquet",), repo_type="dataset", endpoint=endpoint)


def test_an_unknown_repository_is_refused(endpoint):
    with expect_error(FetchError):
        list_files("someone/else", REVISION, ("*",), repo_type="dataset", endpoint=endpoint)


def test_a_missing_network_is_unreachable():
    with expect_error(UnreachableError):
        list_files(REPO, REVISION, ("*",), repo_type="dataset", endpoint="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("path", "pattern"),
    [("", "*"), ("/", "*"), ("/data/", "data/*"), ("/data/*.parquet", "data/*.parquet"), ("/a.jsonl", "a.jsonl")],
)
def test_an_address_names_a_data_set_its_revision_and_its_files(path, pattern):
    assert parse_dataset_address(f"hf://datasets/{REPO}@{REVISION}{path}") == (REPO, REVISION, pattern)


@pytest.mark.parametrize(
    "address",
    [
        f"hf://datasets/{REPO}/a.jsonl",
        f"hf://datasets/{REPO}@main/a.jsonl",
        f"hf://datasets/{REPO}@",
        f"hf://{REPO}@{REVISION}",
        f"hf://models/{REPO}@{REVISION}",
        f"s3://datasets/{REPO}@{REVISION}",
    ],
)
def test_an_address_without_a_commit_is_refused(address):
    with expect_error(ValueError):
        parse_dataset_address(address)
