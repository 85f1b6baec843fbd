"""Driver: what runs, what is blocked, and what is retried, on every backend and store."""

import contextlib
import io
import json
import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from marin_dag.errors import UserError
from marin_dag.graph.background import Background
from marin_dag.graph.graph import Graph
from marin_dag.graph.resources import Cpu, Gpu, Resources
from marin_dag.graph.step import Step, StepContext, step
from marin_dag.ledger.epoch import seal
from marin_dag.ledger.lease import Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.records import Records, record_path
from marin_dag.ledger.work_files import progress_mark
from marin_dag.plan.plan import make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.run import driver as run_module
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay, TableDisplay, figures_of
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.ray.backend import RayBackend
from marin_dag.run.task import Backend, Listener, Outcome
from marin_dag.store.prefix import open_store
from tests.catalogue import check_message, expect_error
from tests.marin_dag.toy_steps import (
    Count,
    CountConfig,
    FailConfig,
    JoinConfig,
    LoopConfig,
    OddConfig,
    ShardsConfig,
    Squares,
    SumConfig,
    Text,
    WriteConfig,
    count,
    executions,
    fail,
    join,
    loop,
    odd,
    read_file,
    squares,
    summed,
    twice,
    wobble,
    write,
)

each_backend_on_a_store = pytest.mark.parametrize(
    ("prefix", "backend"), [("local", "in_process"), ("gcs", "ray")], indirect=True
)


class Recorder(LineDisplay):
    """Display that keeps what a user would see."""

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__(Console(quiet=True), Console(quiet=True))
        self.lines: list[str] = []
        self.events: list[tuple[str, str]] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def complain(self, text: str) -> None:
        self.lines.append(text)

    def event(self, name: str, what: str, detail: str) -> None:
        self.lines.append(f"{name} {what} {detail}".strip())
        self.events.append((name, what))

    def events_of(self, name: str) -> list[str]:
        return [what for step, what in self.events if step == name]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def run(
    prefix: str, steps: Sequence[Step[Any]], backend: Backend | None = None, force: frozenset[str] = frozenset()
) -> tuple[int, Recorder]:
    display = Recorder()
    code = Run(
        steps,
        open_store(prefix),
        backend or LocalBackend(),
        display,
        command="python pipelines/toy.py",
        back_off_seconds=0.01,
        force=force,
    ).run()
    return code, display


def record(prefix: str, step: Step[Any]):
    return Records(open_store(prefix)).get(step.key)


def output(prefix: str, step: Step[Any], file: str) -> str:
    return read_file(f"{open_store(prefix).prefix}/{record(prefix, step).output_path}/{file}")


def a_graph(marks: Path) -> list[Step[Any]]:
    a, b = (write(name, WriteConfig(text=name * 3, marks=str(marks))) for name in "ab")
    both = join("both", JoinConfig(texts=(a, b), marks=str(marks)))
    return [a, b, both, join("again", JoinConfig(texts=(both, both), marks=str(marks)))]


@each_backend_on_a_store
def test_a_graph_runs_in_order_and_each_step_once(prefix: str, tmp_path: Path, backend: Backend):
    steps = a_graph(tmp_path / "marks")
    code, display = run(prefix, list(reversed(steps)), backend)
    assert code == 0, display.text
    assert output(prefix, steps[3], "text.txt") == "aaabbb" * 2
    assert executions(tmp_path / "marks") == {"a": 1, "again": 1, "b": 1, "both": 1}


class Submitted(LocalBackend):
    """Backend that takes several tasks and notes those that it had before it ran the first."""

    max_running, max_alike = 8, 2

    def __init__(self) -> None:
        super().__init__()
        self.at_first: list[str] = []

    def wait(self, timeout_seconds: float) -> list[Outcome]:
        self.at_first = self.at_first or [task.name for task in self._queue]
        return super().wait(timeout_seconds)


def test_steps_that_wait_for_chips_do_not_hold_up_steps_on_cpus(prefix: str, tmp_path: Path):
    marks = str(tmp_path / "marks")
    steps = [
        write(name, WriteConfig(text=name, marks=marks), resources=resources)
        for name, resources in {"a": Gpu("H200", 8), "b": Gpu("H200", 8), "c": Gpu("H200", 8), "d": Cpu(1)}.items()
    ]
    backend = Submitted()
    assert run(prefix, steps, backend)[0] == 0
    assert backend.at_first == ["a", "b", "d"]
    assert executions(tmp_path / "marks") == dict.fromkeys("abcd", 1)


def watched(phase: Step[Any], *, max_waiting: int | None = None) -> list[Step[Any]]:
    """Return a background reader of each fifth step of a phase, and a reader of each reader."""
    found: list[Step[Any]] = []
    for at in range(5, phase.until or 0, 5):
        background = Background(phase.name, at, max_waiting)
        read = summed(f"read-{at}", SumConfig(counts=(phase.at(step=at),)), resources=Cpu(1))
        again = summed(f"again-{at}", SumConfig(counts=(read := read.in_background(background),)), resources=Cpu(1))
        found += [read, again.in_background(background)]
    return found


