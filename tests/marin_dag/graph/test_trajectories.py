"""Trajectories: what is trained once is never trained again, and a plan says how much that is."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marin_dag.cli.run import exit_code
from marin_dag.graph.graph import Graph, Selection
from marin_dag.graph.step import Step
from marin_dag.ledger import lease
from marin_dag.ledger.acceptances import Acceptances
from marin_dag.ledger.lease import Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import PUBLISH, Requests
from marin_dag.plan.explain import explain
from marin_dag.plan.milestones import MilestoneMissing, MilestoneNotRequested, MilestoneOutsideRun, lost_in
from marin_dag.plan.plan import Plan, make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.plan.reasons import (
    BlockedBy,
    Continues,
    Drifted,
    Follows,
    NeverMade,
    Reason,
    Resumes,
    Running,
)
from marin_dag.plan.table import render_plan
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from tests.catalogue import check_message
from tests.marin_dag.toy_steps import CountConfig, SumConfig, count, executions, summed

TOKENS_A_STEP = 10


class Impatient(LineDisplay):
    """A person who presses Ctrl-C when a step has come so far."""

    def __init__(self, interrupt_at: int | None) -> None:
        super().__init__(Console(quiet=True), Console(quiet=True))
        self._interrupt_at = interrupt_at

    def progress(self, name: str, progress: Progress) -> None:
        if progress.done == self._interrupt_at:
            signal.raise_signal(signal.SIGINT)


class Unlucky(LineDisplay):
    """A step crashes when it has come so far the first time, and a person stops it when it has come further."""

    def __init__(self, crash_at: int, error: Exception, interrupt_at: int | None = None) -> None:
        super().__init__(Console(quiet=True), Console(quiet=True))
        self._crash_at: int | None = crash_at
        self._error, self._interrupt_at = error, interrupt_at
        self.lines: list[str] = []

    def event(self, name: str, what: str, detail: str) -> None:
        self.lines.append(f"{what}: {detail}")

    def progress(self, name: str, progress: Progress) -> None:
        if progress.done == self._crash_at:
            self._crash_at = None
            raise self._error
        if progress.done == self._interrupt_at:
            signal.raise_signal(signal.SIGINT)


class Curious(LineDisplay):
    """A user who asks what a step is doing once a heartbeat reports a given position."""

    def __init__(self, look_at: int, store: Store, look: Callable[[], None]) -> None:
        super().__init__(Console(quiet=True), Console(quiet=True))
        self._look_at, self._store, self._look = look_at, store, look

    def progress(self, name: str, progress: Progress) -> None:
        if progress.done == self._look_at:
            while [held.progress for held in Leases(self._store).running().values()] != [progress]:
                time.sleep(0.001)
            self._look()


class Lab:
    """Runs steps over one store and counts the steps of training that were truly done."""

    def __init__(self, folder: Path) -> None:
        self.marks = folder / "marks"
        self.store: Store = open_store(str(folder / "runs"))

    def phase(self, name: str = "phase", *, until_step: int, **fields: Any) -> Step[Any]:
        return count(name, CountConfig(stride=2, until_step=until_step, marks=str(self.marks), **fields))

    def plan(self, *targets: Step[Any]) -> Plan:
        return make_plan(Graph(targets), self.store)

    def run(self, *targets: Step[Any], interrupt_at: int | None = None) -> list[int]:
        """Run the steps; return the training steps of this run in order, each as often as it was trained."""
        before = self.trained()
        steps: Sequence[Step[Any]] = Graph(targets).steps
        Run(steps, self.store, LocalBackend(), Impatient(interrupt_at), command="").run()
        return self._trained_since(before)

    def carry_out(self, *targets: Step[Any], until: tuple[str, ...] = ()) -> list[int]:
        """Run a plan, or its part up to `until`; return the training steps of the run."""
        before = self.trained()
        plan = make_plan(Graph(targets), self.store, Selection(until=until))
        steps = [planned.step for planned in plan.will_run]
        display = Impatient(None)
        Run(steps, self.store, LocalBackend(), display, command="", wanted=plan.wanted_milestones).run()
        return self._trained_since(before)

    def _trained_since(self, before: dict[int, int]) -> list[int]:
        after = self.trained()
        return [step for step, times in after.items() for _ in range(times - before.get(step, 0))]

    def trained(self) -> dict[int, int]:
        return dict(sorted((int(name.removeprefix("count")), times) for name, times in executions(self.marks).items()))

    def value(self, step: Step[Any]) -> Any:
        return Records(self.store).get(step.key).result["value"]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_later_stop_trains_the_added_steps_only(lab: Lab) -> None:
    assert lab.run(lab.phase(until_step=10)) == list(range(10))
    longer = lab.phase(until_step=16)
    (planned,) = lab.plan(longer).steps
    assert planned.reasons == (Continues(10, 16),)
    assert (planned.cost.work["tokens"], planned.saved.work["tokens"]) == (60, 100)
    assert planned.cost.bytes_written == 7, "the state at the new stop is written in full"
    assert lab.run(longer) == list(range(10, 16))
    assert lab.value(longer) == 32


def test_an_earlier_stop_trains_nothing_where_a_milestone_lies(lab: Lab) -> None:
    lab.run(lab.phase(until_step=10))
    assert lab.plan(lab.phase(until_step=5)).steps[0].verdict is Verdict.DONE
    assert lab.run(lab.phase(until_step=5)) == []


def test_a_stop_that_was_saved_on_the_way_is_published_as_it_is_and_the_plan_says_how(lab: Lab) -> None:
    phase = lab.phase(until_step=10)
    lab.run(phase)
    Path(lab.store.url(f"work/{phase.digest}/saved-000007.json")).write_text('{"step": 7, "value": 14}')
    fork = phase.at(step=7).then("fork", until_step=9, stride=5)
    (blocked,) = [planned for planned in lab.plan(fork).steps if planned.verdict is Verdict.BLOCKED]
    (reason,) = blocked.reasons
    assert isinstance(reason, MilestoneMissing) and reason.is_saved
    check_message(str(reason))
    (planned,) = lab.plan(lab.phase(until_step=7)).steps
    assert planned.reasons == (Resumes(7, 7),)
    assert planned.cost.work.get("tokens", 0) == 0
    assert lab.run(lab.phase(until_step=7)) == []
    assert lab.run(fork) == [7, 8]
    assert lab.value(fork) == 24


def test_resuming_a_versioned_phase_saved_by_other_code_is_reported(lab: Lab) -> None:
    """Only the work folder has the code between two milestones; a tracked phase has it in its digest."""
    config = CountConfig(stride=2, until_step=20, publish_every=20, seconds=0.01, marks=str(lab.marks))
    phase = count("phase", config, policy="versioned", version="1")
    assert lab.run(phase, interrupt_at=7) == list(range(7))
    (left,) = lab.store.list("work", f"{phase.digest}/code/")
    assert lab.plan(phase).steps[0].verdict is Verdict.BEGUN, "the same code resumes"

    code = json.loads(lab.store.read(left.path))
    lab.store.delete(left.path)
    code["code"] |= {"fingerprint": "0" * 64, "definitions": code["code"]["definitions"] | {"toy.optimizer": "1" * 64}}
    lab.store.write(f"work/{phase.digest}/code/{'0' * 64}.json", json.dumps(code).encode())
    (planned,) = lab.plan(phase).steps
    assert planned.verdict is Verdict.DRIFTED and not planned.will_run
    (drift,) = planned.reasons
    assert isinstance(drift, Drifted) and drift.difference.removed == ("toy.optimizer",)

    Acceptances(lab.store).accept(phase.digest, phase.name, drift.difference, "it was never called")
    (planned,) = lab.plan(phase).steps
    assert planned.will_run and any(isinstance(reason, Resumes) for reason in planned.reasons)
    assert lab.run(phase) == list(range(7, 20))


def test_the_code_of_an_attempt_that_saved_nothing_is_not_that_of_what_is_gone_on_with(lab: Lab) -> None:
    """It failed at once, and for that its code was changed."""
    config = CountConfig(stride=2, until_step=20, publish_every=20, seconds=0.01, marks=str(lab.marks))
    phase = count("phase", config, policy="versioned", version="1")
    code = {"code": phase.identity["code"] | {"fingerprint": "0" * 64}}
    lab.store.write(f"work/{phase.digest}/code/{'0' * 64}.json", json.dumps(code).encode())
    lab.store.write(f"work/{phase.digest}/events/1.jsonl", b"")
    leases = Leases(lab.store)
    lease = leases.acquire(phase.digest, phase.name, lambda: None)
    assert isinstance(lease, Lease)
    lease.release()
    leases.close()
    assert lab.plan(phase).steps[0].verdict is Verdict.MISSING, "no drift"
    assert lab.run(phase, interrupt_at=7) == list(range(7))
    assert lab.plan(phase).steps[0].verdict is Verdict.BEGUN
    assert [entry.path.rpartition("/")[2] for entry in lab.store.list("work", f"{phase.digest}/code/")] == [
        f"{phase.identity['code']['fingerprint']}.json"
    ]
    assert lab.run(phase) == list(range(7, 20))


def test_a_phase_cut_in_two_is_the_same_phase(lab: Lab) -> None:
    whole = lab.phase(until_step=20)
    half = lab.phase("half", until_step=10)
    rest = half.then("rest", until_step=20)
    assert (half.digest, rest.key) == (whole.digest, whole.key)
    assert lab.run(half, rest) == list(range(20))
    assert lab.plan(whole).will_run == ()
    assert lab.run(whole) == []


def test_two_halves_are_there_when_the_whole_was_trained(lab: Lab) -> None:
    lab.run(lab.phase(until_step=20))
    half = lab.phase("half", until_step=10)
    assert lab.run(half.then("rest", until_step=20)) == []


@pytest.mark.parametrize("stop_of_the_fork", [14, 30])
def test_a_fork_at_a_step_shares_the_prefix_whatever_its_own_stop(lab: Lab, stop_of_the_fork: int) -> None:
    trunk = lab.phase(until_step=20)
    fork = trunk.at(step=10).then("fork", until_step=stop_of_the_fork, stride=5)
    lab.run(trunk)
    plan = lab.plan(fork)
    assert plan["fork"].cost.work["tokens"] == (stop_of_the_fork - 10) * TOKENS_A_STEP
    assert [planned.name for planned in plan.will_run] == ["fork"]
    assert lab.run(fork) == list(range(10, stop_of_the_fork))
    assert lab.value(fork) == 20 + 5 * (stop_of_the_fork - 10)


def test_forks_of_an_unfinished_trunk_train_the_prefix_once_between_them(lab: Lab) -> None:
    trunk = lab.phase(until_step=20)
    forks = [trunk.at(step=10).then(f"fork{stride}", until_step=12, stride=stride) for stride in (3, 4)]
    trained = lab.run(trunk, *forks)
    assert [trained.count(step) for step in range(20)] == [1] * 10 + [3, 3] + [1] * 8


def test_an_unkept_step_is_published_for_a_phase_that_starts_there(lab: Lab) -> None:
    trunk = lab.phase(until_step=20, publish_every=100)
    fork = trunk.at(step=7).then("fork", until_step=9, stride=5)
    assert lab.run(trunk, fork) == sorted([*range(20), 7, 8])
    assert lab.value(fork) == 24


def test_a_plan_of_several_stops_of_one_trajectory_counts_what_a_run_trains(lab: Lab) -> None:
    trunk = lab.phase("trunk", until_step=5)
    far = trunk.then("far", until_step=20, stride=3)
    near = far.fork("near", until_step=12)
    rest = near.then("rest", until_step=20)
    branch = near.then("branch", until_step=15, stride=4)
    plan = lab.plan(far, near, rest, branch)
    assert {planned.name: planned.cost.work["tokens"] for planned in plan.will_run} == {
        "trunk": 50,
        "far": 80,
        "near": 70,
        "branch": 30,
    }
    assert plan["far"].reasons == (NeverMade(), Follows("near", 12))
    assert plan.saved.work.get("tokens", 0) == 0, "nothing of it is there yet"
    assert len(lab.run(far, near, rest, branch)) * TOKENS_A_STEP == plan.cost.work["tokens"]


def test_a_running_step_is_shown_with_its_progress(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.01)
    near = lab.phase("near", until_step=20, publish_every=100)
    far = near.fork("far", until_step=30)
    lab.store.write(f"work/{near.digest}/saved-000012.json", b'{"step": 12, "value": 24}')
    seen: list[str] = []

    def look() -> None:
        plan = lab.plan(near, far)
        seen.extend(explain(plan, name, lab.store) for name in ("near", "far"))
        seen.append(render_plan(plan))

    Run([near], lab.store, LocalBackend(), Curious(17, lab.store, look), command="").run()
    of_near, of_far, plan = seen
    check_message(of_near.partition("\n\n")[0])
    check_message(of_far.partition("\n\n")[0])
    check_message(re.sub(" {2,}", "  ", plan.partition("\n\n")[0]))


def test_a_saved_step_is_done_before_the_heartbeat_reports_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.01)
    near = lab.phase("near", until_step=20, publish_every=100)
    seen: list[Reason] = []

    def look() -> None:
        lab.store.write(f"work/{near.digest}/saved-000018.json", b'{"step": 18, "value": 36}')
        seen.extend(lab.plan(near)["near"].reasons)

    Run([near], lab.store, LocalBackend(), Curious(17, lab.store, look), command="").run()
    (running,) = [reason for reason in seen if isinstance(reason, Running)]
    assert (running.done, running.total, running.saved) == (18, 20, 18)


def test_an_interrupted_attempts_saved_steps_count_once_for_all_stops(lab: Lab) -> None:
    far = lab.phase("far", until_step=20, publish_every=100)
    near = far.fork("near", until_step=12)
    lab.run(near, interrupt_at=7)
    plan = lab.plan(far, near)
    assert [(planned.name, planned.cost.work["tokens"], planned.saved.work["tokens"]) for planned in plan.will_run] == [
        ("far", 80, 0),
        ("near", 50, 70),
    ]
    assert plan["near"].reasons == (Resumes(7, 12),)
    assert plan["far"].reasons == (Follows("near", 12),), "by then it is further than what was saved"
    assert len(lab.run(far, near)) * TOKENS_A_STEP == plan.cost.work["tokens"]


def test_after_an_interruption_a_plan_counts_only_what_is_left(lab: Lab) -> None:
    phase = lab.phase(until_step=20, publish_every=100)
    assert lab.run(phase, interrupt_at=13) == list(range(13))
    plan = lab.plan(phase)
    assert plan.steps[0].reasons == (Resumes(13, 20),)
    assert (plan.cost.work["tokens"], plan.saved.work["tokens"]) == (70, 130)
    Records(lab.store).label("phase", phase.key)  # as by a commit that was killed before its record
    assert lab.plan(phase).steps[0].reasons == (Resumes(13, 20),)
    assert lab.run(phase) == list(range(13, 20))
    assert lab.value(phase) == 40


def test_a_step_that_recovered_and_was_stopped_has_not_failed(lab: Lab) -> None:
    phase = lab.phase(until_step=20)
    display = Unlucky(crash_at=8, error=ConnectionResetError("reset by peer"), interrupt_at=13)
    Run([phase], lab.store, LocalBackend(), display, command="", back_off_seconds=0.01).run()
    assert [line.partition("; log: ")[0] for line in display.lines] == [
        "started: ",
        "retrying: in 0.01 s after ConnectionResetError: reset by peer",
        "started: attempt 2",
        "stopped: its work is kept: at 13 (the driver asked to stop)",
    ]
    (planned,) = lab.plan(phase).steps
    assert (planned.verdict, planned.reasons) == (Verdict.BEGUN, (Resumes(13, 20),))
    assert "reset by peer" not in explain(lab.plan(phase), "phase", lab.store)


def test_progress_clears_an_error_and_the_next_error_is_reported(lab: Lab) -> None:
    phase = lab.phase(until_step=20)

    def verdict() -> Verdict:
        return lab.plan(phase).steps[0].verdict

    lab.run(phase, interrupt_at=7)
    display = Unlucky(crash_at=9, error=ValueError("torn"))
    Run([phase], lab.store, LocalBackend(), display, command="").run()
    assert display.lines == ["started: ", "failed: ValueError: torn"]
    assert verdict() is Verdict.FAILED
    lab.run(phase, interrupt_at=12)
    assert verdict() is Verdict.BEGUN
    Run([phase], lab.store, LocalBackend(), Unlucky(crash_at=15, error=ValueError("torn again")), command="").run()
    assert "torn again" in explain(lab.plan(phase), "phase", lab.store)


def test_checkpoints_beyond_a_milestone_count_and_those_past_the_stop_do_not(lab: Lab) -> None:
    lab.run(lab.phase(until_step=20), interrupt_at=13)
    assert lab.plan(lab.phase(until_step=20)).steps[0].reasons == (Resumes(13, 20),)
    earlier = lab.plan(lab.phase(until_step=12)).steps[0]
    assert (earlier.reasons, earlier.cost.work["tokens"]) == ((Continues(10, 12),), 20)


def test_a_changed_setting_restarts_at_the_start_of_its_phase(lab: Lab) -> None:
    first = lab.phase("first", until_step=10)
    lab.run(first.then("second", until_step=15))
    other = first.then("second", until_step=15, stride=9)
    plan = lab.plan(other)
    assert [(planned.name, planned.cost.work["tokens"]) for planned in plan.will_run] == [("second", 50)]
    assert lab.run(other) == list(range(10, 15))


def test_steps_after_a_lost_milestone_are_blocked_by_its_name(lab: Lab) -> None:
    trunk = lab.phase(until_step=20)
    lab.run(trunk)
    fork = trunk.at(step=7).then("fork", until_step=14, stride=5)
    plan = lab.plan(fork.then("next", until_step=16, stride=6).then("last", until_step=18, stride=7))
    assert plan.will_run == ()
    assert [step.name for step in plan.blocked] == ["fork", "next", "last"]
    assert isinstance(plan["fork"].reasons[0], MilestoneMissing)
    assert plan["next"].reasons == plan["last"].reasons == (BlockedBy((("fork", "blocked"),)),)
    assert exit_code(plan) == 1


def test_a_start_without_a_checkpoint_names_the_nearest_saved_one(lab: Lab) -> None:
    trunk = lab.phase("trunk", until_step=20, publish_every=100)
    lab.run(trunk)
    lab.store.write(f"work/{trunk.digest}/saved-000009.json", b'{"step": 9, "value": 18}')

    def output(start: int) -> str:
        return str(lab.plan(trunk.at(step=start).then("fork", until_step=30, stride=5))["fork"].reasons[0])

    check_message("\n".join(output(start) for start in (7, 9, 19)))
    lab.run(trunk.fork("trunk", until_step=9))
    check_message(output(7))
    assert lab.run(trunk.fork("trunk", until_step=7)) == list(range(7)), "the options run what the message says"
    assert lab.plan(trunk.at(step=9).then("fork", until_step=30, stride=5))["fork"].will_run


def test_a_start_outside_a_trajectory_names_its_first_and_last_step(lab: Lab) -> None:
    trunk = lab.phase("trunk", until_step=20)
    leg = trunk.then("leg", until_step=30, stride=3)
    later = leg.then("later", until_step=40)

    def output(start: int, *others: Step[Any]) -> str:
        plan = lab.plan(leg.at(step=start).then("fork", until_step=50, stride=5), *others)
        return "; ".join(map(str, plan["fork"].reasons)) if plan["fork"].verdict is Verdict.BLOCKED else ""

    check_message("\n".join([output(35), output(20), output(15, later)]))
    assert output(35, later) == output(21) == ""


def test_a_leg_that_a_selection_leaves_out_publishes_nothing_for_it(lab: Lab) -> None:
    trunk = lab.phase("trunk", until_step=20, publish_every=100)
    lab.run(trunk)
    lab.store.write(f"work/{trunk.digest}/saved-000007.json", b'{"step": 7, "value": 14}')
    fork = trunk.at(step=7).then("fork", until_step=9, stride=5)
    leg = trunk.fork("leg", until_step=7)

    def planned(*until: str) -> tuple[Verdict, list[Any]]:
        step = make_plan(Graph([fork, leg]), lab.store, Selection(until=until))["fork"]
        return step.verdict, list(step.reasons)

    verdict, (reason,) = planned("fork")
    assert verdict is Verdict.BLOCKED and isinstance(reason, MilestoneMissing) and reason.is_saved
    assert planned()[0] is planned("fork", "leg")[0] is Verdict.MISSING, "then the leg publishes it on its way"
    assert lost_in(Graph([fork, leg]), [fork], lab.store) == {}
    assert lost_in(Graph([fork, leg]), [fork], lab.store, alone=True)["fork"][0].is_saved
    assert lab.carry_out(fork, leg, until=("fork", "leg")) == [7, 8]
    assert planned("fork")[0] is Verdict.DONE


def test_a_leg_that_a_selection_leaves_out_does_not_make_a_trajectory_longer(lab: Lab) -> None:
    leg = lab.phase("trunk", until_step=20).then("leg", until_step=30, stride=3)
    later = leg.then("later", until_step=40)
    graph = Graph([leg.at(step=33).then("fork", until_step=50, stride=5), later])
    (reason,) = make_plan(graph, lab.store, Selection(until=("fork",)))["fork"].reasons
    assert isinstance(reason, MilestoneOutsideRun) and (reason.wanted, reason.end) == (33, 30)
    lab.run(later)
    (reason,) = make_plan(graph, lab.store, Selection(until=("fork",)))["fork"].reasons
    assert isinstance(reason, MilestoneMissing) and (reason.wanted, reason.nearest) == (33, 35)


def test_a_start_that_an_unfinished_trajectory_has_passed_is_blocked_at_once(lab: Lab) -> None:
    trunk = lab.phase("trunk", until_step=20, publish_every=100)
    lab.run(trunk, interrupt_at=13)

    def output(start: int) -> str:
        plan = lab.plan(trunk.at(step=start).then("fork", until_step=30, stride=5))
        return "; ".join(map(str, plan["fork"].reasons)) if plan["fork"].verdict is Verdict.BLOCKED else ""

    check_message(output(7))
    assert output(13) == output(15) == "", "a run that comes by publishes it"


def test_a_leg_that_cannot_run_itself_is_not_counted_on_for_what_lies_on_its_way(lab: Lab) -> None:
    trunk = lab.phase("trunk", until_step=20, publish_every=100)
    lab.run(trunk)
    able, unable = (trunk.at(step=start).then("leg", until_step=30) for start in (20, 7))
    fork = trunk.at(step=25).then("fork", until_step=40, stride=5)
    after = fork.then("after", until_step=50, stride=6)
    assert all(lab.plan(able, after)[name].will_run for name in ("leg", "fork", "after"))
    for targets in ((unable, after), (after, unable)):
        plan = lab.plan(*targets)
        assert [plan[name].verdict for name in ("leg", "fork", "after")] == [Verdict.BLOCKED] * 3
        assert isinstance(plan["fork"].reasons[0], MilestoneOutsideRun)
    assert lab.carry_out(unable, after) == []


def test_no_run_starts_while_a_step_starts_past_the_end_of_a_run(lab: Lab) -> None:
    trunk = lab.phase("trunk", until_step=20)
    fork = trunk.at(step=25).then("fork", until_step=40, stride=5)
    plan = lab.plan(trunk, fork)
    assert plan["trunk"].will_run and list(plan.open_questions) == ["fork"]
    check_message(plan.open_questions["fork"])
    assert lab.plan(trunk, trunk.then("longer", until_step=30), fork).open_questions == {}


def test_a_run_without_the_fork_keeps_the_step_that_the_fork_starts_from(lab: Lab) -> None:
    trunk = lab.phase("trunk", until_step=20, publish_every=100)
    fork = trunk.at(step=7).then("fork", until_step=9, stride=5)
    assert lab.carry_out(fork, trunk, until=("trunk",)) == list(range(20))
    assert lab.plan(fork)["fork"].will_run
    assert lab.carry_out(fork) == [7, 8]


def test_a_run_to_a_later_stop_keeps_the_stops_before_it(lab: Lab) -> None:
    far = lab.phase("far", until_step=20, publish_every=100)
    near = far.fork("near", until_step=12)
    assert lab.carry_out(far, near, until=("far",)) == list(range(20))
    assert lab.plan(near)["near"].verdict is Verdict.DONE


def test_a_run_keeps_the_step_that_a_blocked_step_starts_from(lab: Lab) -> None:
    gone = lab.phase("gone", until_step=20, publish_every=100)
    lab.run(gone)
    trunk = gone.fork("trunk", stride=3)
    both = summed("both", SumConfig(counts=(gone.at(step=7), trunk.at(step=7))))
    assert lab.plan(both)["both"].verdict is Verdict.BLOCKED
    assert lab.carry_out(both) == list(range(20))
    assert f"{trunk.digest}@7" in Records(lab.store).committed_keys()


@pytest.mark.parametrize(("start", "is_blocked"), [(13, False), (7, True)])
def test_a_run_publishes_a_saved_step_that_a_fork_starts_from(lab: Lab, start: int, is_blocked: bool) -> None:
    trunk = lab.phase("trunk", until_step=20, publish_every=100)
    lab.run(trunk, interrupt_at=13)
    lab.store.write(f"work/{trunk.digest}/saved-000007.json", b'{"step": 7, "value": 14}')
    fork = trunk.at(step=start).then("fork", until_step=start + 2, stride=5)
    assert (lab.plan(fork)["fork"].verdict is Verdict.BLOCKED) is is_blocked
    assert lab.carry_out(fork, trunk, until=("trunk",)) == list(range(13, 20))
    assert lab.plan(fork)["fork"].will_run
    assert lab.carry_out(fork) == [start, start + 1]


def test_a_start_from_a_step_that_the_attempt_does_not_publish_is_reported(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.01)
    trunk = lab.phase("trunk", until_step=20, publish_every=100)
    reported = trunk.at(step=18).then("told", until_step=30, stride=4)
    found: dict[int | str, list[MilestoneNotRequested]] = {}

    def look() -> None:
        for start in (7, 18, 19, 20):
            plan = lab.plan(trunk.at(step=start).then("fork", until_step=30, stride=5))
            found[start] = [each for each in plan["fork"].reasons if isinstance(each, MilestoneNotRequested)]
            assert plan["fork"].will_run
        Requests(lab.store).send(trunk.digest, "trunk", PUBLISH, milestone=19)
        plan = lab.plan(trunk.at(step=19).then("fork", until_step=30, stride=5))
        found["requested"] = [each for each in plan["fork"].reasons if isinstance(each, MilestoneNotRequested)]

    Run([trunk, reported], lab.store, LocalBackend(), Curious(17, lab.store, look), command="").run()
    assert found[18] == found[20] == found["requested"] == []
    (ahead,), (passed,) = found[19], found[7]
    assert (ahead.wanted, ahead.is_past, ahead.pid) == (19, False, os.getpid())
    assert (passed.wanted, passed.is_past, passed.done) == (7, True, 17)


def test_an_unrequested_milestone_that_is_saved_is_shown_as_saved(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.01)
    trunk = lab.phase("trunk", until_step=20, publish_every=100)
    found: list[tuple[Verdict, list[Any]]] = []

    def look() -> None:
        for saved in (7, 12):
            lab.store.write(f"work/{trunk.digest}/saved-{saved:06d}.json", f'{{"step": {saved}, "value": 1}}'.encode())
            planned = lab.plan(trunk.at(step=7).then("fork", until_step=30, stride=5))["fork"]
            found.append((planned.verdict, [each for each in planned.reasons if not isinstance(each, NeverMade)]))

    Run([trunk], lab.store, LocalBackend(), Curious(17, lab.store, look), command="").run()
    for (verdict, (reason,)), expected in zip(found, (Verdict.MISSING, Verdict.BLOCKED), strict=True):
        assert verdict is expected and isinstance(reason, MilestoneMissing) and reason.is_saved


@pytest.mark.parametrize("order", [0, 1])
def test_a_leg_that_starts_within_another_and_stops_before_its_end_is_made_by_that(lab: Lab, order: int) -> None:
    trunk = lab.phase("trunk", until_step=20, publish_every=100)
    leg = trunk.at(step=7).then("leg", until_step=9)
    later = leg.then("later", until_step=11)
    assert trunk.digest == later.digest
    assert lab.run(*((trunk, later) if order else (later, trunk))) == list(range(20))
    assert [lab.value(each) for each in (leg, later, trunk)] == [18, 22, 40]
