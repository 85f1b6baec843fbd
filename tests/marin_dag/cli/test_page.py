"""page: the data it shows, the requests it sends, access by key, and errors of the store."""

import base64
import hashlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from marin_dag.cli import page_server, polled, watched
from marin_dag.cli.page_content import PageContent
from marin_dag.cli.page_server import PageServer
from marin_dag.cli.watched import Watched
from marin_dag.errors import UserError
from marin_dag.ledger.lease import Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.records import attempt_path
from marin_dag.ledger.requests import Requests
from marin_dag.store.prefix import open_store
from marin_dag.store.store import StoreError
from tests.catalogue import check_message, expect_error
from tests.marin_dag.workbench import Workbench


class Browser:
    """A client that sends the requests of the page."""

    def __init__(self, server: PageServer) -> None:
        self.base, _, self.key = server.address.partition("#")
        self.port = server.server_port

    def __call__(self, path: str, given: object = None, *, key: str | None = None) -> tuple[int, Any]:
        data = None if given is None else (given if isinstance(given, str) else json.dumps(given)).encode()
        headers = {"X-Key": self.key if key is None else key}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.base + path, data, headers)) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]


@pytest.fixture
def hearing(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """Return a recipe whose phases take requests, made up to the end of its first phase."""
    monkeypatch.setattr(polled, "POLL_SECONDS", 0.0)
    bench.edit('continues="start", cost=train_cost', 'continues="start", cost=train_cost, requests=("save", "publish")')
    bench("--until", "first")
    return bench


@pytest.fixture
def browser(hearing: Workbench) -> Iterator[Browser]:
    server = PageServer(Watched("bench", hearing.plan(), open_store(str(hearing.prefix))), 0)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    serving.start()
    yield Browser(server)
    server.shutdown()
    server.server_close()
    serving.join()


@pytest.fixture
def at_work(hearing: Workbench) -> Iterator[Lease]:
    """Return the lease of a running attempt at the second phase."""
    leases = Leases(open_store(str(hearing.prefix)))
    lease = leases.acquire(hearing.plan()["second"].step.digest, "second", lambda: None, milestones=(20,))
    assert isinstance(lease, Lease)
    lease.progress, lease.has_started = Progress(15, 20, "steps", {"loss": 2.5}, 10), True
    lease.beat()
    yield lease
    lease.release()
    leases.close()


def test_it_shows_running_steps_and_sends_requests(hearing: Workbench, browser: Browser, at_work: Lease) -> None:
    status, state = browser("state")
    assert status == 200 and state["pipeline"] == "bench" and state["verdicts"]["done"] == 4
    (second,) = state["running"]
    assert (second["name"], second["share"], second["is_queued"]) == ("second", 0.5, False)
    assert second["progress"].startswith("15/20 steps  loss 2.5")
    assert second["words"] == ["stop", "save", "publish"] and second["takes_milestone"]

    status, _ = browser("request", {"name": "second", "word": "save", "at": None, "reason": "before lunch"})
    assert status == 200
    requests = Requests(open_store(str(hearing.prefix)))
    (request,) = requests.of(at_work.digest)
    assert (request.action, request.reason) == ("save", "before lunch")
    (shown,) = browser("state")[1]["requests"]
    assert shown["text"].endswith(": before lunch") and shown["reply"] is None
    requests.reply(request, "an attempt", "saved step 15")
    (shown,) = browser("state")[1]["requests"]
    assert shown["reply"] == {"text": "saved step 15", "is_refused": False}


@pytest.mark.parametrize(
    "given",
    [
        {"name": "second", "word": "sve", "at": None, "reason": ""},
        {"name": "secnd", "word": "save", "at": None, "reason": ""},
        {"name": "second", "word": "publish", "at": 9, "reason": ""},
        {"name": "count", "word": "stop", "at": None, "reason": ""},
        {"name": "second", "word": "save", "at": True, "reason": ""},
        {"name": "second", "word": "save"},
        ["second", "save"],
    ],
)
def test_a_request_that_no_step_takes_is_refused_and_not_stored(
    hearing: Workbench, browser: Browser, at_work: Lease, given: object
) -> None:
    status, error = browser("request", given)
    assert status == 400
    check_message(error)
    assert Requests(open_store(str(hearing.prefix))).of_all() == []


@pytest.mark.parametrize("key", ["", "wrong"])
def test_without_the_key_nothing_is_shown_or_sent(
    hearing: Workbench, browser: Browser, at_work: Lease, key: str
) -> None:
    for path, given in (("state", None), ("log?name=first", None), ("request", {"name": "second", "word": "stop"})):
        assert browser(path, given, key=key)[0] == 403
    with urllib.request.urlopen(browser.base) as page:
        assert browser.key not in page.read().decode()
    assert Requests(open_store(str(hearing.prefix))).of_all() == []


class Content:
    """Additions of a recipe: one view, and values between two places."""

    style, markup, scripts = "i{}", "<i>here</i>", ("let a = 1",)

    def values(self, low: float | None, high: float | None) -> dict[str, Any]:
        return {"figures": {"ends": [low, high]}, "alarms": [], "views": []}

    def view(self, name: str) -> str:
        if name != "map":
            raise UserError("page: no such view.")
        return "<h1>map</h1>"


def test_the_first_html_shows_the_graph_and_its_states_come_from_the_plan_of_the_command(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with urllib.request.urlopen(browser.base) as page:
        text = page.read().decode()
    assert re.search(r"<h1[^>]*>bench</h1>", text)
    assert re.search(r'<span>third</span><div><button type="button" class="step">\w+</button>', text)
    assert "missing" not in text.partition("<script>")[0], "a state is data, which needs the key"
    monkeypatch.setattr(watched, "make_plan", lambda *_: pytest.fail("the plan is there"))
    status, state = browser("state")
    assert status == 200 and {each["verdict"] for each in state["steps"]} >= {"done", "missing"}


def test_a_view_opens_once_in_a_sandbox_and_only_scripts_of_the_page_run(hearing: Workbench) -> None:
    watched_ = Watched("bench", hearing.plan(), open_store(str(hearing.prefix)))
    with PageServer(watched_, 0, Content()) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        browser = Browser(server)
        with urllib.request.urlopen(browser.base) as page:
            policy, text = page.headers["Content-Security-Policy"], page.read().decode()
        assert "<i>here</i>" in text and "i{}" in text and "unsafe-eval" not in policy
        for script in re.findall("<script>(.*?)</script>", text, re.S):
            assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
        assert policy.count("sha256-") == 2 and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy

        _, values = browser("values?low=1&high=2.5")
        assert values["figures"] == {"ends": [1.0, 2.5]}
        assert browser(f"values?low=1&high=2.5&known={values['version']}")[1] == {"version": values["version"]}
        refused = [browser(f"values?low={low}") for low in ("x", "nan", "inf")]
        assert len(set(refused)) == 1 and refused[0][0] == 400
        check_message(refused[0][1])
        assert browser("values", key="")[0] == 403

        assert browser("open", "map", key="")[0] == 403
        (path,) = browser("open", "map")[1].values()
        with urllib.request.urlopen(browser.base.rstrip("/") + path) as view:
            assert view.read() == b"<h1>map</h1>" and view.headers["Content-Security-Policy"].startswith("sandbox")
        (other,) = browser("open", "other")[1].values()
        codes = [browser(each.lstrip("/"), key="")[0] for each in (path, "/open/", "/open/ab", other)]
        assert codes == [403, 403, 403, 400]
        server.shutdown()


def test_broken_connections_and_bad_requests_print_nothing_and_silent_ones_are_closed(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(head: str) -> socket.socket:
        asking = socket.create_connection(("127.0.0.1", browser.port), timeout=20)
        asking.sendall(head.encode())
        return asking

    key = f"X-Key: {browser.key}\r\n"
    for head, answer in (
        ("GET http://[ HTTP/1.0\r\n\r\n", b" 403 "),
        (f"POST /request HTTP/1.0\r\n{key}Content-Length: {'9' * 5000}\r\n\r\n", b" 400 "),
        (f"POST /request HTTP/1.0\r\n{key}\r\n", b" 400 "),
    ):
        with ask(head) as asking, asking.makefile("rb") as answered:
            assert answer in answered.read()

    answering, has_gone = threading.Event(), threading.Event()

    def slow(self: Watched) -> dict[str, Any]:
        answering.set()
        assert has_gone.wait(20)
        return {}

    monkeypatch.setattr(Watched, "document", slow)
    with ask(f"GET /state HTTP/1.0\r\n{key}\r\n") as asking:
        assert answering.wait(20)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
    has_gone.set()

    monkeypatch.setattr(page_server._Handler, "timeout", 0.05)
    with ask("") as silent:
        assert silent.recv(1) == b""
    assert capsys.readouterr().err == ""


def test_it_shows_logs_steps_that_need_the_user_and_leases_of_other_settings(
    hearing: Workbench, browser: Browser
) -> None:
    status, answer = browser("log?name=text/web")
    assert status == 200 and "committed" in answer["log"]
    assert browser("log?name=third") == (200, {"log": ""})
    assert browser("log?name=thrid")[0] == 400
    assert browser("nothing")[0] == 404

    hearing.edit("FACTOR = 2", "FACTOR = 3")
    leases = Leases(open_store(str(hearing.prefix)))
    leases.acquire("ab" * 32, "unknown", lambda: None)
    other = PageServer(Watched("bench", hearing.plan(), open_store(str(hearing.prefix))), 0)
    with other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        state = Browser(other)("state")[1]
    leases.close()
    assert [each["name"] for each in state["running_with_other_settings"]] == ["unknown"]
    drifted = {each["name"]: each for each in state["waiting"]}["count"]
    assert drifted["verdict"] == "drifted" and "FACTOR" in " ".join(drifted["reasons"])


def test_an_error_of_the_store_is_shown_and_the_store_is_read_again(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_looks = 0

    def unreachable(self: Leases) -> None:
        nonlocal num_looks
        num_looks += 1
        raise StoreError("gs://bucket: it cannot be reached", is_transient=True)

    with monkeypatch.context() as broken:
        broken.setattr(polled, "POLL_SECONDS", 60.0)
        broken.setattr(Leases, "running_and_silent", unreachable)
        for _ in range(2):
            assert browser("state")[0] == 503
        assert num_looks == 1, "other pages get the same error, and do not wait for the store again"
    assert browser("state")[0] == 200


def test_a_request_is_sent_while_a_look_hangs_and_shown_by_the_next_look(
    browser: Browser, at_work: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polled, "POLL_SECONDS", 60.0)
    look, is_past, goes_on = Watched._look, threading.Event(), threading.Event()

    def hanging(self: Watched) -> dict[str, Any]:
        found = look(self)
        is_past.set()
        assert goes_on.wait(20)
        return found

    monkeypatch.setattr(Watched, "_look", hanging)
    looking = threading.Thread(target=browser, args=("state",))
    looking.start()
    try:
        assert is_past.wait(20)
        asked = json.dumps({"name": "second", "word": "save", "at": None, "reason": ""}).encode()
        with urllib.request.urlopen(
            urllib.request.Request(browser.base + "request", asked, {"X-Key": browser.key}), timeout=10
        ) as answer:
            assert answer.status == 200
    finally:
        goes_on.set()
        looking.join()
    assert len(browser("state")[1]["requests"]) == 1


def test_a_look_reads_only_the_newest_requests_and_drops_deleted_ones(
    hearing: Workbench, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "SHOWN_REQUESTS", 2)
    requests = Requests(open_store(str(hearing.prefix)))
    for number in range(5):
        requests.send("ab" * 32, "second", "save", reason=f"reason {number}", fork="x" if number == 3 else "")
    paths = sorted((hearing.prefix / "requests").rglob("*.json"))
    paths[0].write_text("{")  # older than those shown
    paths[4].write_text("{")
    state = browser("state")[1]
    assert [request["text"].rpartition(" ")[2] for request in state["requests"]] == ["3"]
    (damaged,) = state["damaged"]
    assert str(paths[4]) in damaged
    paths[4].unlink()
    requests.withdraw("x")
    state = browser("state")[1]
    assert [request["text"].rpartition(" ")[2] for request in state["requests"]] == ["2", "1"] and state[
        "damaged"
    ] == []


def test_an_attempt_under_the_name_of_another_step_is_shown_under_its_own(hearing: Workbench, browser: Browser) -> None:
    store = open_store(str(hearing.prefix))
    leases, step = Leases(store), hearing.plan()["third"].step
    lease = leases.acquire(step.digest, "first", lambda: None)
    assert isinstance(lease, Lease)
    store.write(f"{attempt_path('first', step.digest, 'attempt')}.log", bytes(watched.LOG_BYTES) + b"a line")
    try:
        (shown,) = browser("state")[1]["running"]
        assert shown["name"] == "third"
        log = browser("log?name=third")[1]["log"]
        assert len(log) == watched.LOG_BYTES and log.endswith("a line")
    finally:
        lease.release()
        leases.close()


def test_a_look_writes_nothing_and_each_attempt_has_its_own_pace(hearing: Workbench, browser: Browser) -> None:
    store = open_store(str(hearing.prefix))
    leases, digest = Leases(store), hearing.plan()["second"].step.digest
    silent = leases.acquire("ab" * 32, "unknown", lambda: None)
    for path in (hearing.prefix / "leases" / ("ab" * 32)).iterdir():
        os.utime(path, (0, 0))
    try:
        for done in (10, 12, 15):
            lease = leases.acquire(digest, "second", lambda: None, milestones=(20,))
            assert isinstance(lease, Lease)
            lease.progress, lease.has_started = Progress(done, 20, "steps", {}, 10), True
            lease.beat()
            before = hearing.files()
            (shown,) = browser("state")[1]["running"]
            assert hearing.files() == before
            assert shown["progress"] == f"{done}/20 steps", "no time left without a pace"
            lease.release()
    finally:
        assert isinstance(silent, Lease)
        silent.release()
        leases.close()


def test_ctrl_c_closes_the_page_and_a_taken_port_is_an_error(hearing: Workbench) -> None:
    program = f"import sys; sys.path.insert(0, {str(hearing.file.parent)!r}); import {hearing.file.stem} as recipe; "
    program += "from marin_dag.cli.main import main; sys.exit(main(recipe.build, name='bench'))"
    command = [sys.executable, "-c", program, "page", "--prefix", str(hearing.prefix)]
    page = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert page.stdout is not None
        first, *_ = [page.stdout.readline() for _ in range(3)]
        assert first.startswith("page ") and "***" not in first, first
        port = first.partition("http://127.0.0.1:")[2].partition("/#")[0]
        code, output = hearing("page", "--port", port)
        assert code == 1
        check_message(output.replace(port, "<port>"))
        page.send_signal(signal.SIGINT)
        check_message(page.communicate(timeout=30)[0])
        assert page.returncode == 0
    finally:
        page.kill()
        page.wait()


def test_a_recipe_without_content_has_no_views_and_no_data() -> None:
    assert PageContent().values(None, None) == {"figures": {}, "alarms": [], "views": []}
    with expect_error(UserError):
        PageContent().view("map")
    with expect_error(UserError):
        PageContent().data({})