def test_every_milestone_is_read_while_the_run_goes_on_and_the_run_never_waits(tmp_path: Path, backend: Backend):
    is_local = isinstance(backend, LocalBackend)
    phase = count("phase", CountConfig(stride=1, until_step=32, seconds=0.0 if is_local else 0.2))
    after = phase.then("after", until_step=34)
    code, display = run(str(tmp_path), [*watched(phase), phase, after], backend)
    assert code == 0, display.text
    done = [name for name, what in display.events if what == "done"]
    assert sorted(done) == sorted(
        ["phase", "after", *(f"{kind}-{at}" for kind in ("read", "again") for at in range(5, 32, 5))]
    )
    assert done.index("phase") < done.index("after")
    if isinstance(backend, LocalBackend):
        assert done[:2] == ["phase", "after"], "readers wait for machines, never the run for them"
        assert done[2:5] == ["read-30", "again-30", "read-25"], "the newest first"
    else:
        first = min(done.index(f"read-{at}") for at in range(5, 32, 5))
        assert first < done.index("after"), "a reader starts when its milestone is published"


def test_readers_that_fall_behind_are_skipped_and_the_next_run_makes_them(tmp_path: Path):
    phase = count("phase", CountConfig(stride=1, until_step=32))
    steps = [phase, *watched(phase, max_waiting=2)]
    code, display = run(str(tmp_path), steps)
    assert code == 0, display.text
    skipped = {name for name, what in display.events if what == "skipped"}
    assert skipped == {f"{kind}-{at}" for kind in ("read", "again") for at in (5, 10, 15, 20)}
    code, display = run(str(tmp_path), steps)
    assert code == 0 and {name for name, what in display.events if what == "done"} == skipped


def test_a_reader_of_a_milestone_that_was_never_published_is_skipped(tmp_path: Path):
    phase = count("phase", CountConfig(stride=1, until_step=12))
    assert run(str(tmp_path), [phase])[0] == 0
    reader = summed("reader", SumConfig(counts=(phase.at(step=7),))).in_background(Background("phase", 7))
    code, display = run(str(tmp_path), [phase, reader])
    assert code == 0 and display.events == [("reader", "skipped")]


def test_a_second_run_of_committed_steps_writes_nothing(prefix: str, tmp_path: Path):
    steps = a_graph(tmp_path / "marks")
    assert run(prefix, steps)[0] == 0
    before = open_store(prefix).list("commits"), open_store(prefix).list("labels"), open_store(prefix).list("leases")
    code, display = run(prefix, steps, backend=None)
    assert code == 0
    assert display.lines == []
    assert before == (
        open_store(prefix).list("commits"),
        open_store(prefix).list("labels"),
        open_store(prefix).list("leases"),
    )
    assert executions(tmp_path / "marks")["both"] == 1


def test_a_backend_is_not_started_when_nothing_is_stale(tmp_path: Path):
    class Untouchable(LocalBackend):
        def start(self, listener: Any, wanted: Mapping[str, Resources]) -> None:
            raise AssertionError("started")

    steps = a_graph(tmp_path / "marks")
    assert run(str(tmp_path / "runs"), steps)[0] == 0
    assert run(str(tmp_path / "runs"), steps, Untouchable())[0] == 0


def test_a_record_holds_the_identity_the_result_and_the_manifest(prefix: str, tmp_path: Path):
    steps = a_graph(tmp_path / "marks")
    run(prefix, steps)
    made = record(prefix, steps[0])
    assert made.identity == steps[0].identity
    assert Text.model_validate(made.result) == Text(file="deep/text.txt", num_bytes=3)
    assert [(entry.path, entry.size_in_bytes) for entry in made.manifest] == [("deep/text.txt", 3)]
    assert made.output_path.startswith(f"outputs/a-{steps[0].digest[:8]}/")
    assert prefix not in json.dumps(made.result)


@each_backend_on_a_store
def test_the_log_of_a_step_lies_beside_its_attempt(prefix: str, tmp_path: Path, backend: Backend):
    steps = a_graph(tmp_path / "marks")
    run(prefix, steps, backend)
    log = open_store(prefix).read(record(prefix, steps[0]).output_path + ".log").decode()
    assert "writing aaa" in log
    assert "committed" in log


