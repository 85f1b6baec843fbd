"""Downloads of many files: a failed file costs no other, and a 404 is not taken for a 503."""

import contextlib
import fnmatch
import functools
import hashlib
import http.server
import json
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import ValidationError

from marin_dag.errors import RefusedConfigError, UserError
from marin_dag.graph.assignments import build_graph
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Records
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from runtime.text.fetch import failures, hub
from runtime.text.fetch import http as fetch_http
from runtime.text.fetch.errors import Failure, UnreachableError
from runtime.text.fetch.failures import FailureStreak, IncompleteDownloadError
from steps.download import DownloadConfig, DownloadResult, download
from steps.fetch import UNPINNED, HuggingFaceDataset, HuggingFaceModel, UrlIndex, files_in
from tests.catalogue import check_message, expect_error

NAMES = tuple(f"data/{letter}.jsonl" for letter in "abcd")


class Publisher(http.server.ThreadingHTTPServer):
    """A server of an index of `names` and the files, or of an error status where `statuses` has one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.names = NAMES
        self.statuses: dict[str, int] = {}
        self.asked: Counter[str] = Counter()
        self.content: bytes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.asked[name] += 1
        status = self.server.statuses.get(name, 200)
        body = "\n".join(self.server.names).encode() if name == "index" else f"text of {name}".encode()
        body = self.server.content if self.server.content is not None and name != "index" else body
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a probe reads one byte
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def publisher(monkeypatch) -> Iterator[Publisher]:
    monkeypatch.setattr(fetch_http, "ATTEMPTS", 3)
    monkeypatch.setattr(fetch_http, "sleep", lambda seconds: None)
    with Publisher() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def listed(publisher, **changes):
    index = UrlIndex(index=f"{publisher.url}index", index_sha256=None, base=publisher.url, files=("data/*",), **changes)
    return DownloadConfig(fetch=index)


class Shown:
    """A file that keeps what a display writes."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def run(prefix: Path, config: DownloadConfig) -> tuple[DownloadResult | None, str]:
    from rich.console import Console

    shown = Shown()
    console = Console(file=shown, width=1_000)
    step = download("download/web", config)
    store = open_store(str(prefix))
    Run(Graph([step]).steps, store, LocalBackend(), LineDisplay(console, console), command="again").run()
    record = Records(store).find(step.digest)
    return None if record is None else DownloadResult.model_validate(record.result), shown.text


def logs(prefix: Path) -> str:
    return "".join(path.read_text() for path in prefix.rglob("*.log"))


def test_an_error_names_the_failed_files_and_the_next_attempt_asks_for_those_alone(publisher, tmp_path):
    publisher.statuses = {"data/a.jsonl": 404, "data/c.jsonl": 503}
    result, _ = run(tmp_path, listed(publisher))
    assert result is None
    # A missing file is asked for once, a server in trouble as often as retries allow.
    assert (publisher.asked["data/a.jsonl"], publisher.asked["data/c.jsonl"]) == (1, 3)
    publisher.statuses = {}
    publisher.asked.clear()
    result, _ = run(tmp_path, listed(publisher))
    assert [file.name for file in result.files] == list(NAMES)
    assert [file.path for file in result.files] == [f"files/{i:05d}/{n[5:]}" for i, n in enumerate(NAMES)]
    assert result.missing == ()
    assert set(publisher.asked) == {"index", "data/a.jsonl", "data/c.jsonl"}


def test_a_file_that_fails_again_is_asked_for_again_each_time(publisher, tmp_path):
    publisher.statuses = {"data/b.jsonl": 404}
    for _ in range(3):
        assert run(tmp_path, listed(publisher))[0] is None
    assert publisher.asked["data/b.jsonl"] == 3
    assert publisher.asked["data/a.jsonl"] == 2  # the size, and the file


def contents(prefix, result):
    """Return the text at the path of each file, by the file's name."""
    outputs = {path.parents[2] for path in prefix.rglob(result.files[0].path)}
    (output,) = (folder for folder in outputs if all((folder / file.path).exists() for file in result.files))
    return {file.name: (output / file.path).read_text() for file in result.files}


def test_kept_files_move_with_their_place_in_the_list(publisher, tmp_path):
    publisher.statuses = {"data/d.jsonl": 503}
    assert run(tmp_path, listed(publisher))[0] is None
    publisher.statuses = {}
    publisher.asked.clear()
    publisher.names = ("data/0.jsonl", *NAMES[1:], "data/a.jsonl?new", "data/e.jsonl")
    result, _ = run(tmp_path, listed(publisher))
    assert [file.path for file in result.files] == [
        "files/00000/0.jsonl",
        "files/00001/a.jsonl",
        *(f"files/{index:05d}/{letter}.jsonl" for index, letter in enumerate("bcde", start=2)),
    ]
    assert contents(tmp_path, result) == {
        f"data/{letter}.jsonl": f"text of data/{letter}.jsonl{'?new' * (letter == 'a')}" for letter in "0abcde"
    }
    assert not {"data/b.jsonl", "data/c.jsonl"} & set(publisher.asked)  # which were kept


