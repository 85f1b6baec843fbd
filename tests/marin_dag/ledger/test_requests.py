"""What people tell steps that run: heard, answered, kept, and never in the way of the run."""

import contextlib
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from marin_dag.run.hearing import Hearing
from rich.console import Console

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import COPIES, Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.records import Failure, Records
from marin_dag.ledger.requests import END, PUBLISH, STOP, TOLD, Tellings
from marin_dag.plan.plan import make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.plan.reasons import Stopped, render
from marin_dag.run import driver as run
from marin_dag.run import hearing
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.ray import backend as ray_backend
from marin_dag.run.ray.backend import RayBackend
from marin_dag.run.task import Outcome
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import StoreError
from tests.marin_dag.toy_steps import CountConfig, SumConfig, WriteConfig, count, summed, write

PATIENCE_SECONDS = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "TOLD_POLL_SECONDS", 0.005)
    monkeypatch.setattr(run, "ELSEWHERE_POLL_SECONDS", 0.01)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "runs"))


class Teller(LineDisplay):
    """A person at another terminal, who acts once when a step has come so far, and sees what the run says."""

    def __init__(self, at: int = -1, act: Callable[[], Any] = lambda: None) -> None:
        super().__init__(Console(quiet=True), Console(quiet=True))
        self._at, self._act = at, act
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def event(self, name: str, what: str, detail: str) -> None:
        self.lines.append(f"{name} {what} {detail}".strip())

    def progress(self, name: str, progress: Progress) -> None:
        if progress.done == self._at:
            self._at = -1
            self._act()


def phase(store: LocalStore, name: str = "trunk", **fields: Any) -> Step[Any]:
    marks = str(Path(store.prefix).parent / "marks")
    return count(name, CountConfig(**{"stride": 2, "until_step": 400, "publish_every": 1000, "marks": marks, **fields}))


def ran(store: LocalStore, *steps: Step[Any], display: LineDisplay | None = None) -> int:
    return Run(steps, store, LocalBackend(), display or Teller(), command="").run()


def published(store: LocalStore, step: Step[Any]) -> list[int]:
    return sorted(Records(store).milestones(step.digest))


def test_a_step_that_is_told_to_stop_saves_and_leaves_and_what_does_not_need_it_goes_on(store: LocalStore):
    trunk, other = phase(store, seconds=0.002), phase(store, "other", stride=3, until_step=5)
    total = summed("total", SumConfig(counts=(trunk.at(step=400),)))
    tellings = Tellings(store)
    display = Teller(10, lambda: tellings.tell(trunk.digest, "trunk", STOP, reason="the disk is full"))
    assert ran(store, trunk, other, total, display=display) == 1
    (telling,) = tellings.of(trunk.digest)
    (stopped,) = [line for line in display.lines if line.startswith("trunk stopped")]
    assert (
        "its work so far is kept: at " in stopped and f"({telling.author} told it to stop: the disk is full)" in stopped
    )
    assert "other done" in display.lines and "total blocked by trunk" in display.lines
    answer = tellings.answer_of(telling)
    assert answer is not None and answer.said.startswith("stopped at ")
    plan = make_plan(Graph([trunk, other, total]), store)
    (stop,) = (reason for planned in plan.steps for reason in planned.reasons if isinstance(reason, Stopped))
    assert stop in plan["trunk"].reasons and plan["trunk"].verdict is Verdict.BEGUN
    assert re.fullmatch(
        rf"{telling.author} told it to stop: the disk is full \({re.escape(telling.told)}\); stopped at \d+",
        render(stop),
    )
    assert ran(store, trunk, other, total) == 0, "the next run is the newer word"
    assert len(list((Path(store.prefix).parent / "marks").glob("count*"))) == 400 + 5, "no step was made twice"


