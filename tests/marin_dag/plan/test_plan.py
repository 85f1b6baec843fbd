"""Plan: one verdict for each step, its cost, and nothing written; a cache hit changes no byte of the prefix."""

import json
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from marin_dag.errors import UserError
from marin_dag.graph.cost import Cost
from marin_dag.graph.graph import Graph, Selection
from marin_dag.ledger import lease as lease_module
from marin_dag.ledger.lease import COPIES, Leases
from marin_dag.ledger.records import Records
from marin_dag.plan.config_checks import check_configs
from marin_dag.plan.plan import make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.plan.reasons import KeptParts, NeverMade, NotSelected, Silent, render
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Entry
from tests.catalogue import expect_error
from tests.marin_dag import toy
from tests.marin_dag.toy_steps import ShardsConfig, squares
from tests.marin_dag.workbench import Workbench


class File(NamedTuple):
    """What a touch would change."""

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
    """A store that counts what is asked of it, and refuses to be written to."""

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
def test_what_is_done_stays_as_it_was_to_the_byte_and_the_time(bench: Workbench, arguments: list[str]) -> None:
    assert bench()[0] == 0
    before = everything(bench.prefix)
    bench(*arguments)
    assert everything(bench.prefix) == before


def test_provenance_is_that_of_the_run_that_made_it_whatever_runs_later(bench: Workbench) -> None:
    bench()
    before = bench.files("commits")
    bench.edit("return [third]", 'return [third.then("fourth", until_step=40)]')
    assert bench("--set", "first.rate=4")[0] == 0
    assert bench()[0] == 0
    assert bench("--force", "text/web")[0] == 0
    after = bench.files("commits")
    assert {path: after[path] for path in before} == before
    assert len(after) > len(before)


def test_a_record_tells_where_it_came_from(bench: Workbench) -> None:
    bench()
    (record, *_) = bench.files("commits").values()
    provenance = json.loads(record)["provenance"]
    assert set(provenance) >= {"git_commit", "is_dirty", "dirty_diff", "lock", "argv", "host", "started", "finished"}
    assert provenance["host"] == os.uname().nodename


@pytest.mark.parametrize(("does", "who"), [("", "the attempt"), (COPIES, "whoever copies it")])
def test_a_clock_that_is_ahead_is_told_where_it_may_hide_who_holds_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, who: str
) -> None:
    """A plan writes nothing, and so cannot ask the store for the time."""
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
    (said,) = [render(reason) for reason in planned.reasons if isinstance(reason, Silent)]
    assert re.fullmatch(
        rf"{who} on another-machine \(pid 7\) was last heard 1,00\d s ago: killed, or this clock is ahead", said
    )


def test_a_failure_that_cannot_be_read_ends_no_plan_and_is_named(bench: Workbench) -> None:
    step = bench.plan()["count"].step
    store = open_store(str(bench.prefix))
    store.write(f"failures/{step.key}/20260101-000000-00000000.json", b"\x00garbage")
    code, said = bench("why", "count")
    assert code == 0 and f"{step.key}/20260101-000000-00000000.json was edited, damaged" in said
    assert bench("plan")[0] == 2 and bench()[0] == 0


def test_a_record_that_somebody_deleted_is_told_from_what_was_never_made(bench: Workbench) -> None:
    bench()
    path = bench.prefix / "commits" / f"{bench.plan()['count'].step.key}.json"
    path.unlink()
    said = "made before, and its record is gone: deleted, or a kill came first"
    planned = bench.plan()["count"]
    assert (planned.verdict, [render(reason) for reason in planned.reasons]) == (Verdict.MISSING, [said])
    assert bench()[0] == 0 and path.exists()