def test_one_failed_step_stops_its_descendants_and_nothing_else(tmp_path: Path, backend: Backend):
    marks = tmp_path / "marks"
    bad = fail("bad", FailConfig(message="the archive is torn\nsecond line", marks=str(marks)))
    below = join("below", JoinConfig(texts=(bad,), marks=str(marks)))
    lowest = join("lowest", JoinConfig(texts=(below,), marks=str(marks)))
    good = a_graph(marks)
    code, display = run(str(tmp_path / "runs"), [bad, below, lowest, *good], backend)
    assert code == 1
    assert executions(marks) == {"a": 1, "again": 1, "b": 1, "bad": 1, "both": 1}
    assert [display.events_of(name)[-1] for name in ("bad", "below", "lowest")] == ["failed", "blocked", "blocked"]
    failure = Records(open_store(str(tmp_path / "runs"))).failures(bad.key)[-1]
    assert failure.error == "the archive is torn\nsecond line"
    log = open_store(str(tmp_path / "runs")).read(failure.log_path).decode()
    assert "Traceback" in log
    check_message(display.text[display.text.index("\nbad failed: ") :].replace(failure.log_path, "<log>"))


@pytest.mark.parametrize("what", ["exit", "itself", "result", "shard"])
def test_a_step_with_an_odd_ending_fails_with_its_reason(tmp_path: Path, backend: Backend, what: str):
    (odd_one,) = steps = [odd("odd", OddConfig(what=what))]
    code, display = run(str(tmp_path / "runs"), steps, backend)
    assert code == 1
    assert display.events_of("odd")[-1] == "failed"
    records = Records(open_store(str(tmp_path / "runs")))
    (failure,) = records.failures(odd_one.key)
    check_message(f"{failure.error_type}: {failure.error}".splitlines()[0])
    assert records.find(odd_one.key) is None


@step()
def named(config: WriteConfig, context: StepContext) -> Text:
    """Return a file named as the config says, with the prefix filled in."""
    return Text(file=config.text.replace("PREFIX", context.output_path.partition("/outputs/")[0]), num_bytes=0)


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("PREFIX", True),
        ("PREFIX/outputs/x", True),
        ("it is in PREFIX.", True),
        ("file://PREFIX/outputs/x", True),
        ("PREFIX-of-others", False),
        ("gs://bucketPREFIX/x", False),
        ("../PREFIX", False),
    ],
)
def test_only_a_result_that_holds_the_prefix_is_refused(tmp_path, text, is_refused):
    step = named("named", WriteConfig(text=text, marks=""))
    code, _ = run(str(tmp_path / "runs"), [step])
    failures = Records(open_store(str(tmp_path / "runs"))).failures(step.key)
    assert (code == 1) == is_refused == ([failure.error_type for failure in failures] == ["ValueError"])


def test_only_a_transient_error_is_retried(tmp_path: Path, backend: Backend):
    marks = tmp_path / "marks"
    passing = fail("passing", FailConfig(message="reset", kind="transient", num_failures=2, marks=str(marks)))
    lasting = fail("lasting", FailConfig(message="no", marks=str(marks)))
    code, display = run(str(tmp_path / "runs"), [passing, lasting], backend)
    assert executions(marks) == {"lasting": 1, "passing": 3}
    assert code == 1
    assert "retrying" in display.events_of("passing") and display.events_of("passing")[-1] == "done"


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("kind", ["killed", "terminated"])
def test_a_step_whose_worker_is_killed_is_retried(tmp_path: Path, kind: str):
    marks = tmp_path / "marks"
    step = fail("step", FailConfig(message="", kind=kind, num_failures=1, marks=str(marks)))
    code, display = run(str(tmp_path / "runs"), [step], RayBackend())
    assert code == 0, display.text
    assert executions(marks) == {"step": 2}
    assert "retrying" in display.events_of("step")


@pytest.mark.parametrize("address", ["", "10.0.0.1:6379"])
def test_a_slow_start_of_ray_is_announced_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("marin_dag.run.ray.backend.is_connected", lambda: False)
    display = Recorder()

    def start(*arguments: Any) -> str:
        raise UserError("; ".join(display.lines))

    monkeypatch.setattr("marin_dag.run.ray.backend.start_cluster", start)
    monkeypatch.setattr("marin_dag.run.ray.backend.join_cluster", start)
    step = write("step", WriteConfig(text="a"))
    with expect_error(UserError):
        Run([step], open_store(str(tmp_path / "runs")), RayBackend(), display, command="").run()


def test_after_a_second_interrupt_the_last_frame_shows_no_running_step(tmp_path: Path):
    class Interrupted(LocalBackend):
        def wait(self, timeout_seconds: float) -> list[Outcome]:
            self._listener.started(self._queue[0].key)
            raise KeyboardInterrupt

    screen = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    display = TableDisplay(screen, screen)
    step = write("step", WriteConfig(text="a"))
    assert Run([step], open_store(str(tmp_path / "runs")), Interrupted(), display, command="again").run() == 1
    with screen.capture() as capture:
        screen.print(display.table())
    check_message(capture.get())


def test_steps_of_another_driver_need_no_machines_of_this_one(tmp_path: Path):
    asked: dict[str, Resources] = {}

    class Asked(LocalBackend):
        def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> None:
            asked.update(wanted)
            raise UserError("enough")

    store = open_store(str(tmp_path / "runs"))
    there, here = (write(name, WriteConfig(text=name)) for name in ("there", "here"))
    held = Leases(store).acquire(there.digest, "there", lambda: None)
    assert isinstance(held, Lease)
    with expect_error(UserError):
        run(str(tmp_path / "runs"), [there, here], Asked())
    held.release()
    assert asked.keys() == {"here"}


