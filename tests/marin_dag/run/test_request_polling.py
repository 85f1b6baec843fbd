"""Request polling: running steps get requests and reply, and no request can break a driver."""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.console import Console

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import COPIES, Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.records import Failure, Records
from marin_dag.ledger.requests import END, PUBLISH, REQUESTS, STOP, Reply, Requests
from marin_dag.plan.plan import make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.plan.reasons import Stopped
from marin_dag.run import driver as run
from marin_dag.run import request_polling
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.ray.backend import RayBackend
from marin_dag.run.request_polling import AttemptRequests
from marin_dag.run.task import Outcome
from marin_dag.store.local import LocalStore
from marin_dag.store.store import StoreError
from tests.marin_dag.toy_steps import CountConfig, SumConfig, WriteConfig, count, summed, write

PATIENCE_SECONDS = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_polling, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(run, "ELSEWHERE_POLL_SECONDS", 0.01)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "runs"))


class Watcher(LineDisplay):
    """A person at another terminal who acts once, at a given progress, and sees what the driver shows."""

    def __init__(self, at: int = -1, act: Callable[[], Any] = lambda: None) -> None:
        super().__init__(Console(quiet=True), Console(quiet=True))
        self._at, self._act = at, act
        self.lines: list[str] = []
        self.events: list[tuple[str, str]] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def event(self, name: str, what: str, detail: str) -> None:
        self.events.append((name, what))

    def progress(self, name: str, progress: Progress) -> None:
        if progress.done == self._at:
            self._at = -1
            self._act()

    def events_of(self, name: str) -> list[str]:
        return [what for step, what in self.events if step == name]


def phase(store: LocalStore, name: str = "trunk", **fields: Any) -> Step[Any]:
    marks = str(Path(store.prefix).parent / "marks")
    return count(name, CountConfig(**{"stride": 2, "until_step": 400, "publish_every": 1000, "marks": marks, **fields}))


def ran(store: LocalStore, *steps: Step[Any], display: LineDisplay | None = None) -> int:
    return Run(steps, store, LocalBackend(), display or Watcher(), command="").run()


def published(store: LocalStore, step: Step[Any]) -> list[int]:
    return sorted(Records(store).milestones(step.digest))


def replies(store: LocalStore, step: Step[Any]) -> list[Reply | None]:
    return [Requests(store).reply_to(request) for request in Requests(store).of(step.digest)]


def test_a_step_that_is_asked_to_stop_saves_and_leaves_and_independent_steps_continue(store: LocalStore) -> None:
    trunk, other = phase(store, seconds=0.002), phase(store, "other", stride=3, until_step=5)
    total = summed("total", SumConfig(counts=(trunk.at(step=400),)))
    requests = Requests(store)
    display = Watcher(10, lambda: requests.send(trunk.digest, "trunk", STOP, reason="the disk is full"))
    assert ran(store, trunk, other, total, display=display) == 1
    assert [display.events_of(name)[-1] for name in ("trunk", "other", "total")] == ["stopped", "done", "blocked"]
    (request,), (reply,) = requests.of(trunk.digest), replies(store, trunk)
    assert reply is not None and not reply.is_declined
    plan = make_plan(Graph([trunk, other, total]), store)
    (stopped,) = (reason for planned in plan.steps for reason in planned.reasons if isinstance(reason, Stopped))
    assert stopped in plan["trunk"].reasons and plan["trunk"].verdict is Verdict.BEGUN
    assert (stopped.author, stopped.because) == (request.author, "the disk is full")
    assert ran(store, trunk, other, total) == 0, "a later driver continues"
    assert len(list((Path(store.prefix).parent / "marks").glob("count*"))) == 400 + 5, "no step is made twice"