@pytest.mark.parametrize("is_trajectory", [True, False])
def test_a_step_that_another_run_was_told_to_stop_is_not_taken_over_by_one_that_waits_for_it(
    store: LocalStore, is_trajectory: bool
):
    trunk: Step[Any] = phase(store) if is_trajectory else write("trunk", WriteConfig(text="a"))
    held = Leases(store).acquire(trunk.digest, "trunk", lambda: None, milestones=(400,))
    assert isinstance(held, Lease)

    class Stopping(Teller):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "elsewhere":
                Tellings(store).tell(trunk.digest, "trunk", STOP, reason="enough")
                held.release()

    display = Stopping()
    assert ran(store, trunk, display=display) == 1
    assert any(line.startswith("trunk stopped") and line.endswith("told it to stop: enough") for line in display.lines)
    assert Records(store).committed_keys() == frozenset()


def test_a_stop_of_before_a_run_is_nothing_to_it_and_is_answered(store: LocalStore):
    trunk = phase(store, until_step=20, seconds=0.002)
    old = Tellings(store).tell(trunk.digest, "trunk", STOP, reason="of a run that hung")
    assert ran(store, trunk) == 0
    answer = Tellings(store).answer_of(old)
    assert answer is not None and answer.said == "nobody heard it; a run that was started later goes on"
    assert answer.is_refused


def test_a_stop_that_comes_between_two_attempts_keeps_the_next_from_beginning_and_is_answered(store: LocalStore):
    trunk = phase(store)

    class Unlucky(Teller):
        """The first attempt dies of what passes; while its step waits for the next, somebody tells it to stop."""

        def progress(self, name: str, progress: Progress) -> None:
            if progress.done == 5:
                raise ConnectionResetError("reset")

        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "retrying":
                Tellings(store).tell(trunk.digest, "trunk", STOP)

    display = Unlucky()
    assert ran(store, trunk, display=display) == 1
    assert [line.split()[1] for line in display.lines if line.startswith("trunk")] == ["started", "retrying", "stopped"]
    (telling,) = Tellings(store).of(trunk.digest)
    answer = Tellings(store).answer_of(telling)
    assert answer is not None and answer.said == "it is not begun, or not again"
    assert ran(store, trunk) == 0


def test_a_step_whose_turn_has_not_come_is_told_to_stop_by_word_to_any_run(store: LocalStore):
    trunk, other = phase(store, until_step=300, seconds=0.002), phase(store, "other", stride=3, until_step=5)
    total = summed("total", SumConfig(counts=(trunk, other)))
    display = Teller(10, lambda: Tellings(store).tell(total.digest, "total", STOP))
    assert ran(store, trunk, other, total, display=display) == 1
    assert [line.split()[1] for line in display.lines if line.startswith("total")] == ["stopped"]
    assert published(store, trunk) == [300]


@pytest.mark.parametrize("status", ["cancelled", "stopped"])  # of one task, and of a gang
def test_a_step_that_waits_for_its_resources_is_withdrawn_and_who_told_it_is_answered(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, status: Literal["cancelled", "stopped"]
):
    monkeypatch.setattr(run, "QUEUED_SECONDS", 0.0)
    trunk = phase(store)

    class Full(LocalBackend):
        """Has no room for anybody."""

        def wait(self, timeout_seconds: float) -> list[Outcome]:
            time.sleep(0.001)
            withdrawn = [task for task in self._queue if task.key in self._cancelled]
            self._queue = [task for task in self._queue if task not in withdrawn]
            return [Outcome(task, status) for task in withdrawn]

    class Telling(Teller):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "queued":
                Tellings(store).tell(trunk.digest, "trunk", STOP, reason="no need any more")

    display = Telling()
    assert Run([trunk], store, Full(), display, command="").run() == 1
    (telling,) = Tellings(store).of(trunk.digest)
    said = f"trunk stopped {telling.author} told it to stop: no need any more"
    assert [line for line in display.lines if line.startswith("trunk")] == ["trunk queued waits for 1 cpu", said]
    answer = Tellings(store).answer_of(telling)
    assert answer is not None and answer.said == "it is not begun, or not again"