def test_a_step_stays_failed_when_the_next_run_is_stopped_before_it(tmp_path: Path):
    class StopsTheFirst(Recorder):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "started":
                again._on_signal(signal.SIGINT, None)

    step = fail("bad", FailConfig(message="no", marks=str(tmp_path / "marks")))
    assert run(str(tmp_path / "runs"), [step])[0] == 1
    store = open_store(str(tmp_path / "runs"))
    again = Run([step], store, LocalBackend(), StopsTheFirst(), command="")
    assert again.run() == 1
    assert make_plan(Graph([step]), store).steps[0].verdict is Verdict.FAILED


def test_a_step_that_keeps_nothing_to_resume_from_leaves_no_work_folder(tmp_path: Path):
    steps = [write("a", WriteConfig(text="a")), count("keeps", CountConfig(stride=1, until_step=5))]
    assert run(str(tmp_path / "runs"), steps)[0] == 0
    assert [folder.name for folder in (tmp_path / "runs/work").iterdir()] == [steps[1].digest]


def test_a_submitted_task_does_not_start_after_a_stop(tmp_path: Path):
    class Stopping(LocalBackend):
        def submit(self, task: Any) -> None:
            super().submit(task)
            self.request_stop()

    code, _ = run(
        str(tmp_path / "runs"), [write("a", WriteConfig(text="a", marks=str(tmp_path / "marks")))], Stopping()
    )
    assert code == 1
    assert executions(tmp_path / "marks") == {}


def test_a_step_that_stops_without_a_request_of_its_driver_is_retried(tmp_path: Path, backend: Backend):
    marks = tmp_path / "marks"
    message = "at step 3 of 9 (signal SIGTERM)"
    preempted = fail("preempted", FailConfig(message=message, kind="leaves", num_failures=1, marks=str(marks)))
    code, display = run(str(tmp_path / "runs"), [preempted], backend)
    assert code == 0, display.text
    assert executions(marks) == {"preempted": 2}
    (retrying,) = [line for line in display.lines if line.startswith("preempted retrying")]
    message, _, log = retrying.partition("; log: ")
    check_message(message)
    assert Path(log).is_file()


@pytest.mark.parametrize(
    "text",
    ["at step 3\x1b[1m of 9\nand as much again", "x" * 3_000, "", " \n"],
    ids=["two lines", "a long one", "none", "blanks"],
)
def test_the_text_of_a_stop_is_one_line_on_the_terminal(tmp_path: Path, text: str):
    class Impatient(Recorder):
        def progress(self, name: str, progress: Progress) -> None:
            asked._on_signal(signal.SIGINT, None)

    step = fail("step", FailConfig(message=text, kind="leaves", marks=str(tmp_path / "marks")))
    display = Impatient()
    asked = Run([step], open_store(str(tmp_path / "runs")), LocalBackend(), display, command="")
    assert asked.run() == 1
    (line,) = [line for line in display.lines if line.startswith("step stopped")]
    check_message(line.replace("x" * 2_000, "<2,000 x>"))


def test_a_step_is_queued_until_it_has_its_resources_and_then_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Late(LocalBackend):
        """Starts a task only after it was shown as queued."""

        def wait(self, timeout_seconds: float) -> list[Any]:
            return super().wait(timeout_seconds) if any("queued" in line for line in display.lines) else []

    monkeypatch.setattr("marin_dag.run.driver.QUEUED_SECONDS", 0.0)
    display = Recorder()
    step = write("a", WriteConfig(text="aaa"), resources=Cpu(2))
    store = open_store(str(tmp_path / "runs"))
    assert Run([step], store, Late(), display, command="").run() == 0
    assert display.lines == ["a queued waits for 2 cpu", "a started", "a done"]


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("is_quick", [True, False])
def test_a_step_on_ray_shows_its_start_and_its_end(tmp_path: Path, is_quick: bool):
    class Patient(RayBackend):
        """Gets the start of the step before its end, unless the step is quick."""

        def wait(self, timeout_seconds: float) -> list[Any]:
            while not (is_quick or self._started):
                self._pass_on_updates(force=True)
            return super().wait(timeout_seconds)

    backend = Patient()
    backend._last_update = float("inf")  # no updates but the forced ones
    code, display = run(str(tmp_path / "runs"), [write("a", WriteConfig(text="a"))], backend)
    assert (code, display.events_of("a")) == (0, ["started", "done"])