@pytest.mark.parametrize("is_trajectory", [True, False])
def test_a_waiting_driver_does_not_take_over_a_step_that_was_asked_to_stop(
    store: LocalStore, is_trajectory: bool
) -> None:
    trunk: Step[Any] = phase(store) if is_trajectory else write("trunk", WriteConfig(text="a"))
    held = Leases(store).acquire(trunk.digest, "trunk", lambda: None, milestones=(400,))
    assert isinstance(held, Lease)

    class Stopping(Watcher):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "elsewhere":
                Requests(store).send(trunk.digest, "trunk", STOP, reason="enough")
                held.release()

    display = Stopping()
    assert ran(store, trunk, display=display) == 1
    assert display.events_of("trunk") == ["elsewhere", "stopped"]
    assert Records(store).committed_keys() == frozenset()


@pytest.mark.parametrize("action", [STOP, PUBLISH])
def test_a_request_from_before_the_driver_started_is_declined_and_not_followed(store: LocalStore, action: str) -> None:
    trunk = phase(store, until_step=20, seconds=0.002)
    Requests(store).send(trunk.digest, "trunk", action, reason="for a run that hung")
    assert ran(store, trunk) == 0
    (reply,) = replies(store, trunk)
    assert reply is not None and reply.is_declined
    assert published(store, trunk) == [20]


def test_a_stop_between_two_attempts_prevents_the_next_one(store: LocalStore) -> None:
    trunk = phase(store)

    class Unlucky(Watcher):
        """The first attempt fails; while its step waits for the next, a person asks it to stop."""

        def progress(self, name: str, progress: Progress) -> None:
            if progress.done == 5:
                raise ConnectionResetError("reset")

        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "retrying":
                Requests(store).send(trunk.digest, "trunk", STOP)

    display = Unlucky()
    assert ran(store, trunk, display=display) == 1
    assert display.events_of("trunk") == ["started", "retrying", "stopped"]
    assert replies(store, trunk) != [None]
    assert ran(store, trunk) == 0


def test_a_step_whose_turn_has_not_come_can_be_asked_to_stop(store: LocalStore) -> None:
    trunk, other = phase(store, until_step=300, seconds=0.002), phase(store, "other", stride=3, until_step=5)
    total = summed("total", SumConfig(counts=(trunk, other)))
    display = Watcher(10, lambda: Requests(store).send(total.digest, "total", STOP))
    assert ran(store, trunk, other, total, display=display) == 1
    assert display.events_of("total") == ["stopped"]
    assert published(store, trunk) == [300]


@pytest.mark.parametrize("status", ["cancelled", "stopped"])  # of a task, and of a gang
def test_a_step_that_waits_for_its_resources_is_withdrawn(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, status: Literal["cancelled", "stopped"]
) -> None:
    monkeypatch.setattr(run, "QUEUED_SECONDS", 0.0)
    trunk = phase(store)

    class Full(LocalBackend):
        """Starts no task."""

        def wait(self, timeout_seconds: float) -> list[Outcome]:
            time.sleep(0.001)
            withdrawn = [task for task in self._queue if task.key in self._cancelled]
            self._queue = [task for task in self._queue if task not in withdrawn]
            return [Outcome(task, status) for task in withdrawn]

    class Asking(Watcher):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "queued":
                Requests(store).send(trunk.digest, "trunk", STOP, reason="not needed")

    display = Asking()
    assert Run([trunk], store, Full(), display, command="").run() == 1
    assert display.events_of("trunk") == ["queued", "stopped"]
    (reply,) = replies(store, trunk)
    assert reply is not None and reply.attempt == ""


@pytest.mark.usefixtures("ray_cluster")
def test_a_step_on_ray_that_has_just_started_gets_the_stop_itself_and_saves(
    store: LocalStore,
) -> None:
    trunk = phase(store, until_step=10_000, seconds=0.05)

    class AtOnce(RayBackend):
        def wait(self, timeout_seconds: float) -> list[Outcome]:
            if trunk.key in self._started and not Requests(store).of(trunk.digest):
                Requests(store).send(trunk.digest, "trunk", STOP)
            return super().wait(timeout_seconds)

    display = Watcher()
    assert Run([trunk], store, AtOnce(), display, command="").run() == 1
    (reply,) = replies(store, trunk)
    assert reply is not None and reply.attempt
    assert display.events_of("trunk") == ["started", "stopped"]