@pytest.mark.usefixtures("ray_cluster")
def test_a_step_on_ray_that_has_just_begun_hears_the_stop_itself_and_saves(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
):
    """A step that ends in its first second is not told to have begun; that of this one never comes by itself."""
    monkeypatch.setattr(ray_backend, "QUICK_SECONDS", 1e9)
    trunk = phase(store, until_step=10_000, seconds=0.05)

    class AtOnce(RayBackend):
        def wait(self, timeout_seconds: float) -> list[Outcome]:
            if trunk.key in self._started and not Tellings(store).of(trunk.digest):
                Tellings(store).tell(trunk.digest, "trunk", STOP)
            return super().wait(timeout_seconds)

    display = Teller()
    assert Run([trunk], store, AtOnce(), display, command="").run() == 1
    (answer,) = map(Tellings(store).answer_of, Tellings(store).of(trunk.digest))
    assert answer is not None and answer.said.startswith("stopped at ")
    assert [line.split()[1] for line in display.lines if line.startswith("trunk")] == ["started", "stopped"]
    assert "its work so far is kept" in display.lines[-1]


def test_a_stop_is_heeded_that_was_seen_as_another_step_asked_for_its_own(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
):
    first, trunk = phase(store, "first", stride=3, until_step=5), phase(store, until_step=5)
    total = summed("total", SumConfig(counts=(trunk,)))
    monkeypatch.setattr(hearing, "TOLD_POLL_SECONDS", 1e9)

    class Telling(Teller):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if (name, what) == ("first", "done"):
                Tellings(store).tell(total.digest, "total", STOP)
            if (name, what) == ("trunk", "started"):
                monkeypatch.setattr(hearing, "TOLD_POLL_SECONDS", 0.0)

    display = Telling()
    assert ran(store, first, trunk, total, display=display) == 1
    assert [line.split()[1] for line in display.lines if line.startswith("total")] == ["stopped"]


@pytest.mark.parametrize("when", ["while it starts", "while it drains"])
def test_a_detached_run_that_drains_ends_when_it_is_told_to_by_its_name(
    when: str, store: LocalStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run, "QUEUED_SECONDS", 0.0)
    tellings = Tellings(store)

    class Deaf(LocalBackend):
        """Never comes to an end by itself."""

        num_waits = 0

        def wait(self, timeout_seconds: float) -> list[Outcome]:
            self.num_waits += 1
            assert self.num_waits < 1000, "nobody ends it"
            time.sleep(0.01)
            if self.num_waits == 20:
                assert not any(line.startswith("interrupted") for line in display.lines)
                tellings.tell("walks-1", "walks-1", END)
            return []

    class Interrupting(Teller):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "queued":
                detached._on_signal(signal.SIGTERM, None)

    display, backend = Interrupting(), Deaf()
    tellings.tell("walks-1", "walks-1", STOP)
    tellings.tell("walks-2", "walks-2", END)
    if when == "while it starts":
        tellings.tell("walks-1", "walks-1", END)
    detached = Run([phase(store)], store, backend, display, command="", name="walks-1")
    assert detached.run() == 1
    assert "interrupted; what was running is cancelled, what was finished is kept" in display.lines
    assert (backend.num_waits < 20) == (when == "while it starts")


def test_a_run_that_is_told_to_publish_while_it_proves_itself_says_that_it_does_not(store: LocalStore):
    trunk = phase(store, until_step=200, seconds=0.002)
    assert ran(store, trunk) == 0
    display = Teller(10, lambda: Tellings(store).tell(trunk.digest, "trunk", PUBLISH, milestone=150))
    forced = Run([trunk], store, LocalBackend(), display, command="", force=frozenset([trunk.key]))
    assert forced.run() == 0
    (answer,) = map(Tellings(store).answer_of, Tellings(store).of(trunk.digest))
    assert answer is not None and answer.said.endswith("publishes nothing new") and answer.is_refused
    assert published(store, trunk) == [200]