def test_progress_after_the_end_of_a_step_is_not_shown(tmp_path: Path):
    class Tardy(LocalBackend):
        """Reports progress of each step once before its end, and again while the next one runs."""

        def __init__(self) -> None:
            super().__init__()
            self.ended: list[str] = []

        def wait(self, timeout_seconds: float) -> list[Any]:
            outcomes = super().wait(timeout_seconds)
            for key in [*self.ended, *(outcome.task.key for outcome in outcomes)]:
                self._listener.report(key, Progress(1, 1, "shards", {}))
            self.ended += [outcome.task.key for outcome in outcomes]
            return outcomes

    class Shown(Recorder):
        def progress(self, name: str, progress: Progress) -> None:
            self.lines.append(f"{name} running")

    display = Shown()
    steps = [write(name, WriteConfig(text=name)) for name in ("a", "b")]
    assert Run(steps, open_store(str(tmp_path / "runs")), Tardy(), display, command="").run() == 0
    assert display.lines == ["a started", "a running", "a done", "b started", "b running", "b done"]


def test_resources_that_no_machine_has_are_refused_before_any_step_starts(tmp_path: Path, backend: Backend):
    marks = str(tmp_path / "marks")
    alone = write("alone", WriteConfig(text="a", marks=marks))
    steps = [alone, write("b", WriteConfig(text="b", marks=marks), resources=Cpu(1, num_hosts=2))]
    if not isinstance(backend, LocalBackend):
        backend._owns_cluster = True  # type: ignore[attr-defined]
        backend.close = lambda: None  # type: ignore[method-assign] -- the cluster is the session's
    with expect_error(UserError):
        run(str(tmp_path / "runs"), steps, backend)
    assert executions(tmp_path / "marks") == {}
    assert run(str(tmp_path / "runs"), [alone], backend)[0] == 0


@pytest.mark.parametrize(("saves", "times"), [(False, 3), (True, 6)])
def test_one_more_log_is_no_progress_but_a_saved_step_is(tmp_path: Path, backend: Backend, saves: bool, times: int):
    marks = tmp_path / "marks"
    step = loop("looping", LoopConfig(until_step=9, num_failures=5, saves=saves, marks=str(marks)))
    code, display = run(str(tmp_path / "runs"), [step], backend)
    assert (code, executions(marks)) == (0 if saves else 1, {"looping": times})
    assert display.events_of("looping")[-1] == ("done" if saves else "failed")


def test_a_transient_error_is_not_retried_while_the_driver_stops(tmp_path: Path):
    class Unlucky(Recorder):
        def progress(self, name: str, progress: Progress) -> None:
            signal.raise_signal(signal.SIGINT)
            raise ConnectionResetError("reset")

    display, main = Unlucky(), count("main", CountConfig(stride=2, until_step=10))
    assert Run([main], open_store(str(tmp_path / "runs")), LocalBackend(), display, command="").run() == 1
    assert display.events_of("main") == ["started", "failed"]


def test_a_published_milestone_is_progress(tmp_path: Path):
    store, main = open_store(str(tmp_path / "runs")), count("main", CountConfig(stride=2, until_step=10))
    before = progress_mark(store, main.digest, main.kind.resumes_at)
    assert run(store.prefix, [count("main", CountConfig(stride=2, until_step=5))])[0] == 0
    assert progress_mark(store, main.digest, main.kind.resumes_at) != before, (
        "though its work holds nothing to resume from"
    )


def test_a_crash_loop_ends_after_three_attempts(tmp_path: Path, backend: Backend):
    marks = tmp_path / "marks"
    looping = fail("looping", FailConfig(message="reset", kind="transient", marks=str(marks)))
    code, _ = run(str(tmp_path / "runs"), [looping], backend)
    assert code == 1
    assert executions(marks) == {"looping": 3}
    (failure,) = Records(open_store(str(tmp_path / "runs"))).failures(looping.key)[-1:]
    check_message(failure.error)


def test_attempts_with_progress_are_no_crash_loop(tmp_path: Path):
    marks = tmp_path / "marks"
    config = FailConfig(message="reset", kind="transient", num_failures=6, keeps_work=True, marks=str(marks))
    assert run(str(tmp_path / "runs"), [fail("slow", config)])[0] == 0
    assert executions(marks) == {"slow": 7}


@each_backend_on_a_store
def test_shards_return_in_order_and_belong_to_the_output(prefix: str, tmp_path: Path, backend: Backend):
    step = squares("squares", ShardsConfig(num_shards=5))
    code, display = run(prefix, [step], backend)
    assert code == 0, display.text
    assert Squares.model_validate(record(prefix, step).result) == Squares(total=30)
    assert output(prefix, step, "total.txt") == "[0, 1, 4, 9, 16]"
    assert output(prefix, step, "shards/00003/square.txt") == "9"