def test_a_stop_seen_while_another_step_looks_for_its_own_is_followed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, trunk = phase(store, "first", stride=3, until_step=5), phase(store, until_step=5)
    total = summed("total", SumConfig(counts=(trunk,)))
    monkeypatch.setattr(request_polling, "POLL_SECONDS", 1e9)

    class Asking(Watcher):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if (name, what) == ("first", "done"):
                Requests(store).send(total.digest, "total", STOP)
            if (name, what) == ("trunk", "started"):
                monkeypatch.setattr(request_polling, "POLL_SECONDS", 0.0)

    display = Asking()
    assert ran(store, first, trunk, total, display=display) == 1
    assert display.events_of("total") == ["stopped"]


@pytest.mark.parametrize("when", ["while it starts", "while it drains"])
def test_a_detached_run_that_drains_ends_at_a_request_to_its_name(
    when: str, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "QUEUED_SECONDS", 0.0)
    requests = Requests(store)

    class Endless(LocalBackend):
        """Never ends a task."""

        num_waits = 0

        def wait(self, timeout_seconds: float) -> list[Outcome]:
            self.num_waits += 1
            assert self.num_waits < 1000, "the driver does not end"
            time.sleep(0.01)
            if self.num_waits == 20:
                requests.send("walks-1", "walks-1", END)
            return []

    class Interrupting(Watcher):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "queued":
                detached._on_signal(signal.SIGTERM, None)

    display, backend = Interrupting(), Endless()
    requests.send("walks-1", "walks-1", STOP)
    requests.send("walks-2", "walks-2", END)
    if when == "while it starts":
        requests.send("walks-1", "walks-1", END)
    detached = Run([phase(store)], store, backend, display, command="", name="walks-1")
    assert detached.run() == 1
    assert (backend.num_waits < 20) == (when == "while it starts")


def test_a_forced_step_declines_to_publish(store: LocalStore) -> None:
    trunk = phase(store, until_step=200, seconds=0.002)
    assert ran(store, trunk) == 0
    display = Watcher(10, lambda: Requests(store).send(trunk.digest, "trunk", PUBLISH, milestone=150))
    forced = Run([trunk], store, LocalBackend(), display, command="", force=frozenset([trunk.key]))
    assert forced.run() == 0
    (reply,) = replies(store, trunk)
    assert reply is not None and reply.is_declined
    assert published(store, trunk) == [200]