def test_what_is_committed_while_a_plan_is_made_is_done(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench()
    key, committed_keys = bench.plan()["count"].step.key, Records.committed_keys
    monkeypatch.setattr(Records, "committed_keys", lambda records: committed_keys(records) - {key})
    assert bench.plan()["count"].verdict is Verdict.DONE


def test_a_plan_of_what_is_done_takes_two_listings_and_reads_nothing(bench: Workbench) -> None:
    bench()
    store = Watched(str(bench.prefix))
    plan = make_plan(bench.plan().graph, store)
    assert {planned.verdict for planned in plan.steps} == {Verdict.DONE}
    assert store.listed == ["commits", "codes"], "the second for the versioned steps"
    assert store.num_reads == 0


def test_a_plan_reads_no_more_for_many_steps_that_were_never_made(tmp_path: Path) -> None:
    def listed(num_steps: int) -> list[str]:
        texts = [toy.text(f"text/{number}", toy.TextConfig(text=str(number))) for number in range(num_steps)]
        store = Watched(str(tmp_path / "runs"))
        plan = make_plan(Graph(texts), store)
        assert len(plan.will_run) == num_steps and store.num_reads == 0
        return store.listed

    assert listed(200) == listed(1)


def test_what_is_left_out_has_its_verdict_and_says_why_it_will_not_run(bench: Workbench) -> None:
    graph = bench.plan().graph
    plan = make_plan(graph, open_store(str(bench.prefix)), Selection(until=("count",)))
    third = plan["third"]
    assert (third.verdict, third.will_run, third.cost) == (Verdict.MISSING, False, Cost())
    assert third.reasons == (NotSelected(), NeverMade())
    assert plan.cost.tokens == 0


def test_finished_shards_of_an_earlier_attempt_are_counted(tmp_path: Path, bench: Workbench) -> None:
    store = open_store(str(tmp_path / "shards"))
    step = squares("squares", ShardsConfig(num_shards=5))
    store.create(f"leases/{step.digest}/00000001.0000", b"")
    for shard in range(3):
        store.create(f"work/{step.digest}/shards/shards/{shard:05d}.json", b"{}")
    (planned,) = make_plan(Graph([step]), store).steps
    assert KeptParts(3) in planned.reasons
    # It may have failed as well; nothing that is kept tells.
    assert render(KeptParts(3)) == "of an earlier attempt 3 finished shards can be taken over"


def test_time_is_estimated_from_past_attempts_in_proportion_to_the_work(bench: Workbench) -> None:
    bench()
    records = Records(open_store(str(bench.prefix)))
    for key in records.committed_keys():
        path = bench.prefix / "commits" / f"{key}.json"
        record = json.loads(path.read_text())
        record["provenance"]["started"] = "2026-01-01T00:00:00+00:00"
        record["provenance"]["finished"] = "2026-01-01T00:01:40+00:00"
        path.unlink()
        path.write_text(json.dumps(record))
    plan = bench.plan("--set", "third.until_step=50")
    assert plan["third"].cost.seconds == pytest.approx(200), "ten steps took 100 s, and 20 are left"
    assert plan["third"].saved.seconds == pytest.approx(100)
    assert plan["text/web"].cost.seconds == 0, "it is done"
    assert bench.plan("--set", "text/web.text=webb").cost.seconds == pytest.approx(500)
    assert "3 min of work, by past attempts" in bench("--dry-run", "--set", "third.until_step=50")[1]


def test_without_past_attempts_no_time_is_claimed(bench: Workbench) -> None:
    assert bench.plan().cost.seconds == 0
    assert "by past attempts" not in bench("--dry-run")[1]


def test_what_a_recipe_leaves_open_is_told_by_a_plan_and_stops_a_run_before_it_begins(bench: Workbench) -> None:
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
    code, said = bench("--dry-run")
    assert code == 2 and "6 steps: 6 missing. 6 would run." in said
    question = "  text/code: a draft\n    On the command line: --set text/code.text=FINAL\n"
    assert f"No run begins before this is decided:\n{question}" in said
    (once,) = [line for line in said.splitlines() if line.startswith("once decided")]
    assert "run it" not in said and " --set text/code.text=FINAL " in once, "it would be refused without"
    assert json.loads(bench("plan", "--json")[1])["open_questions"].keys() == {"text/code"}
    code, said = bench()
    assert code == 1 and said.startswith("bench: text/code: a draft\n") and "Nothing was started" in said
    assert not bench.prefix.exists()
    assert bench("--only", "text/web")[0] == 0
    assert bench("--set", "text/code.text=FINAL")[0] == 0
    assert "decided" not in bench("--dry-run", "--set", "text/code.text=FINAL")[1]


def test_what_is_wrong_with_several_steps_alike_is_said_once() -> None:
    counts = {f"count/{number}": -1 for number in range(5)} | {"other": -2}
    steps = [toy.count(name, toy.CountConfig(texts={}, least=least)) for name, least in counts.items()]
    with pytest.raises(UserError) as caught:
        check_configs(steps)
    assert str(caught.value).splitlines() == [
        "count/0, count/1, count/2 and 2 more: least is -1; a count is never below 0.",
        "other: least is -2; a count is never below 0.",
    ]


def test_a_name_that_leaves_the_files_of_an_output_no_room_is_refused_with_what_there_is(tmp_path: Path) -> None:
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
