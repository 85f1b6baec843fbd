"""Plan: one verdict for each step, its cost, and nothing written."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from marin_dag.errors import UserError
from marin_dag.graph.background import Background
from marin_dag.graph.cost import Cost
from marin_dag.graph.graph import Graph, Selection
from marin_dag.ledger import lease as lease_module
from marin_dag.ledger.lease import COPIES, Leases
from marin_dag.ledger.records import Records
from marin_dag.plan.config_checks import RefusedStepsError, check_configs
from marin_dag.plan.milestones import MilestoneMissing
from marin_dag.plan.plan import make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.plan.reasons import KeptParts, NeverMade, NotSelected, RecordGone, Silent
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Entry
from tests.catalogue import check_message, expect_error
from tests.marin_dag import toy
from tests.marin_dag.run.test_driver import run
from tests.marin_dag.toy_steps import CountConfig, ShardsConfig, SumConfig, count, squares, summed
from tests.marin_dag.workbench import Workbench


class File(NamedTuple):
    """The properties of a file that any write changes."""

    data: bytes
    modified: int
    inode: int


def everything(prefix: Path) -> dict[str, File]:
    found = {}
    for path in sorted(prefix.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(prefix))] = File(data, status.st_mtime_ns, status.st_ino)
    return found


class Watched(LocalStore):
    """A store that counts requests and fails on writes."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.listed: list[str] = []
        self.num_reads = 0

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        self.listed.append(folder)
        return super().list(folder, starting_with)

    def read(self, path: str) -> bytes:
        self.num_reads += 1
        return super().read(path)

    def create(self, path: str, data: bytes) -> bool:
        raise AssertionError(f"a plan wrote {path}")

    write = create  # type: ignore[assignment]