def test_a_stop_is_told_by_a_plan_until_somebody_gets_further_or_fails(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
):
    def told(step: Step[Any]) -> int:
        return sum(isinstance(reason, Stopped) for reason in make_plan(Graph([step]), store)[step.name].reasons)

    tellings, names = Tellings(store), ("kept", "saved", "failed", "refused", "unheard", "other")
    steps = {name: phase(store, name, stride=number) for number, name in enumerate(names, 1)}
    for name, step in steps.items():
        telling = tellings.tell(step.digest, name, "save" if name == "other" else STOP, reason="enough")
        if name != "unheard":
            tellings.answer(telling, "", "it is not begun, or not again", is_refused=name == "refused")
        store.write(f"work/{step.digest}/before", b"")
    assert [told(step) for step in steps.values()] == [1, 1, 1, 0, 0, 0]
    with monkeypatch.context() as patch:
        patch.setattr("marin_dag.plan.stops.SETTLING_SECONDS", -100.0)
        assert told(steps["saved"]) == 0
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
    assert [told(steps[name]) for name in ("kept", "failed")] == [1, 0]


def test_a_second_leg_does_not_go_on_where_the_first_was_told_to_stop(store: LocalStore):
    trunk = phase(store, seconds=0.002)
    longer = trunk.fork("longer", until_step=500)
    display = Teller(10, lambda: Tellings(store).tell(trunk.digest, "trunk", STOP))
    assert ran(store, trunk, longer, display=display) == 1
    assert any(line.startswith("longer stopped") for line in display.lines)
    assert published(store, trunk) == []


def test_a_running_attempt_publishes_what_it_is_told_to_and_the_bytes_are_those_of_one_told_before(
    store: LocalStore, tmp_path: Path
):
    trunk, tellings = phase(store, seconds=0.002), Tellings(store)
    display = Teller(10, lambda: tellings.tell(trunk.digest, "trunk", PUBLISH, milestone=300))
    assert ran(store, trunk, display=display) == 0
    assert published(store, trunk) == [300, 400]
    (answer,) = map(tellings.answer_of, tellings.of(trunk.digest))
    assert answer is not None and answer.said == "publishes 300"
    undisturbed = LocalStore(str(tmp_path / "undisturbed"))
    fork = trunk.at(step=300).then("fork", until_step=301, stride=5)
    assert ran(undisturbed, trunk, fork) == 0
    manifests = [Records(each).get(f"{trunk.digest}@300").manifest for each in (store, undisturbed)]
    assert manifests[0] == manifests[1]


def test_an_attempt_that_begins_later_publishes_what_the_trajectory_was_told_before(store: LocalStore):
    trunk, tellings = phase(store, until_step=200, seconds=0.002), Tellings(store)
    tellings.tell(trunk.digest, "trunk", PUBLISH, milestone=150)
    assert ran(store, trunk) == 0
    assert published(store, trunk) == [150, 200]
    (answer,) = map(tellings.answer_of, tellings.of(trunk.digest))
    assert answer is not None and (answer.said, answer.is_refused) == ("publishes 150", False)


def test_a_run_that_waits_for_an_attempt_tells_it_what_it_wants_once_and_tries_again_where_that_fails(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
):
    trunk = phase(store, until_step=20)
    fork = trunk.at(step=7).then("fork", until_step=9, stride=5)
    held = Leases(store).acquire(trunk.digest, "theirs", lambda: None, milestones=(12, 20))
    assert isinstance(held, Lease)

    class Releasing(Teller):
        def say(self, text: str) -> None:
            super().say(text)
            if text.startswith("theirs"):
                held.release()

    failures = iter([StoreError("503", is_transient=True), None])
    create = LocalStore.create

    def failing(store: LocalStore, path: str, data: bytes) -> bool:
        if path.startswith(f"{TOLD}/") and (failure := next(failures, None)) is not None:
            raise failure
        return create(store, path, data)

    monkeypatch.setattr(LocalStore, "create", failing)
    display = Releasing()
    assert ran(store, trunk, fork, display=display) == 0
    assert [line for line in display.lines if "503" in line] == [
        "what steps are told cannot be seen or answered: StoreError: 503"
    ]
    (said,) = [line for line in display.lines if line.startswith("theirs")]
    assert said.startswith("theirs, running on ") and said.endswith(" is told to publish step 7")
    (telling,) = Tellings(store).of(trunk.digest)
    assert (telling.word, telling.milestone) == (PUBLISH, 7)
    assert published(store, trunk) == [7, 20]