@each_backend_on_a_store
def test_finished_shards_do_not_run_again(prefix: str, tmp_path: Path, backend: Backend):
    marks = tmp_path / "marks"
    step = squares("squares", ShardsConfig(num_shards=6, marks=str(marks), fail_at=5))
    code, display = run(prefix, [step], backend)
    assert code == 1
    assert display.events_of("squares")[-1] == "failed"
    (marks / "repaired").touch()
    assert run(prefix, [step], LocalBackend())[0] == 0
    (marks / "repaired").unlink()
    assert executions(marks) == {f"shard{number}": 1 for number in range(6)}
    assert output(prefix, step, "total.txt") == "[0, 1, 4, 9, 16, 25]"
    assert len(record(prefix, step).manifest) == 7


def test_a_forced_step_runs_its_shards_again(prefix: str, tmp_path: Path):
    marks = tmp_path / "marks"
    step = squares("squares", ShardsConfig(num_shards=3, marks=str(marks)))
    assert run(prefix, [step])[0] == 0
    code, display = run(prefix, [step], force=frozenset({step.key}))
    assert code == 0
    check_message(display.lines[-1])
    assert executions(marks) == {f"shard{number}": 2 for number in range(3)}


def test_a_forced_step_with_another_result_fails(tmp_path: Path):
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    step = fail("unsteady", FailConfig(message="", kind="count", marks=str(marks)))
    assert run(prefix, [step])[0] == 0
    code, _ = run(prefix, [step], force=frozenset({step.key}))
    assert code == 1
    (failure,) = Records(open_store(prefix)).failures(step.key)
    assert failure.error_type == "NotReproducedError"
    check_message(re.sub(r"\d{8}-\d{6}-[0-9a-f]{8}", "ATTEMPT", failure.error))
    assert record(prefix, step).result == {"file": "none", "num_bytes": 1}


def test_two_maps_of_one_name_are_refused(tmp_path: Path):
    step = twice("twice", ShardsConfig(num_shards=2))
    assert run(str(tmp_path / "runs"), [step])[0] == 1
    (failure,) = Records(open_store(str(tmp_path / "runs"))).failures(step.key)
    check_message(failure.error)


def test_an_attempt_overtaken_at_its_commit_waits_for_the_other(tmp_path: Path):
    prefix = str(tmp_path / "runs")
    step = write("a", WriteConfig(text="aaa"))

    class Overtaken(LocalBackend):
        """Another driver takes the first attempt for dead, ends its epoch, and is killed."""

        num_attempts = 0

        def wait(self, timeout_seconds: float) -> list[Any]:
            store, self.num_attempts = open_store(prefix), self.num_attempts + bool(self._queue)
            if self._queue and self.num_attempts == 1:
                seal(store, step.digest, 1)
            return super().wait(timeout_seconds)

    code, display = run(prefix, [step], Overtaken())
    assert code == 0, display.text
    assert "lost" in display.events_of("a")
    assert output(prefix, step, "deep/text.txt") == "aaa"


def test_a_finished_shard_whose_bytes_changed_runs_again(tmp_path: Path):
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    step = squares("squares", ShardsConfig(num_shards=3, marks=str(marks), fail_at=2))
    assert run(prefix, [step])[0] == 1
    (kept,) = Path(prefix).glob("outputs/squares-*/*/shards/00001/square.txt")
    kept.write_text("7")
    (marks / "repaired").touch()
    assert run(prefix, [step])[0] == 0
    assert executions(marks)["shard1"] == 2
    assert output(prefix, step, "shards/00001/square.txt") == "1"


@each_backend_on_a_store
def test_other_steps_start_from_published_milestones(prefix: str, tmp_path: Path, backend: Backend):
    main = count("main", CountConfig(stride=2, until_step=10))
    branch = count("branch", CountConfig(stride=7, until_step=8, start=main.at(step=5)))
    code, display = run(prefix, [main, branch], backend)
    assert code == 0, display.text
    assert Count.model_validate(record(prefix, main).result) == Count(step=10, value=20)
    assert Count.model_validate(record(prefix, branch).result) == Count(step=8, value=10 + 21)
    assert output(prefix, main, "value.txt") == "20"


def test_a_branch_starts_from_a_milestone_that_another_driver_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_module, "ELSEWHERE_POLL_SECONDS", 0.01)
    prefix = str(tmp_path / "runs")
    main = count("main", CountConfig(stride=2, until_step=10))
    branch = count("branch", CountConfig(stride=7, until_step=8, start=main.at(step=5)))
    assert run(prefix, [count("main", CountConfig(stride=2, until_step=5))])[0] == 0
    store, path = open_store(prefix), record_path(f"{main.digest}@5")
    published = store.read(path)
    store.delete(path)
    others = Leases(store)
    lease = others.acquire(main.digest, "main", lambda: None)
    assert isinstance(lease, Lease)
    given_up = threading.Timer(20, lease.release)  # otherwise a failure would never end

    class Watcher(Recorder):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if (name, what) == ("main", "elsewhere"):
                store.create(path, published)
                given_up.start()
            elif (name, what) == ("branch", "done"):
                lease.release()

    display = Watcher()
    steps = [main, branch]
    assert Run(steps, store, LocalBackend(), display, command="").run() == 0, display.text
    given_up.cancel()
    others.close()
    ended = [line for line in display.lines if " done" in line]
    assert [line.split()[0] for line in ended] == ["branch", "main"]


