"""The driver: what runs, what does not, what goes on after a failure; the same on every backend and store."""

import contextlib
import io
import json
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
from marin_dag.graph.graph import Graph
from marin_dag.graph.resources import Cpu, Gpu, Resources
from marin_dag.graph.step import Step, StepContext, step
from marin_dag.ledger.epoch import seal
from marin_dag.ledger.lease import Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.progress_mark import progress_mark
from marin_dag.ledger.records import Records, record_path
from marin_dag.plan.plan import make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.run import driver as run_module
from marin_dag.run.backend import Backend, Listener, Outcome
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay, TableDisplay, figures_of
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.ray.backend import RayBackend
from marin_dag.store.prefix import open_store
from tests.catalogue import expect_error
from tests.marin_dag.toy_steps import (
    Count,
    CountConfig,
    FailConfig,
    JoinConfig,
    LoopConfig,
    OddConfig,
    ShardsConfig,
    Squares,
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
    twice,
    wobble,
    write,
)


class Recorder(LineDisplay):
    """Keeps what a user would see."""

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__(Console(quiet=True), Console(quiet=True))
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def complain(self, text: str) -> None:
        self.lines.append(text)

    def event(self, name: str, what: str, detail: str) -> None:
        self.lines.append(f"{name} {what} {detail}".strip())

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


def test_a_graph_runs_in_order_and_each_step_once(prefix: str, tmp_path: Path, backend: Backend):
    steps = a_graph(tmp_path / "marks")
    code, display = run(prefix, list(reversed(steps)), backend)
    assert code == 0, display.text
    assert output(prefix, steps[3], "text.txt") == "aaabbb" * 2
    assert executions(tmp_path / "marks") == {"a": 1, "again": 1, "b": 1, "both": 1}


class Submitted(LocalBackend):
    """Takes several, and keeps what it had been handed before it ran the first."""

    max_running, max_alike = 8, 2

    def __init__(self) -> None:
        super().__init__()
        self.at_first: list[str] = []

    def wait(self, timeout_seconds: float) -> list[Outcome]:
        self.at_first = self.at_first or [task.name for task in self._queue]
        return super().wait(timeout_seconds)


def test_steps_that_wait_for_chips_do_not_keep_others_from_the_cores(prefix: str, tmp_path: Path):
    marks = str(tmp_path / "marks")
    steps = [
        write(name, WriteConfig(text=name, marks=marks), resources=resources)
        for name, resources in {"a": Gpu("H200", 8), "b": Gpu("H200", 8), "c": Gpu("H200", 8), "d": Cpu(1)}.items()
    ]
    backend = Submitted()
    assert run(prefix, steps, backend)[0] == 0
    assert backend.at_first == ["a", "b", "d"]
    assert executions(tmp_path / "marks") == dict.fromkeys("abcd", 1)


def test_what_is_committed_is_left_alone_and_nothing_is_written(prefix: str, tmp_path: Path):
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
        def start(self, listener: Any, wanted: Mapping[str, Resources]) -> str:
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
    assert "bad failed ValueError: the archive is torn" in display.text
    assert "bad failed: ValueError: the archive is torn\nsecond line\n  log:" in display.text
    assert "below blocked by bad" in display.text
    assert "lowest blocked by bad" in display.text
    assert "to go on:  python pipelines/toy.py" in display.text
    failure = Records(open_store(str(tmp_path / "runs"))).failures(bad.key)[-1]
    assert failure.error == "the archive is torn\nsecond line"
    log = open_store(str(tmp_path / "runs")).read(failure.log_path).decode()
    assert "Traceback" in log
    assert f"log:  {tmp_path}/runs/{failure.log_path}" in display.text


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("exit", "SystemExit: 0"),
        ("itself", "ValueError: it is its own cause"),
        ("result", "does not come back from JSON as it was (Size(size=inf)); a NaN, an infinity?"),
        ("shard", "returned Size(size=inf), which"),
    ],
)
def test_a_step_that_ends_as_none_should_fails_with_its_reason(tmp_path: Path, backend: Backend, what: str, told: str):
    (odd_one,) = steps = [odd("odd", OddConfig(what=what))]
    code, display = run(str(tmp_path / "runs"), steps, backend)
    assert code == 1
    assert "odd failed" in display.text and told in display.text
    assert Records(open_store(str(tmp_path / "runs"))).find(odd_one.key) is None