MANY = tuple(f"data/{number:02d}.jsonl" for number in range(40))


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_publisher_that_refuses_every_file_is_not_asked_for_every_file(publisher, tmp_path, status):
    publisher.names, publisher.statuses = MANY, dict.fromkeys(MANY, status)
    result, _ = run(tmp_path, listed(publisher))
    assert result is None
    assert "RefusedError" in logs(tmp_path)
    assert len(publisher.asked) < 35


def test_files_may_be_missing_in_a_row_and_one_that_arrived_shows_that_not_all_are_refused(publisher, tmp_path):
    publisher.names, publisher.statuses = MANY, dict.fromkeys(MANY[:20], 404)
    result, _ = run(tmp_path / "allowed", listed(publisher, max_missing_share=0.5))
    assert (len(result.files), len(result.missing)) == (20, 20)
    publisher.statuses = dict.fromkeys(MANY[1:31], 403)
    result, _ = run(tmp_path / "refused", listed(publisher))
    assert result is None
    assert set(MANY) <= set(publisher.asked)


def test_a_file_lists_the_failures_that_an_error_has_no_room_for(run_alone, publisher, tmp_path, monkeypatch):
    monkeypatch.setattr(failures, "MAX_NAMED", 2)
    publisher.names, publisher.statuses = MANY, dict.fromkeys(MANY[1:26], 403)
    with expect_error(IncompleteDownloadError):
        run_alone(download, listed(publisher), "web")
    lines = (tmp_path / "outputs" / "web" / "not-fetched.txt").read_text().splitlines()
    assert [line.partition(": ")[0] for line in lines] == [publisher.url + name for name in MANY[1:26]]


def test_missing_files_are_listed_where_a_share_of_them_is_allowed(run_alone, publisher, caplog):
    publisher.statuses = {"data/b.jsonl": 410, "data/d.jsonl": 404}
    found = run_alone(download, listed(publisher, max_missing_share=0.5), "web").result
    assert [file.name for file in found.files] == ["data/a.jsonl", "data/c.jsonl"]
    assert [(file.name, file.status) for file in found.missing] == [("data/b.jsonl", 410), ("data/d.jsonl", 404)]
    assert len(caplog.records) == 3  # one for each file, and one for all


def test_more_missing_files_than_allowed_are_an_error(run_alone, publisher):
    publisher.statuses = {"data/b.jsonl": 410, "data/d.jsonl": 404}
    with expect_error(IncompleteDownloadError):
        run_alone(download, listed(publisher, max_missing_share=0.25), "web")


@pytest.mark.parametrize("status", [500, 503, 403])
def test_a_server_in_trouble_never_counts_as_missing(run_alone, publisher, status):
    publisher.statuses = {"data/b.jsonl": status, "data/d.jsonl": 404}
    with expect_error(IncompleteDownloadError):
        run_alone(download, listed(publisher, max_missing_share=0.9), "web")


def test_files_of_a_hub_may_be_missing_too(run_alone, publisher, monkeypatch):
    files = [hub.RemoteFile(name, publisher.url + name, len(f"text of {name}")) for name in NAMES]
    monkeypatch.setattr(hub, "list_files", lambda *given, **also: files)
    monkeypatch.setattr(hub, "request_headers", dict)
    publisher.statuses = {"data/c.jsonl": 404}
    fetch = HuggingFaceDataset(repo="someone/texts", revision="0" * 40, files=("*",))
    with expect_error(IncompleteDownloadError):
        run_alone(download, DownloadConfig(fetch=fetch), "strict")
    allowed = fetch.model_copy(update={"max_missing_share": 0.3})
    found = run_alone(download, DownloadConfig(fetch=allowed), "lenient").result
    assert [file.name for file in found.files] == [name for name in NAMES if "c" not in name[5:6]]
    assert [file.name for file in found.missing] == ["data/c.jsonl"]