def test_a_run_that_waits_tells_where_it_stops_itself(store: LocalStore):
    short = phase(store, "short", until_step=7)
    held = Leases(store).acquire(short.digest, "theirs", lambda: None, milestones=(20,))
    assert isinstance(held, Lease)

    class Releasing(Teller):
        def say(self, text: str) -> None:
            held.release()

    assert ran(store, short, display=Releasing()) == 0
    assert [telling.milestone for telling in Tellings(store).of(short.digest)] == [7]


def test_a_run_that_waits_for_a_copy_tells_it_nothing(store: LocalStore):
    short = phase(store, "short", until_step=7)
    held = Leases(store).acquire(short.digest, "copy of short", lambda: None, milestones=(20,), does=COPIES)
    assert isinstance(held, Lease)

    class Releasing(Teller):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "elsewhere":
                self.has_waited = True
                assert f"pid {os.getpid()} copies it since " in detail
            held.release()

    display = Releasing()
    assert ran(store, short, display=display) == 0
    assert display.has_waited and Tellings(store).of(short.digest) == []


def test_what_is_damaged_or_forbidden_among_tellings_fails_no_step_and_is_said_once(store: LocalStore):
    trunk = phase(store, until_step=20)
    store.create(f"{TOLD}/{trunk.digest}/by-hand.json", b"")
    display = Teller()
    assert ran(store, trunk, display=display) == 0
    assert len([line for line in display.lines if "by-hand.json: no telling" in line]) == 1


@contextlib.contextmanager
def heard(store: LocalStore, caplog: pytest.LogCaptureFixture) -> Iterator[Hearing]:
    with caplog.at_level(logging.INFO):
        hearing = Hearing(Tellings(store), "a" * 64, "attempt", logging.getLogger("hearing"))
        try:
            yield hearing
        finally:
            hearing.close()