@step()
def told(config: WriteConfig, context: StepContext) -> Text:
    """Returns what it was told to, behind its prefix."""
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
def test_a_result_that_names_its_prefix_is_refused_and_one_that_looks_like_it_is_not(tmp_path, text, is_refused):
    code, display = run(str(tmp_path / "runs"), [told("told", WriteConfig(text=text, marks=""))])
    assert (code == 1) == is_refused == ("told: its result holds the prefix" in display.text)


def test_a_transient_error_is_tried_again_and_a_permanent_one_is_not(tmp_path: Path, backend: Backend):
    marks = tmp_path / "marks"
    passing = fail("passing", FailConfig(message="reset", kind="transient", num_failures=2, marks=str(marks)))
    lasting = fail("lasting", FailConfig(message="no", marks=str(marks)))
    code, display = run(str(tmp_path / "runs"), [passing, lasting], backend)
    assert executions(marks) == {"lasting": 1, "passing": 3}
    assert code == 1
    assert "passing retrying in" in display.text
    assert "passing done" in display.text


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("kind", ["killed", "terminated"])
def test_a_step_whose_worker_is_ended_from_outside_is_tried_again(tmp_path: Path, kind: str):
    marks = tmp_path / "marks"
    step = fail("step", FailConfig(message="", kind=kind, num_failures=1, marks=str(marks)))
    code, display = run(str(tmp_path / "runs"), [step], RayBackend())
    assert code == 0, display.text
    assert executions(marks) == {"step": 2}
    assert "step retrying in" in display.text


@pytest.mark.parametrize(
    ("address", "said"),
    [("", "starting Ray on this machine (a few seconds)"), ("10.0.0.1:6379", "joining Ray at 10.0.0.1:6379")],
)
def test_what_takes_a_while_is_said_before_it_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, said: str
):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("marin_dag.run.ray.backend.is_connected", lambda: False)
    display = Recorder()

    def start(*arguments: Any) -> str:
        raise UserError("; ".join(display.lines))

    monkeypatch.setattr(RayBackend, "start", start)
    step = write("step", WriteConfig(text="a"))
    with pytest.raises(UserError) as told:
        Run([step], open_store(str(tmp_path / "runs")), RayBackend(), display, command="").run()
    assert str(told.value) == said


def test_after_a_second_interrupt_the_last_frame_shows_nothing_that_runs(tmp_path: Path):
    class Interrupted(LocalBackend):
        def wait(self, timeout_seconds: float) -> list[Outcome]:
            self._listener.on_started(self._queue[0].key)
            raise KeyboardInterrupt

    screen = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    display = TableDisplay(screen, screen)
    step = write("step", WriteConfig(text="a"))
    assert Run([step], open_store(str(tmp_path / "runs")), Interrupted(), display, command="again").run() == 1
    with screen.capture() as capture:
        screen.print(display.table())
    last_frame = capture.get()
    assert "step  stopped  cancelled" in last_frame
    assert "0/1 done, 0 running, 0 waiting" in last_frame


def test_what_another_run_makes_is_not_asked_of_the_machines_of_this_one(tmp_path: Path):
    asked: dict[str, Resources] = {}

    class Asked(LocalBackend):
        def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> str:
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


def test_an_error_of_an_earlier_run_is_not_overcome_by_stopping_the_next_one(tmp_path: Path):
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