def test_a_model_on_a_hub_is_fetched_without_its_copies_in_other_formats(run_alone, publisher, monkeypatch):
    wanted = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"]
    others = ["README.md", "original/consolidated.00.pth", "original/params.json", "tokenizer_config.json"]
    publisher.statuses = {}

    def listed(repo: str, revision: str, patterns: tuple[str, ...], *, repo_type: str) -> list[hub.RemoteFile]:
        assert (repo, revision, repo_type) == ("meta-llama/Llama-3.1-8B", "d" * 40, "model")
        names = [name for name in (*wanted, *others) if any(fnmatch.fnmatchcase(name, p) for p in patterns)]
        # The server of these tests has files of other names.
        return [
            hub.RemoteFile(name, publisher.url + path, len(f"text of {path}"))
            for name, path in zip(names, NAMES, strict=True)
        ]

    monkeypatch.setattr(hub, "list_files", listed)
    monkeypatch.setattr(hub, "request_headers", dict)
    fetch = HuggingFaceModel(repo="meta-llama/Llama-3.1-8B", revision="d" * 40)
    found = run_alone(download, DownloadConfig(fetch=fetch), "llama").result
    assert [file.name for file in found.files] == wanted
    with pytest.raises(ValidationError) as refused:
        HuggingFaceModel(repo="meta-llama/Llama-3.1-8B", revision="main")
    check_message(refused.value.errors()[0]["msg"])


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub at 127.0.0.1 that redirects to localhost for its files; keeps the token that each host received."""

    received: ClassVar[set[tuple[str, str, str | None]]] = set()
    files: ClassVar[dict[str, bytes]] = {"data/a.jsonl": b"text of a", "data/b.jsonl": b"text of b"}

    def do_GET(self) -> None:
        host, _, port = self.headers["Host"].partition(":")
        kind = self.path.split("/")[1]
        self.received.add((host, kind, self.headers.get("Authorization")))
        status, headers, body = 200, {}, b""
        if kind == "api":
            large = {"lfs": {"oid": hashlib.sha256(b"text of a").hexdigest(), "size": 9, "pointerSize": 1}}
            tree = [
                {"type": "file", "path": "data/a.jsonl", "size": 9, "oid": "a" * 40, **large},
                {"type": "file", "path": "data/b.jsonl", "size": 9, "oid": "b" * 40},
                {"type": "file", "path": "README.md", "size": 9, "oid": "c" * 40},
            ]
            described = {"id": "someone/texts", "siblings": [{"rfilename": file["path"]} for file in tree]}
            body = json.dumps(tree if "/tree/" in self.path else described).encode()
            headers = {"Content-Type": "application/json"}
        elif kind == "datasets":
            name = urllib.parse.unquote(self.path.partition(f"/resolve/{'0' * 40}/")[2])
            status, headers = 302, {"Location": f"http://localhost:{port}/cdn/{name}"}
        else:
            body = self.files[self.path.removeprefix("/cdn/")]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def own_hub(monkeypatch) -> Iterator[type[Hub]]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as running:
        endpoint = f"http://127.0.0.1:{running.server_address[1]}"
        monkeypatch.setattr(hub, "list_files", functools.partial(hub.list_files, endpoint=endpoint))
        monkeypatch.setenv("HF_TOKEN", "planted")
        monkeypatch.setattr(Hub, "received", set())
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield Hub
        running.shutdown()
        thread.join()


ADDRESS = f"hf://datasets/someone/texts@{'0' * 40}/data/"


def test_files_of_an_address_come_from_the_hub_and_its_store_does_not_receive_the_token(run_alone, own_hub):
    found = run_alone(download, DownloadConfig(fetch=ADDRESS), "hub")
    assert [(file.name, file.size_in_bytes) for file in found.result.files] == [
        ("data/a.jsonl", 9),
        ("data/b.jsonl", 9),
    ]
    assert Path(found.join(found.result.files[1].path)).read_bytes() == b"text of b"
    token = "Bearer planted"
    received = {("127.0.0.1", "api", token), ("127.0.0.1", "datasets", token), ("localhost", "cdn", None)}
    assert own_hub.received == received


@pytest.mark.parametrize("name", ["data/a.jsonl", "data/b.jsonl"])
def test_a_file_of_another_checksum_or_size_than_its_hub_lists_is_refused(run_alone, own_hub, monkeypatch, name):
    monkeypatch.setattr(own_hub, "files", {**own_hub.files, name: b"other text" if "b." in name else b"other txt"})
    with expect_error(IncompleteDownloadError):
        run_alone(download, DownloadConfig(fetch=ADDRESS), "hub")


def test_an_address_becomes_the_data_set_that_it_names():
    fetch = HuggingFaceDataset(repo="someone/texts", revision="0" * 40, files=("data/*",))
    assert DownloadConfig(fetch=ADDRESS) == DownloadConfig(fetch=fetch)
    other = ADDRESS.replace("data/", "other/")
    build = functools.partial(download, "download/web", DownloadConfig(fetch=fetch))
    changed = build_graph(lambda: Graph([build()]), [f"download/web.fetch={other}"])
    assert changed.steps[0].config.fetch.files == ("other/*",)
    with pytest.raises(ValidationError) as refused:
        DownloadConfig(fetch="hf://datasets/someone/texts@main/data/")
    check_message(refused.value.errors()[0]["msg"])


def test_a_publisher_that_does_not_answer_is_not_asked_for_every_file():
    streak, failure = FailureStreak(), Failure("a", "no network", None, is_unreachable=True)
    for _ in range(15):
        streak.count(failure)
    streak.count(None)
    for _ in range(15):
        streak.count(failure)
    with expect_error(UnreachableError):
        streak.count(failure)


def test_a_run_refuses_a_data_set_without_a_revision_and_a_plan_does_not() -> None:
    unpinned = HuggingFaceDataset(repo="someone/texts", revision=UNPINNED, files=("*",))
    assert download.check_decided is not None and download.check is None
    with expect_error(RefusedConfigError) as refused:
        download.check_decided(DownloadConfig(fetch=unpinned))
    assert refused.value.cure == {"fetch.revision": "COMMIT"}
    download.check_decided(DownloadConfig(fetch=unpinned.model_copy(update={"revision": "abcdef1"})))


@pytest.mark.parametrize("folder", ["", " "])
def test_a_folder_without_a_name_is_refused(folder):
    with expect_error(UserError):
        files_in(folder, "*")