def test_a_later_end_runs_only_what_is_added(tmp_path: Path):
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    short = count("main", CountConfig(stride=2, until_step=10, marks=str(marks)))
    longer = count("main", CountConfig(stride=2, until_step=15, marks=str(marks)))
    assert short.digest == longer.digest
    assert run(prefix, [short])[0] == 0
    assert run(prefix, [longer])[0] == 0
    assert executions(marks) == {f"count{number}": 1 for number in sorted(range(15), key=str)}
    assert record(prefix, longer).result == {"step": 15, "value": 30}


def test_a_phase_cut_in_two_is_the_same_run_in_order(tmp_path: Path, backend: Backend):
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    first = count("first", CountConfig(stride=2, until_step=5, marks=str(marks)))
    second = first.then("second", until_step=10)
    assert second.digest == first.digest
    code, display = run(prefix, [second, first], backend)
    assert code == 0, display.text
    assert all(number == 1 for number in executions(marks).values())
    assert ("second", "elsewhere") not in display.events, "the lease of a leg is free before the next starts"
    assert record(prefix, second).result == {"step": 10, "value": 20}


def test_a_milestone_that_its_kind_does_not_publish_blocks(tmp_path: Path):
    # This kind ignores the milestones that others want.
    main = wobble("main", CountConfig(stride=2, until_step=10, marks=str(tmp_path / "marks")))
    branch = count("branch", CountConfig(stride=7, until_step=8, start=main.at(step=4)))
    code, display = run(str(tmp_path / "runs"), [main, branch])
    assert code == 1
    check_message("\n".join(line for line in display.lines if line.startswith("branch blocked")))


def test_a_failed_leg_blocks_all_later_legs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blocker = tmp_path / "runs"
    first = count("first", CountConfig(stride=2, until_step=5, marks=str(tmp_path / "marks")))
    second = first.then("second", until_step=10)
    third = second.then("third", until_step=15)
    (tmp_path / "marks").write_text("a file where the marks should go")
    code, display = run(str(blocker), [third, second, first])
    assert code == 1
    assert [display.events_of(name) for name in ("second", "third")] == [["blocked"], ["blocked"]]


def test_an_input_that_no_step_makes_blocks(tmp_path: Path):
    steps = a_graph(tmp_path / "marks")
    code, display = run(str(tmp_path / "runs"), steps[1:])
    assert code == 1
    check_message("\n".join(line for line in display.lines if " blocked " in line))


def test_an_input_that_another_driver_makes_meanwhile_blocks_nothing(tmp_path: Path):
    prefix, (a, b, both, _) = str(tmp_path / "runs"), a_graph(tmp_path / "marks")

    class Slow(LocalBackend):
        def start(self, *arguments: Any) -> str:
            assert run(prefix, [a, b])[0] == 0
            return super().start(*arguments)

    code, display = run(prefix, [both], Slow())
    assert code == 0, display.text


def test_a_missing_milestone_of_a_finished_run_blocks_with_the_options_that_publish_it(tmp_path: Path):
    main = count("main", CountConfig(stride=2, until_step=10, publish_every=100, marks=str(tmp_path / "marks")))
    branch = count("branch", CountConfig(stride=7, until_step=8, start=main.at(step=4)))
    prefix = str(tmp_path / "runs")
    run(prefix, [main])
    code, display = run(prefix, [branch])
    assert code == 1
    check_message("\n".join(line for line in display.lines if line.startswith("branch blocked")))


def test_a_step_whose_input_is_collected_before_it_starts_fails(tmp_path: Path):
    class Collecting(Recorder):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if (name, what) == ("a", "done"):  # `gc` looks for the step's lease only after this
                store.delete(record_path(a.key))

    store, display = open_store(str(tmp_path / "runs")), Collecting()
    a = write("a", WriteConfig(text="a"))
    reader = join("reader", JoinConfig(texts=(a,), marks=str(tmp_path / "marks")))
    assert Run([a, reader], store, LocalBackend(), display, command="").run() == 1
    assert display.events_of("reader") == ["failed"] and not executions(tmp_path / "marks")


def test_two_names_with_one_identity_run_once(tmp_path: Path):
    marks = tmp_path / "marks"
    one, other = (write(name, WriteConfig(text="same", marks=str(marks))) for name in ("one", "other"))
    assert run(str(tmp_path / "runs"), [one, other])[0] == 0
    assert executions(marks) == {"one": 1}


def test_an_unwritable_prefix_ends_the_run_before_any_step_starts(tmp_path: Path):
    from marin_dag.store.store import StoreError

    (tmp_path / "runs").write_text("a file")
    with expect_error(StoreError):
        run(str(tmp_path / "runs"), a_graph(tmp_path / "marks"))
    assert executions(tmp_path / "marks") == {}