def test_a_step_that_keeps_nothing_to_resume_from_leaves_no_folder_for_it(tmp_path: Path):
    steps = [write("a", WriteConfig(text="a")), count("keeps", CountConfig(stride=1, until_step=5))]
    assert run(str(tmp_path / "runs"), steps)[0] == 0
    assert [folder.name for folder in (tmp_path / "runs/work").iterdir()] == [steps[1].digest]


def test_what_was_handed_over_when_the_run_was_asked_to_stop_does_not_begin(tmp_path: Path):
    class Stopping(LocalBackend):
        def submit(self, task: Any) -> None:
            super().submit(task)
            self.request_stop()

    code, _ = run(
        str(tmp_path / "runs"), [write("a", WriteConfig(text="a", marks=str(tmp_path / "marks")))], Stopping()
    )
    assert code == 1
    assert executions(tmp_path / "marks") == {}


def test_a_step_that_leaves_though_nobody_asked_it_to_is_started_again(tmp_path: Path, backend: Backend):
    marks = tmp_path / "marks"
    said = "at step 3 of 9 (signal SIGTERM)"
    preempted = fail("preempted", FailConfig(message=said, kind="leaves", num_failures=1, marks=str(marks)))
    code, display = run(str(tmp_path / "runs"), [preempted], backend)
    assert code == 0, display.text
    assert executions(marks) == {"preempted": 2}
    (retrying,) = [line for line in display.lines if line.startswith("preempted retrying")]
    told, _, log = retrying.partition("; log: ")
    assert told.endswith(
        "s after PreemptedError: asked to stop by somebody else than this driver; a preempted machine? Its work so far "
        f"is kept: {said}"
    )
    assert "stopped as asked" in Path(log).read_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at step 3\x1b[1m of 9\nand as much again", ": at step 3 of 9"),
        ("x" * 3_000, f": {'x' * 2_000} ..."),
        ("", ""),
        (" \n", ""),
    ],
    ids=["two lines", "a long one", "none", "blanks"],
)
def test_what_a_step_says_as_it_stops_is_one_line_of_the_terminal(tmp_path: Path, text: str, shown: str):
    class Impatient(Recorder):
        def progress(self, name: str, progress: Progress) -> None:
            asked._on_signal(signal.SIGINT, None)

    step = fail("step", FailConfig(message=text, kind="leaves", marks=str(tmp_path / "marks")))
    display = Impatient()
    asked = Run([step], open_store(str(tmp_path / "runs")), LocalBackend(), display, command="")
    assert asked.run() == 1
    assert f"step stopped its work so far is kept{shown}" in display.lines


def test_a_step_is_said_to_have_started_when_it_has_its_resources_and_to_be_queued_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Late(LocalBackend):
        """Keeps what is handed over until it is told that it waits."""

        def wait(self, timeout_seconds: float) -> list[Any]:
            return super().wait(timeout_seconds) if any("queued" in line for line in display.lines) else []

    monkeypatch.setattr("marin_dag.run.driver.QUEUED_SECONDS", 0.0)
    display = Recorder()
    step = write("a", WriteConfig(text="aaa"), resources=Cpu(2))
    store = open_store(str(tmp_path / "runs"))
    assert Run([step], store, Late(), display, command="").run() == 0
    assert display.lines == ["a queued waits for 2 cpu", "a started", "a done"]


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(("quick_seconds", "lines"), [(60.0, ["a done"]), (0.0, ["a started", "a done"])])
def test_of_a_quick_step_on_ray_only_the_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_seconds: float, lines: list[str]
):
    class Patient(RayBackend):
        """Hears that the step began before it asks whether it has ended."""

        def wait(self, timeout_seconds: float) -> list[Any]:
            while not self._started:
                self._pass_on_news(force=True)
            return super().wait(timeout_seconds)

    monkeypatch.setattr("marin_dag.run.ray.backend.QUICK_SECONDS", quick_seconds)
    code, display = run(str(tmp_path / "runs"), [squares("a", ShardsConfig(num_shards=1, seconds=1.0))], Patient())
    assert (code, display.lines) == (0, lines)