def until(condition: Callable[[], object]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE_SECONDS
        time.sleep(0.001)


def test_a_store_that_fails_is_told_of_once_and_what_was_told_is_heard_and_answered_later(
    store: LocalStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    telling = Tellings(store).tell("a" * 64, "step", "save")
    failures = threading.Semaphore(0)

    def refuse(*arguments: object) -> Any:
        failures.release()
        raise StoreError("503", is_transient=True)

    with heard(store, caplog) as listener:
        with monkeypatch.context() as broken:
            broken.setattr(LocalStore, "list", refuse)
            assert list(listener.others()) == []
            for _ in range(3):
                assert failures.acquire(timeout=PATIENCE_SECONDS)
        until(listener.others)
        assert list(listener.others()) == [telling]
        with monkeypatch.context() as broken:
            broken.setattr(LocalStore, "create", refuse)
            listener.answer(telling, "saved")
            for _ in range(3):
                assert failures.acquire(timeout=PATIENCE_SECONDS)
        until(lambda: Tellings(store).answer_of(telling))
        assert list(listener.others()) == []
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert warnings[0].startswith("what it is told cannot be seen (StoreError: 503)")
    assert warnings[1].startswith("an answer could not be given (StoreError: 503)")


def test_what_was_answered_is_not_heard_again_and_what_was_not_is_by_the_next_attempt(
    store: LocalStore, caplog: pytest.LogCaptureFixture
):
    tellings = Tellings(store)
    first, second = (tellings.tell("a" * 64, "step", "save") for _ in range(2))
    with heard(store, caplog) as listener:
        until(lambda: len(listener.others()) == 2)
        listener.answer(first, "saved")
    with heard(store, caplog) as listener:
        until(listener.others)
        assert list(listener.others()) == [second]


def test_a_stop_is_heard_though_another_attempt_has_answered_it(store: LocalStore, caplog: pytest.LogCaptureFixture):
    """That one has left for it, and the step is not to be gone on with by whoever takes it over."""
    tellings = Tellings(store)
    stop = tellings.tell("a" * 64, "step", STOP)
    tellings.answer(stop, "another", "stopped at 5")
    with heard(store, caplog) as listener:
        until(listener.stop)
        assert listener.stop() == stop


def test_an_attempt_answers_in_the_end_what_it_did_not_come_to(store: LocalStore, caplog: pytest.LogCaptureFixture):
    tellings = Tellings(store)
    stop, save = tellings.tell("a" * 64, "step", STOP), tellings.tell("a" * 64, "step", "save")
    with heard(store, caplog) as listener:
        until(listener.others)
        assert listener.stop() == stop
        listener.close(stopped="stopped at 3", unheard="too late")
    answers = [(answer.said, answer.is_refused) for each in (stop, save) if (answer := tellings.answer_of(each))]
    assert answers == [("stopped at 3", False), ("too late", True)]


def test_a_telling_that_is_damaged_is_named_with_what_to_do_and_hides_no_other(
    store: LocalStore, caplog: pytest.LogCaptureFixture
):
    store.create(f"{TOLD}/{'a' * 64}/20200101-by-hand.json", b"save")
    telling = Tellings(store).tell("a" * 64, "step", STOP)
    with heard(store, caplog) as listener:
        until(listener.stop)
        assert listener.stop() == telling
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert re.search(r"by-hand\.json: no telling \(1 errors\); delete it, and `tell` again$", warning)


def test_an_answer_that_cannot_be_read_is_none_and_is_named(store: LocalStore):
    tellings = Tellings(store)
    telling = tellings.tell("a" * 64, "step", STOP)
    store.create(f"{TOLD}/{'a' * 64}/{telling.id}.answer.json", b"{")
    assert tellings.answer_of(telling) is None
    (said,) = tellings.damaged.values()
    assert re.search(r"\.answer\.json: no answer \(1 errors\); delete it$", said)


def test_a_reason_is_kept_without_secrets_and_in_one_line_that_paints_no_terminal(store: LocalStore):
    reason = "see https://anna:hunter2@host/x\n\x1b[31mred\x1b[0m  and more"
    telling = Tellings(store).tell("a" * 64, "step", STOP, reason=reason)
    assert "hunter2" not in telling.reason and telling.reason.endswith(" [31mred[0m and more")
    assert telling.reason.isprintable()


def test_a_milestone_that_somebody_wanted_next_is_not_made_by_a_later_run(store: LocalStore):
    trunk = phase(store, until_step=20, seconds=0.002)
    old = Tellings(store).tell(trunk.digest, "trunk", PUBLISH)
    assert ran(store, trunk) == 0
    answer = Tellings(store).answer_of(old)
    assert answer is not None and answer.said == "nobody heard it; a run that was started later goes on"
    assert answer.is_refused
    assert published(store, trunk) == [20]


@pytest.mark.parametrize("where", ["a folder", "a bucket"])
def test_tellings_and_their_answers_lie_in_any_store_until_a_fork_that_nobody_heard_of_is_dropped(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
):
    prefix = str(tmp_path) if where == "a folder" else f"gs://{request.getfixturevalue('gcs_bucket')}/{tmp_path.name}"
    tellings = Tellings(open_store(prefix))
    save = tellings.tell("a" * 64, "step", "save", reason="now")
    publish = [tellings.tell("b" * 64, "other", PUBLISH, milestone=at, fork="a fork") for at in (3, 5)]
    assert tellings.of("a" * 64) == [save] and tellings.of("b" * 64, known={publish[0].id}) == publish[1:]
    assert tellings.ids() == {each.id for each in (save, *publish)}
    tellings.answer(publish[0], "an attempt", "it will")
    tellings.answer(publish[0], "another", "never")
    answer = tellings.answer_of(publish[0])
    assert answer is not None and (answer.attempt, answer.said) == ("an attempt", "it will")
    assert tellings.answered("b" * 64) == {publish[0].id} and tellings.to_publish("b" * 64) == {3, 5}
    tellings.forget("a fork")
    assert tellings.of_all() == [save, publish[0]], "what was answered stays"