def test_new_commits_are_listed_once_for_all_steps_that_a_failed_step_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps: list[Step[Any]] = [fail("bad", FailConfig(message="no", marks=str(tmp_path / "marks")))]
    for number in range(20):
        texts = (1 + number % 2) * (steps[number // 2].as_input(),)
        steps.append(join(f"below/{number}", JoinConfig(texts=texts)))
    num_listings, committed_keys = 0, Records.committed_keys

    def counting(records: Records) -> frozenset[str]:
        nonlocal num_listings
        num_listings += 1
        return committed_keys(records)

    monkeypatch.setattr(Records, "committed_keys", counting)
    code, display = run(str(tmp_path / "runs"), steps)
    assert code == 1 and sum(what == "blocked" for _, what in display.events) == 20
    assert num_listings == 2, "one at the start"


def test_an_interrupt_during_the_close_keeps_the_command_to_continue(tmp_path: Path):
    class LateInterrupt(LocalBackend):
        def close(self) -> None:
            super().close()
            again._on_signal(signal.SIGINT, None)

    class StopsTheFirst(Recorder):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            if what == "started":
                again._on_signal(signal.SIGINT, None)

    display = StopsTheFirst()
    first, second = (write(name, WriteConfig(text=name)) for name in ("first", "second"))
    again = Run([first, second], open_store(str(tmp_path / "runs")), LateInterrupt(), display, command="go")
    assert again.run() == 1
    assert display.lines[-1].endswith("  go")


@step()
def figuring(config: OddConfig, context: StepContext) -> Count:
    context.progress(np.int64(1), 2, "texts", loss=jnp.float32(0.5))  # type: ignore[arg-type]
    context.progress(2, 2, "texts", stage="warm-up")  # type: ignore[arg-type]
    return Count(count=1)


def test_a_figure_that_is_no_number_fails_its_step_and_an_array_becomes_a_plain_number(tmp_path):
    reported: list[Progress] = []

    class Figures(Recorder):
        def progress(self, name: str, progress: Progress) -> None:
            reported.append(progress)
            self.lines.append(figures_of(progress, None))

    store, display = open_store(str(tmp_path)), Figures()
    steps = [figuring("odd", OddConfig(what="figures")), write("text", WriteConfig(text="a"))]
    assert Run(steps, store, LocalBackend(), display, command="").run() == 1
    assert "1/2 texts  loss 0.5" in display.lines and display.events_of("text")[-1] == "done"
    assert [type(reported[0].done), type(reported[0].figures["loss"])] == [int, float]
    (failure,) = Records(store).failures(steps[0].key)
    assert failure.error_type == "ValueError"


@pytest.mark.parametrize("is_raised", [True, False, None])
def test_an_interrupt_while_the_backend_starts_ends_the_run(tmp_path: Path, is_raised: bool | None):
    """No step runs that could save its work, even if the backend swallows the interrupt."""

    class Slow(LocalBackend):
        def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> None:
            if is_raised is None:
                sys.exit(signal.SIGTERM)  # as Ray's own handler does
            with contextlib.nullcontext() if is_raised else contextlib.suppress(KeyboardInterrupt):
                asked._on_signal(signal.SIGINT, None)
            assert not is_raised, "the start continues"
            return super().start(listener, wanted)

    display = Recorder()
    asked = Run([write("web", WriteConfig(text="web"))], open_store(str(tmp_path)), Slow(), display, command="again")
    assert asked.run() == 1 and asked.was_interrupted
    check_message(display.text)


@pytest.mark.parametrize(("owner", "during"), [(Leases, "acquire"), (Records, "get"), (LocalBackend, "submit")])
def test_no_step_starts_after_an_interrupt_during_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, during: str
):
    web, display = write("web", WriteConfig(text="web")), Recorder()
    assert run(str(tmp_path), [web])[0] == 0
    both = join("both", JoinConfig(texts=(web.as_input(),)))
    asked = Run([web, both], open_store(str(tmp_path)), LocalBackend(), display, command="")
    method = getattr(owner, during)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        asked._on_signal(signal.SIGINT, None)
        return method(*arguments, **options)

    monkeypatch.setattr(owner, during, interrupted)
    assert asked.run() == 1
    assert display.events_of("both") == (["stopped"] if during == "submit" else [])
    monkeypatch.undo()
    assert run(str(tmp_path), [web, both])[0] == 0, "its lease is free"


@step()
def publisher(config: WriteConfig, context: StepContext) -> Text:
    context.publish(1, "one", Text(file="", num_bytes=0))
    return Text(file="", num_bytes=0)


def test_a_kind_without_milestones_or_parts_cannot_publish(tmp_path: Path):
    step = publisher("publisher", WriteConfig(text="", marks=""))
    assert run(str(tmp_path / "runs"), [step])[0] == 1
    (failure,) = Records(open_store(str(tmp_path / "runs"))).failures(step.key)
    check_message(failure.error)