def test_a_plan_shows_a_stop_until_an_attempt_gets_further_or_fails(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def num_stops(step: Step[Any]) -> int:
        return sum(isinstance(reason, Stopped) for reason in make_plan(Graph([step]), store)[step.name].reasons)

    requests, names = Requests(store), ("kept", "saved", "failed", "declined", "pending", "other")
    steps = {name: phase(store, name, stride=number) for number, name in enumerate(names, 1)}
    for name, step in steps.items():
        request = requests.send(step.digest, name, "save" if name == "other" else STOP, reason="enough")
        if name != "pending":
            requests.reply(request, "", "not started", is_declined=name == "declined")
        store.write(f"work/{step.digest}/before", b"")
    assert [num_stops(step) for step in steps.values()] == [1, 1, 1, 0, 0, 0]
    with monkeypatch.context() as patch:
        patch.setattr("marin_dag.plan.remainder.SETTLING_SECONDS", -100.0)
        assert num_stops(steps["saved"]) == 0
    failure = Failure(
        key=steps["failed"].key,
        name="failed",
        attempt="20990101-000000-00000000",
        error_type="ValueError",
        error="no",
        log_path="",
        is_transient=False,
        finished="2099-01-01T00:00:00+00:00",
    )
    Records(store).record_failure(failure)
    assert [num_stops(steps[name]) for name in ("kept", "failed")] == [1, 0]


def test_a_second_leg_does_not_continue_where_the_first_was_asked_to_stop(store: LocalStore) -> None:
    trunk = phase(store, seconds=0.002)
    longer = trunk.fork("longer", until_step=500)
    display = Watcher(10, lambda: Requests(store).send(trunk.digest, "trunk", STOP))
    assert ran(store, trunk, longer, display=display) == 1
    assert display.events_of("longer") == ["stopped"]
    assert published(store, trunk) == []


def test_a_milestone_requested_on_the_way_has_the_bytes_of_one_wanted_from_the_start(
    store: LocalStore, tmp_path: Path
) -> None:
    trunk, requests = phase(store, seconds=0.002), Requests(store)
    display = Watcher(10, lambda: requests.send(trunk.digest, "trunk", PUBLISH, milestone=300))
    assert ran(store, trunk, display=display) == 0
    assert published(store, trunk) == [300, 400]
    (reply,) = replies(store, trunk)
    assert reply is not None and not reply.is_declined
    undisturbed = LocalStore(str(tmp_path / "undisturbed"))
    fork = trunk.at(step=300).then("fork", until_step=301, stride=5)
    assert ran(undisturbed, trunk, fork) == 0
    manifests = [Records(each).get(f"{trunk.digest}@300").manifest for each in (store, undisturbed)]
    assert manifests[0] == manifests[1]


def test_a_later_attempt_publishes_a_milestone_that_was_requested_before(store: LocalStore) -> None:
    trunk, requests = phase(store, until_step=200, seconds=0.002), Requests(store)
    requests.send(trunk.digest, "trunk", PUBLISH, milestone=150)
    assert ran(store, trunk) == 0
    assert published(store, trunk) == [150, 200]
    (reply,) = replies(store, trunk)
    assert reply is not None and not reply.is_declined


def test_a_waiting_driver_requests_its_milestones_once_and_again_after_the_store_failed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trunk = phase(store, until_step=20)
    fork = trunk.at(step=7).then("fork", until_step=9, stride=5)
    held = Leases(store).acquire(trunk.digest, "theirs", lambda: None, milestones=(12, 20))
    assert isinstance(held, Lease)

    class Releasing(Watcher):
        def say(self, text: str) -> None:
            super().say(text)
            if text.startswith("theirs"):
                held.release()

    failures = iter([StoreError("503", is_transient=True), None])
    create = LocalStore.create

    def failing(store: LocalStore, path: str, data: bytes) -> bool:
        if path.startswith(f"{REQUESTS}/") and (failure := next(failures, None)) is not None:
            raise failure
        return create(store, path, data)

    monkeypatch.setattr(LocalStore, "create", failing)
    display = Releasing()
    assert ran(store, trunk, fork, display=display) == 0
    assert [line.startswith("theirs") for line in display.lines] == [False, True], "the failure, then the request"
    (request,) = Requests(store).of(trunk.digest)
    assert (request.action, request.milestone) == (PUBLISH, 7)
    assert published(store, trunk) == [7, 20]


def test_a_waiting_driver_requests_its_own_end(store: LocalStore) -> None:
    short = phase(store, "short", until_step=7)
    held = Leases(store).acquire(short.digest, "theirs", lambda: None, milestones=(20,))
    assert isinstance(held, Lease)

    class Releasing(Watcher):
        def say(self, text: str) -> None:
            held.release()

    assert ran(store, short, display=Releasing()) == 0
    assert [request.milestone for request in Requests(store).of(short.digest)] == [7]


def test_a_driver_that_waits_for_a_copy_requests_nothing(store: LocalStore) -> None:
    short = phase(store, "short", until_step=7)
    held = Leases(store).acquire(short.digest, "copy of short", lambda: None, milestones=(20,), does=COPIES)
    assert isinstance(held, Lease)

    class Releasing(Watcher):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            held.release()

    display = Releasing()
    assert ran(store, short, display=display) == 0
    assert "elsewhere" in display.events_of("short") and Requests(store).of(short.digest) == []


def test_a_damaged_request_fails_no_step_and_is_shown_once(store: LocalStore) -> None:
    trunk = phase(store, until_step=20)
    store.create(f"{REQUESTS}/{trunk.digest}/by-hand.json", b"")
    display = Watcher()
    assert ran(store, trunk, display=display) == 0
    assert len([line for line in display.lines if "by-hand.json" in line]) == 1


@contextlib.contextmanager
def polling(store: LocalStore, caplog: pytest.LogCaptureFixture) -> Iterator[AttemptRequests]:
    with caplog.at_level(logging.INFO):
        attempt = AttemptRequests(Requests(store), "a" * 64, "attempt", logging.getLogger("polling"))
        try:
            yield attempt
        finally:
            attempt.close()


def until(condition: Callable[[], object]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE_SECONDS
        time.sleep(0.001)


def test_a_store_that_fails_is_logged_once_and_delays_requests_and_replies(
    store: LocalStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Requests(store).send("a" * 64, "step", "save")
    failures = threading.Semaphore(0)

    def fail(*arguments: object) -> Any:
        failures.release()
        raise StoreError("503", is_transient=True)

    with polling(store, caplog) as attempt:
        with monkeypatch.context() as broken:
            broken.setattr(LocalStore, "list", fail)
            assert list(attempt.others()) == []
            for _ in range(3):
                assert failures.acquire(timeout=PATIENCE_SECONDS)
        until(attempt.others)
        assert list(attempt.others()) == [request]
        with monkeypatch.context() as broken:
            broken.setattr(LocalStore, "create", fail)
            attempt.reply(request, "saved")
            for _ in range(3):
                assert failures.acquire(timeout=PATIENCE_SECONDS)
        until(lambda: Requests(store).reply_to(request))
        assert list(attempt.others()) == []
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_the_next_attempt_gets_the_requests_without_a_reply(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    requests = Requests(store)
    first, second = (requests.send("a" * 64, "step", "save") for _ in range(2))
    with polling(store, caplog) as attempt:
        until(lambda: len(attempt.others()) == 2)
        attempt.reply(first, "saved")
    with polling(store, caplog) as attempt:
        until(attempt.others)
        assert list(attempt.others()) == [second]


def test_a_stop_counts_after_another_attempt_has_replied_to_it(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    requests = Requests(store)
    stop = requests.send("a" * 64, "step", STOP)
    requests.reply(stop, "another", "stopped at 5")
    with polling(store, caplog) as attempt:
        until(attempt.stop)
        assert attempt.stop() == stop


def test_an_attempt_replies_at_its_end_to_what_is_pending(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    requests = Requests(store)
    stop, save = requests.send("a" * 64, "step", STOP), requests.send("a" * 64, "step", "save")
    with polling(store, caplog) as attempt:
        until(attempt.others)
        assert attempt.stop() == stop
        attempt.close(to_stop="stopped at 3", to_others="too late")
    found = [(reply.text, reply.is_declined) for each in (stop, save) if (reply := requests.reply_to(each))]
    assert found == [("stopped at 3", False), ("too late", True)]


def test_a_damaged_request_is_logged_and_hides_no_other(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    store.create(f"{REQUESTS}/{'a' * 64}/20200101-by-hand.json", b"save")
    request = Requests(store).send("a" * 64, "step", STOP)
    with polling(store, caplog) as attempt:
        until(attempt.stop)
        assert attempt.stop() == request
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert f"{REQUESTS}/{'a' * 64}/20200101-by-hand.json" in warning