def test_progress_that_comes_after_the_end_of_its_step_is_not_shown(tmp_path: Path):
    class Tardy(LocalBackend):
        """Tells of each step once before its end, and again while the next one runs."""

        def __init__(self) -> None:
            super().__init__()
            self.ended: list[str] = []

        def wait(self, timeout_seconds: float) -> list[Any]:
            outcomes = super().wait(timeout_seconds)
            for key in [*self.ended, *(outcome.task.key for outcome in outcomes)]:
                self._listener.on_progress(key, Progress(1, 1, "shards", {}))
            self.ended += [outcome.task.key for outcome in outcomes]
            return outcomes

    class Told(Recorder):
        def progress(self, name: str, progress: Progress) -> None:
            self.lines.append(f"{name} running")

    display = Told()
    steps = [write(name, WriteConfig(text=name)) for name in ("a", "b")]
    assert Run(steps, open_store(str(tmp_path / "runs")), Tardy(), display, command="").run() == 0
    assert display.lines == ["a started", "a running", "a done", "b started", "b running", "b done"]


def test_what_no_machine_will_have_is_refused_before_anything_begins(tmp_path: Path, backend: Backend):
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
def test_one_more_log_is_no_progress_and_a_saved_step_is(tmp_path: Path, backend: Backend, saves: bool, times: int):
    marks = tmp_path / "marks"
    step = loop("looping", LoopConfig(until_step=9, num_failures=5, saves=saves, marks=str(marks)))
    code, display = run(str(tmp_path / "runs"), [step], backend)
    assert (code, executions(marks)) == (0 if saves else 1, {"looping": times})
    assert ("crash loop: 3 attempts in a row got no further" in display.text) is not saves


def test_an_error_that_may_pass_is_told_and_not_waited_out_where_the_run_is_to_stop(tmp_path: Path):
    class Unlucky(Recorder):
        def progress(self, name: str, progress: Progress) -> None:
            signal.raise_signal(signal.SIGINT)
            raise ConnectionResetError("reset")

    display, main = Unlucky(), count("main", CountConfig(stride=2, until_step=10))
    assert Run([main], open_store(str(tmp_path / "runs")), LocalBackend(), display, command="").run() == 1
    assert "main failed ConnectionResetError: reset" in display.lines and "retrying" not in display.text


def test_a_milestone_that_was_published_is_progress(tmp_path: Path):
    store, main = open_store(str(tmp_path / "runs")), count("main", CountConfig(stride=2, until_step=10))
    before = progress_mark(store, main.digest, main.kind.resumes_at)
    assert run(store.prefix, [count("main", CountConfig(stride=2, until_step=5))])[0] == 0
    assert progress_mark(store, main.digest, main.kind.resumes_at) != before, (
        "though its work holds nothing to resume from"
    )


def test_a_crash_loop_stops_and_says_so(tmp_path: Path, backend: Backend):
    marks = tmp_path / "marks"
    looping = fail("looping", FailConfig(message="reset", kind="transient", marks=str(marks)))
    code, display = run(str(tmp_path / "runs"), [looping], backend)
    assert code == 1
    assert executions(marks) == {"looping": 3}
    assert "looping failed (3 attempts): ConnectionResetError: reset\n" in display.text
    assert "crash loop: 3 attempts in a row got no further" in display.text


def test_attempts_that_get_further_are_no_crash_loop(tmp_path: Path):
    marks = tmp_path / "marks"
    config = FailConfig(message="reset", kind="transient", num_failures=6, keeps_work=True, marks=str(marks))
    assert run(str(tmp_path / "runs"), [fail("slow", config)])[0] == 0
    assert executions(marks) == {"slow": 7}


def test_shards_come_back_in_order_and_are_part_of_the_output(prefix: str, tmp_path: Path, backend: Backend):
    step = squares("squares", ShardsConfig(num_shards=5))
    code, display = run(prefix, [step], backend)
    assert code == 0, display.text
    assert Squares.model_validate(record(prefix, step).result) == Squares(total=30)
    assert output(prefix, step, "total.txt") == "[0, 1, 4, 9, 16]"
    assert output(prefix, step, "shards/00003/square.txt") == "9"