COMMANDS = [
    [],
    ["--dry-run"],
    ["plan", "--json"],
    ["why", "third"],
    ["diff", "third"],
    ["show", "third"],
    ["log", "third"],
    ["ls"],
    ["bump", "count"],
    ["--dry-run", "--set", "first.rate=4"],
    ["why", "third", "--set", "text/web.text=webb"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_command_touches_a_finished_output(bench: Workbench, arguments: list[str]) -> None:
    assert bench()[0] == 0
    before = everything(bench.prefix)
    bench(*arguments)
    assert everything(bench.prefix) == before


def test_later_runs_leave_the_provenance_of_a_record(bench: Workbench) -> None:
    bench()
    before = bench.files("commits")
    bench.edit("return [third]", 'return [third.then("fourth", until_step=40)]')
    assert bench("--set", "first.rate=4")[0] == 0
    assert bench()[0] == 0
    assert bench("--force", "text/web")[0] == 0
    after = bench.files("commits")
    assert {path: after[path] for path in before} == before
    assert len(after) > len(before)


def test_a_record_holds_its_provenance(bench: Workbench) -> None:
    bench()
    (record, *_) = bench.files("commits").values()
    provenance = json.loads(record)["provenance"]
    assert set(provenance) >= {"git_commit", "is_dirty", "dirty_diff", "lock", "argv", "host", "started", "finished"}
    assert provenance["host"] == os.uname().nodename


@pytest.mark.parametrize("does", ["", COPIES])
def test_a_plan_warns_of_a_lease_that_a_fast_clock_may_hide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    # A plan writes nothing, so it cannot ask the store for the time.
    store, now = Watched(str(tmp_path / "runs")), time.time
    step = squares("squares", ShardsConfig(num_shards=1))

    def elsewhere(name: str) -> lease_module.Holder:
        return this_process(name).model_copy(update={"host": "another-machine", "pid": 7})

    this_process = lease_module.this_process
    monkeypatch.setattr(lease_module, "this_process", elsewhere)
    leases = Leases(LocalStore(store.prefix))
    leases.acquire(step.digest, "squares", lambda: None, does=does)
    assert make_plan(Graph([step]), store)["squares"].verdict is Verdict.RUNNING
    monkeypatch.setattr(lease_module.time, "time", lambda: now() + 1_000)
    planned = make_plan(Graph([step]), store)["squares"]
    leases.close()
    assert (planned.verdict, planned.will_run) == (Verdict.MISSING, True)
    (reason,) = [reason for reason in planned.reasons if isinstance(reason, Silent)]
    assert (reason.host, reason.pid, reason.does) == ("another-machine", 7, does)
    assert 1_000 <= reason.seconds < 1_010


def test_a_damaged_failure_record_is_named_and_stops_no_plan(bench: Workbench) -> None:
    step = bench.plan()["count"].step
    store = open_store(str(bench.prefix))
    store.write(f"failures/{step.key}/20260101-000000-00000000.json", b"\x00garbage")
    code, output = bench("why", "count")
    assert code == 0 and f"{step.key}/20260101-000000-00000000.json" in output
    assert bench("plan")[0] == 2 and bench()[0] == 0


def test_a_deleted_record_is_not_called_never_made(bench: Workbench) -> None:
    bench()
    path = bench.prefix / "commits" / f"{bench.plan()['count'].step.key}.json"
    path.unlink()
    planned = bench.plan()["count"]
    assert (planned.verdict, planned.reasons) == (Verdict.MISSING, (RecordGone(),))
    assert bench()[0] == 0 and path.exists()


def test_a_step_committed_during_planning_is_done(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench()
    key, committed_keys = bench.plan()["count"].step.key, Records.committed_keys
    monkeypatch.setattr(Records, "committed_keys", lambda records: committed_keys(records) - {key})
    assert bench.plan()["count"].verdict is Verdict.DONE


def test_a_plan_of_finished_steps_takes_three_listings_and_a_read_a_record(bench: Workbench) -> None:
    bench()
    store = Watched(str(bench.prefix))
    plan = make_plan(bench.plan().graph, store)
    assert {planned.verdict for planned in plan.steps} == {Verdict.DONE}
    assert store.listed == ["commits", "marks", "codes"], "the last for the versioned steps"
    assert store.num_reads == len(plan.steps)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: data.replace(b'"host"', b'"hosT"'), lambda data: b""]
)
@pytest.mark.parametrize("arguments", [["--dry-run"], [], ["ls"], ["why", "count"]])
def test_a_truncated_or_altered_record_is_named_before_anything_runs(
    bench: Workbench, arguments: list[str], damage: Callable[[bytes], bytes]
) -> None:
    bench()
    path = bench.prefix / "commits" / f"{bench.plan()['count'].step.key}.json"
    path.chmod(0o644)
    path.write_bytes(damage(path.read_bytes()))
    code, text = bench(*arguments)
    assert code == 1 and f"rm {path}" in text
    path.unlink()
    assert bench()[0] == 0 and bench("verify", "all")[0] == 0


def test_a_damaged_record_stops_no_plan_that_leaves_its_step_out(bench: Workbench) -> None:
    bench()
    (bench.prefix / "commits" / f"{bench.plan()['third'].step.key}.json").write_bytes(b"")
    assert bench("--dry-run", "--until", "count")[0] == 0


def test_a_plan_over_a_slow_store_reads_no_more_records_than_its_limit(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench()
    store = Watched(str(bench.prefix))
    monkeypatch.setattr(Watched, "max_records_checked", 3)
    make_plan(bench.plan().graph, store)
    assert store.num_reads == 0


def test_a_plan_of_many_new_steps_takes_no_more_listings(tmp_path: Path) -> None:
    def listed(num_steps: int) -> list[str]:
        texts = [toy.text(f"text/{number}", toy.TextConfig(text=str(number))) for number in range(num_steps)]
        store = Watched(str(tmp_path / "runs"))
        plan = make_plan(Graph(texts), store)
        assert len(plan.will_run) == num_steps and store.num_reads == 0
        return store.listed

    assert listed(200) == listed(1)


def test_an_unselected_step_has_a_verdict_and_no_cost(bench: Workbench) -> None:
    graph = bench.plan().graph
    plan = make_plan(graph, open_store(str(bench.prefix)), Selection(until=("count",)))
    third = plan["third"]
    assert (third.verdict, third.will_run, third.cost) == (Verdict.MISSING, False, Cost())
    assert third.reasons == (NotSelected(), NeverMade())
    assert plan.cost.work.get("tokens", 0) == 0


def test_finished_shards_of_an_earlier_attempt_are_counted(tmp_path: Path, bench: Workbench) -> None:
    store = open_store(str(tmp_path / "shards"))
    step = squares("squares", ShardsConfig(num_shards=5))
    store.create(f"leases/{step.digest}/00000001.0000", b"")
    for shard in range(3):
        store.create(f"work/{step.digest}/shards/shards/{shard:05d}.json", b"{}")
    (planned,) = make_plan(Graph([step]), store).steps
    assert KeptParts(3) in planned.reasons


def test_an_open_setting_is_planned_and_stops_a_run_before_its_start(bench: Workbench) -> None:
    bench.edit("@step()\ndef text", "@step(check_decided=refuse_draft)\ndef text")
    bench.edit(
        "def weigh",
        "def refuse_draft(config):\n"
        "    if config.text == 'code':\n"
        "        raise RefusedConfigError('a draft', {'text': 'FINAL'})\n\n\n"
        "def weigh",
    )
    cost = "from marin_dag.graph.cost import Cost\n"
    bench.edit(cost, f"{cost}from marin_dag.errors import RefusedConfigError\n")
    code, output = bench("--dry-run")
    assert code == 2
    check_message(output)
    document = json.loads(bench("plan", "--json")[1])
    assert document["open_questions"].keys() == {"text/code"}
    (command,) = document["commands"]
    assert command["what"] == "once decided" and " --set text/code.text=FINAL " in command["command"]
    code, output = bench()
    assert code == 1
    check_message(output)
    assert not bench.prefix.exists()
    assert bench("--only", "text/web")[0] == 0
    assert bench("--set", "text/code.text=FINAL")[0] == 0


def test_the_same_mistake_of_several_steps_is_one_line() -> None:
    counts = {f"count/{number}": -1 for number in range(5)} | {"other": -2}
    steps = [toy.count(name, toy.CountConfig(texts={}, least=least)) for name, least in counts.items()]
    with expect_error(RefusedStepsError) as caught:
        check_configs(steps)
    assert isinstance(caught.value, RefusedStepsError) and caught.value.names == counts.keys()


def test_a_name_too_long_for_the_paths_of_the_store_is_refused(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.max_path_in_bytes = 1_024  # as below a bucket

    def plan(*lengths: int) -> int:
        parts = "/".join("x" * 200 for _ in range(3))
        steps = [toy.text(f"{parts}/{length * 'y'}", toy.TextConfig(text=str(length))) for length in lengths]
        return len(make_plan(Graph(steps), store).will_run)

    assert plan(123) == 1
    with expect_error(UserError):
        plan(124)
    with expect_error(UserError):
        plan(123, 124, 125)


def test_a_background_step_whose_milestone_is_lost_is_left_out_of_the_plan(tmp_path: Path):
    store = open_store(str(tmp_path))
    phase = count("phase", CountConfig(stride=1, until_step=12))
    reader = summed("reader", SumConfig(counts=(phase.at(step=7),)))
    watching = reader.in_background(Background("phase", 7))
    assert make_plan(Graph([watching]), store)["reader"].will_run, "the phase has yet to reach it"
    assert run(str(tmp_path), [phase])[0] == 0
    assert make_plan(Graph([reader]), store)["reader"].verdict is Verdict.BLOCKED
    after = summed("after", SumConfig(counts=(watching,))).in_background(Background("phase", 7))
    plan = make_plan(Graph([phase, watching, after]), store)
    assert not plan.will_run and not plan.blocked
    assert MilestoneMissing in map(type, plan["reader"].reasons)
    assert [planned.name for planned in plan.steps if planned.is_selected] == ["phase"]
    assert make_plan(Graph([watching]), store, Selection(until=("reader",))).blocked, "the user asked for it"


def test_a_step_of_the_run_makes_the_output_that_it_shares_with_a_background_step(tmp_path: Path):
    config = SumConfig(counts=(count("phase", CountConfig(stride=1, until_step=12)).at(step=7),))
    watching = summed("watching", config).in_background(Background("phase", 7))
    after = summed("after", SumConfig(counts=(watching,)))
    plan = make_plan(Graph([watching, after, summed("reader", config)]), open_store(str(tmp_path)))
    assert [planned.name for planned in plan.will_run] == ["phase", "after", "reader"], "a driver may skip the other"