def test_finished_shards_are_not_done_again(prefix: str, tmp_path: Path, backend: Backend):
    marks = tmp_path / "marks"
    step = squares("squares", ShardsConfig(num_shards=6, marks=str(marks), fail_at=5))
    code, display = run(prefix, [step], backend)
    assert code == 1
    assert "squares failed: ValueError: shard 5 is bad" in display.text
    (marks / "repaired").touch()
    assert run(prefix, [step], LocalBackend())[0] == 0
    (marks / "repaired").unlink()
    assert executions(marks) == {f"shard{number}": 1 for number in range(6)}
    assert output(prefix, step, "total.txt") == "[0, 1, 4, 9, 16, 25]"
    assert len(record(prefix, step).manifest) == 7


def test_a_forced_step_does_its_shards_again(prefix: str, tmp_path: Path):
    marks = tmp_path / "marks"
    step = squares("squares", ShardsConfig(num_shards=3, marks=str(marks)))
    assert run(prefix, [step])[0] == 0
    code, display = run(prefix, [step], force=frozenset({step.key}))
    assert code == 0
    assert "squares done again, with the same output" in display.text
    assert executions(marks) == {f"shard{number}": 2 for number in range(3)}


def test_a_forced_step_that_gives_another_result_says_so(tmp_path: Path):
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    step = fail("unsteady", FailConfig(message="", kind="count", marks=str(marks)))
    assert run(prefix, [step])[0] == 0
    code, display = run(prefix, [step], force=frozenset({step.key}))
    assert code == 1
    assert "run again, it gave another result" in display.text
    assert record(prefix, step).result == {"file": "none", "num_bytes": 1}


def test_two_maps_of_one_name_are_refused_instead_of_mixed_up(tmp_path: Path):
    code, display = run(str(tmp_path / "runs"), [twice("twice", ShardsConfig(num_shards=2))])
    assert code == 1
    assert "context.map(name='shards') twice" in display.text


def test_an_attempt_overtaken_at_its_commit_waits_for_the_other(tmp_path: Path):
    prefix = str(tmp_path / "runs")
    step = write("a", WriteConfig(text="aaa"))

    class Overtaken(LocalBackend):
        """Another driver takes the first attempt for dead, ends its epoch, and is killed over it."""

        num_attempts = 0

        def wait(self, timeout_seconds: float) -> list[Any]:
            store, self.num_attempts = open_store(prefix), self.num_attempts + bool(self._queue)
            if self._queue and self.num_attempts == 1:
                seal(store, step.digest, 1)
            return super().wait(timeout_seconds)

    code, display = run(prefix, [step], Overtaken())
    assert code == 0, display.text
    assert "a lost somebody else has taken it over" in display.text
    assert output(prefix, step, "deep/text.txt") == "aaa"


def test_a_kept_shard_whose_bytes_changed_is_done_again(tmp_path: Path):
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    step = squares("squares", ShardsConfig(num_shards=3, marks=str(marks), fail_at=2))
    assert run(prefix, [step])[0] == 1
    (kept,) = Path(prefix).glob("outputs/squares-*/*/shards/00001/square.txt")
    kept.write_text("7")
    (marks / "repaired").touch()
    assert run(prefix, [step])[0] == 0
    assert executions(marks)["shard1"] == 2
    assert output(prefix, step, "shards/00001/square.txt") == "1"


def test_a_trajectory_publishes_milestones_that_others_start_from(prefix: str, tmp_path: Path, backend: Backend):
    main = count("main", CountConfig(stride=2, until_step=10))
    branch = count("branch", CountConfig(stride=7, until_step=8, start=main.at(step=5)))
    code, display = run(prefix, [main, branch], backend)
    assert code == 0, display.text
    assert Count.model_validate(record(prefix, main).result) == Count(step=10, value=20)
    assert Count.model_validate(record(prefix, branch).result) == Count(step=8, value=10 + 21)
    assert output(prefix, main, "value.txt") == "20"


def test_a_branch_starts_on_a_milestone_that_another_run_publishes_while_that_goes_on(
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
    given_up = threading.Timer(20, lease.release)  # else nothing would ever end

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


def test_moving_the_stop_later_runs_only_what_is_added(tmp_path: Path):
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    short = count("main", CountConfig(stride=2, until_step=10, marks=str(marks)))
    longer = count("main", CountConfig(stride=2, until_step=15, marks=str(marks)))
    assert short.digest == longer.digest
    assert run(prefix, [short])[0] == 0
    assert run(prefix, [longer])[0] == 0
    assert executions(marks) == {f"count{number}": 1 for number in sorted(range(15), key=str)}
    assert record(prefix, longer).result == {"step": 15, "value": 30}


def test_a_phase_cut_in_two_is_the_same_trajectory_and_runs_in_order(tmp_path: Path, backend: Backend):
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    first = count("first", CountConfig(stride=2, until_step=5, marks=str(marks)))
    second = first.then("second", until_step=10)
    assert second.digest == first.digest
    code, display = run(prefix, [second, first], backend)
    assert code == 0, display.text
    assert all(number == 1 for number in executions(marks).values())
    assert "elsewhere" not in display.text, "the lease of a leg is free before the next begins"
    assert record(prefix, second).result == {"step": 10, "value": 20}


def test_a_milestone_that_nobody_publishes_blocks_and_says_which(tmp_path: Path):
    # Of a kind that does not hear what others start from.
    main = wobble("main", CountConfig(stride=2, until_step=10, marks=str(tmp_path / "marks")))
    branch = count("branch", CountConfig(stride=7, until_step=8, start=main.at(step=4)))
    code, display = run(str(tmp_path / "runs"), [main, branch])
    assert code == 1
    line = "`--set main.until_step=4 --until main` does"
    assert f"branch blocked main is done but has published no milestone 4; {line}" in display.text


def test_a_step_that_fails_in_a_trajectory_blocks_all_later_legs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blocker = tmp_path / "runs"
    first = count("first", CountConfig(stride=2, until_step=5, marks=str(tmp_path / "marks")))
    second = first.then("second", until_step=10)
    third = second.then("third", until_step=15)
    (tmp_path / "marks").write_text("a file where the marks should go")
    code, display = run(str(blocker), [third, second, first])
    assert code == 1
    assert "second blocked by first" in display.text
    assert "third blocked by first" in display.text


def test_an_input_that_nobody_makes_blocks_with_its_name(tmp_path: Path):
    steps = a_graph(tmp_path / "marks")
    code, display = run(str(tmp_path / "runs"), steps[1:])
    assert code == 1
    assert "both blocked a is not committed and not part of this run" in display.text


def test_an_input_that_another_run_makes_meanwhile_blocks_nothing(tmp_path: Path):
    prefix, (a, b, both, _) = str(tmp_path / "runs"), a_graph(tmp_path / "marks")

    class Slow(LocalBackend):
        def start(self, *arguments: Any) -> str:
            assert run(prefix, [a, b])[0] == 0
            return super().start(*arguments)

    code, display = run(prefix, [both], Slow())
    assert code == 0, display.text


def test_a_step_of_a_finished_trajectory_that_nobody_publishes_blocks_with_the_line_that_does(tmp_path: Path):
    main = count("main", CountConfig(stride=2, until_step=10, publish_every=100, marks=str(tmp_path / "marks")))
    branch = count("branch", CountConfig(stride=7, until_step=8, start=main.at(step=4)))
    prefix = str(tmp_path / "runs")
    run(prefix, [main])
    code, display = run(prefix, [branch])
    assert code == 1
    line = "`--set main.until_step=4 --until main` does"
    assert f"branch blocked nothing in this run publishes main@4; {line}" in display.text


def test_two_names_with_one_identity_run_once(tmp_path: Path):
    marks = tmp_path / "marks"
    one, other = (write(name, WriteConfig(text="same", marks=str(marks))) for name in ("one", "other"))
    assert run(str(tmp_path / "runs"), [one, other])[0] == 0
    assert executions(marks) == {"one": 1}


def test_a_prefix_that_cannot_be_written_ends_the_run_before_anything_starts(tmp_path: Path):
    from marin_dag.store.store import StoreError

    (tmp_path / "runs").write_text("a file")
    with expect_error(StoreError):
        run(str(tmp_path / "runs"), a_graph(tmp_path / "marks"))
    assert executions(tmp_path / "marks") == {}


def test_what_others_have_made_is_looked_up_once_for_all_that_a_failed_step_blocks(
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
    assert code == 1 and display.text.count(" blocked ") == 20
    assert num_listings == 2, "one as the run begins"


def test_an_interrupt_that_comes_when_all_has_stopped_does_not_take_away_how_to_go_on(tmp_path: Path):
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
    assert display.lines[-1] == "to go on:  go"


@step()
def figuring(config: OddConfig, context: StepContext) -> Count:
    context.progress(np.int64(1), 2, "texts", loss=jnp.float32(0.5))  # type: ignore[arg-type]
    context.progress(2, 2, "texts", stage="warm-up")  # type: ignore[arg-type]
    return Count(count=1)


def test_a_figure_that_is_no_number_fails_its_own_step_and_one_of_a_library_is_told_as_a_plain_one(tmp_path):
    told: list[Progress] = []

    class Figures(Recorder):
        def progress(self, name: str, progress: Progress) -> None:
            told.append(progress)
            self.lines.append(figures_of(progress, None))

    store, display = open_store(str(tmp_path)), Figures()
    steps = [figuring("odd", OddConfig(what="figures")), write("text", WriteConfig(text="a"))]
    assert Run(steps, store, LocalBackend(), display, command="").run() == 1
    assert "1/2 texts  loss 0.5" in display.lines and "text done" in display.lines
    assert [type(told[0].done), type(told[0].figures["loss"])] == [int, float]
    (failure,) = Records(store).failures(steps[0].key)
    assert failure.error == "could not convert string to float: 'warm-up'"


@pytest.mark.parametrize("is_heard", [True, False, None])
def test_an_interrupt_while_the_backend_starts_is_not_waited_with_until_it_has(tmp_path: Path, is_heard: bool | None):
    """Nothing runs yet that could save its work; what swallows the first is not followed by a run."""

    class Slow(LocalBackend):
        def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> str:
            if is_heard is None:
                sys.exit(signal.SIGTERM)  # as Ray's own handler does
            with contextlib.nullcontext() if is_heard else contextlib.suppress(KeyboardInterrupt):
                asked._on_signal(signal.SIGINT, None)
            assert not is_heard, "it goes on starting"
            return super().start(listener, wanted)

    display = Recorder()
    asked = Run([write("web", WriteConfig(text="web"))], open_store(str(tmp_path)), Slow(), display, command="again")
    assert asked.run() == 1 and asked.was_interrupted
    assert display.lines[-2:] == ["0 of 1 step is done, 1 not run", "to go on:  again"]
    assert ("interrupted; what was running is cancelled, what was finished is kept" in display.lines) == (
        is_heard is not False
    )


@pytest.mark.parametrize(("owner", "during"), [(Leases, "acquire"), (Records, "get"), (LocalBackend, "submit")])
def test_nothing_is_started_after_an_interrupt_that_came_while_it_was_about_to(
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
    assert asked.run() == 1 and "stopping: nothing runs" in display.lines
    begun = [line for line in display.lines if line.startswith("both ")]
    assert begun == (["both stopped before it began"] if during == "submit" else [])
    monkeypatch.undo()
    assert run(str(tmp_path), [web, both])[0] == 0, "nobody holds it"
