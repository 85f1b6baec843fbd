"""gc and pin: garbage is deleted, and nothing else."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marin_dag.cli.session import program
from marin_dag.keep import collect
from marin_dag.keep.collect import Collector, Roots
from marin_dag.ledger.epoch import seal
from marin_dag.ledger.lease import COPIES, Lease, Leases
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.provenance import user_name
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import Requests
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Entry
from tests.catalogue import check_message
from tests.marin_dag.cli.test_main import ROOT, Toy
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.marin_dag.ledger.test_records import a_record
from tests.marin_dag.workbench import Workbench

NOW = ("--older-than-days", "0")


@pytest.fixture
def edited(run: Toy) -> Toy:
    """A pipeline that ran with another text before: text/web and its dependents have two versions."""
    assert run("--set", "text/web.text=webb")[0] == 0
    assert run()[0] == 0
    assert len(committed_bytes(run.prefix)) == 13
    return run


def garbage_of(toy: Toy, days: str = "0") -> set[tuple[str, str]]:
    """Return kind and name of each line of garbage."""
    lines = toy("gc", "--older-than-days", days)[1].splitlines()
    kinds = ("output", "attempt", "work", "good", "request", "failure")
    return {(words[0], words[1]) for line in lines if (words := line.split())[0] in kinds}


def test_an_old_version_is_listed_and_deleted_only_with_yes(edited: Toy) -> None:
    before = committed_bytes(edited.prefix)
    code, text = edited("gc", *NOW)
    assert code == 2
    check_message(re.sub(r"\d+(\.\d+)? k?B", "SIZE", text).replace(program(), "PROGRAM"))
    assert committed_bytes(edited.prefix) == before
    assert edited("gc", "--yes", *NOW)[0] == 0
    assert len(committed_bytes(edited.prefix)) == 8
    assert edited("verify", "all")[0] == 0
    assert len({path.parts[-2] for path in (edited.prefix / "outputs").rglob("*.log")}) == 8
    assert garbage_of(edited) == set()
    assert edited("--dry-run")[0] == 0
    assert edited("--set", "text/web.text=webb")[0] == 0  # it can be made again


def test_young_garbage_is_kept(edited: Toy) -> None:
    code, text = edited("gc", "--yes")
    assert code == 0 and len(committed_bytes(edited.prefix)) == 13
    check_message(text)


def test_a_pinned_output_is_kept(edited: Toy) -> None:
    webb = ("--set", "text/web.text=webb")
    assert edited("pin", "count", "--because", "cited in the paper", *webb)[0] == 0
    assert [pin.because for pin in Pins(open_store(str(edited.prefix))).all()] == ["cited in the paper"]
    assert edited("pin")[0] == 0
    assert garbage_of(edited) == {("output", name) for name in ("text/web", "kestrel", "ocelot", "phoenix")}
    assert edited("gc", "--yes", *NOW)[0] == 0
    verdicts = edited.verdicts(*webb)
    assert verdicts["count"] == "done"
    assert verdicts["kestrel"] == "stale"
    assert edited("pin", "count", "--unpin", *webb)[0] == 0
    assert edited("pin", "count", "--unpin", *webb)[0] == 1
    edited("gc", "--yes", *NOW)
    assert edited.verdicts(*webb)["count"] != "done"


def test_a_fork_and_a_pipeline_of_also_keep_their_outputs(edited: Toy, tmp_path: Path) -> None:
    edited("fork", "phoenix", "--as", "mine", "--set", "z_loss=0.5")
    edited("--until", "mine")
    other = tmp_path / "other.py"
    other.write_text(
        "import sys\nfrom marin_dag.cli.main import main\nfrom tests.marin_dag import toy\n"
        "def build(arguments):\n"
        "    from marin_dag.graph.assignments import build_graph\n"
        "    from marin_dag.graph.graph import Graph\n"
        "    return build_graph(lambda: Graph(toy.build(arguments)), ['text/web.text=webb']).targets\n"
        "sys.exit(main(build, name='other'))\n"
    )
    assert edited("gc", "--also", str(other), *NOW)[0] == 0
    code, text = edited("gc", "--also", str(tmp_path / "none.py"), *NOW)
    assert code == 1
    check_message(text.partition("\n")[0])
    edited("gc", "--yes", *NOW)
    assert edited.verdicts()["mine"] == "done"


def test_outputs_under_names_that_the_pipeline_does_not_know_are_kept(edited: Toy) -> None:
    store = open_store(str(edited.prefix))
    found = Collector(store, Roots(frozenset(), frozenset({"count"})), older_than_seconds=0).find()
    assert {garbage.name for garbage in found} == {"count"}


def abandoned(store: LocalStore, digest: str, *, sealed: bool = True) -> str:
    """Write what a killed attempt leaves."""
    attempt = "20200101-000000-0123abcd"
    for path in (f"outputs/a/b-{digest[:8]}/{attempt}/file", f"outputs/a/b-{digest[:8]}/{attempt}.log"):
        store.write(path, b"x" * 10)
    store.write(f"work/{digest}/saved", b"y")
    store.create(f"leases/{digest}/00000001.claim", b'{"name":"a","host":"h","pid":1,"process":"","since":""}')
    if sealed:
        seal(store, digest, 1)
    return attempt


def test_files_of_killed_attempts_are_deleted_when_they_are_old(tmp_path: Path) -> None:
    store, digest = LocalStore(str(tmp_path)), "ab" * 32
    abandoned(store, digest)
    store.write(f"outputs/a/b-{digest[:8]}/waits.html", b"of an unfinished run")
    for folder in ("outputs", "work"):
        assert store.list(folder)
    roots = Roots(frozenset(), frozenset({"a/b"}))
    assert Collector(store, roots, older_than_seconds=3600).find() == []
    old = Collector(store, roots, older_than_seconds=3600, clock=lambda: time.time() + 7200)
    found = old.find()
    assert [(garbage.kind, garbage.name) for garbage in found] == [
        ("attempt", "a/b (20200101-000000-0123abcd)"),
        ("work", "a/b (abababab)"),
    ]
    assert old.delete(found) == ["", ""]
    assert store.list("outputs") == store.list("work") == []


def test_event_logs_of_a_finished_step_are_kept_as_long_as_its_output(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    records = Records(store)
    made = a_record("old/1", "1".ljust(64, "0"), identity={"config": ["model", "a.Config"]})
    for path in (f"{made.output_path}/file", f"work/{made.digest}/saved", f"work/{made.digest}/events/1.jsonl"):
        store.write(path, b"x")
    records.commit(made)
    for roots, left in (
        (Roots(frozenset({made.key}), frozenset({"old/1"})), [f"work/{made.digest}/events/1.jsonl"]),
        (Roots(frozenset(), frozenset({"old/1"})), []),
    ):
        collector = Collector(store, roots, older_than_seconds=0)
        assert set(collector.delete(collector.find())) == {""}
        assert [entry.path for entry in store.list("work")] == left


@pytest.mark.parametrize("inside", ["", "/checkpoints/step-10"])
def test_files_of_a_pipeline_beside_attempts_are_deleted_with_the_output(tmp_path: Path, inside: str) -> None:
    store = LocalStore(str(tmp_path))
    records = Records(store)
    made = a_record("old/1", "1".ljust(64, "0"), identity={"config": ["model", "a.Config"]})
    folder = made.output_path.rpartition("/")[0]
    made = made.model_copy(update={"output_path": f"{made.output_path}{inside}"})
    beside = f"{folder}/waits.html"
    for path in (f"{made.output_path}/file", beside, "outputs/other-00000000/waits.html"):
        store.write(path, b"x")
    records.commit(made)
    names = frozenset({"old/1"})
    kept = Collector(store, Roots(frozenset({made.key}), names), older_than_seconds=0)
    assert kept.find() == []
    failed = f"{folder}/20200101-000000-0123abcd.log"
    store.write(failed, b"x")
    store.create(f"leases/{made.digest}/00000001.claim", b'{"name":"a","host":"h","pid":1,"process":"","since":""}')
    seal(store, made.digest, 1)
    (garbage,) = kept.find()
    assert [entry.path for entry in garbage.files] == [failed], "the output is still there"
    assert kept.delete([garbage]) == [""]
    collector = Collector(store, Roots(frozenset(), names), older_than_seconds=0)
    assert collector.delete(collector.find()) == [""]
    assert [entry.path for entry in store.list("outputs")] == ["outputs/other-00000000/waits.html"]


def checkpoints(store: LocalStore, digest: str) -> str:
    """Write what a finished phase leaves: a good checkpoint and another one."""
    folder = f"work/{digest}/temporary/step-0000000010-epoch-000001"
    for path in (f"{folder}/checkpoint/manifest.json", f"{folder}/good.json"):
        store.write(path, b"x" * 500)
    store.write(f"work/{digest}/temporary/step-0000000012-epoch-000001/checkpoint/manifest.json", b"y")
    return folder


def test_good_checkpoints_of_a_finished_step_are_deleted_only_by_its_name(run: Toy) -> None:
    assert run()[0] == 0
    store = open_store(str(run.prefix))
    assert isinstance(store, LocalStore)
    (key,) = Records(store).labels()["kestrel"]
    digest = key.partition("@")[0]
    folder = checkpoints(store, digest)
    kept = {f"{folder}/checkpoint/manifest.json", f"{folder}/good.json"}

    def work() -> set[str]:
        return {entry.path for entry in store.list("work")}

    before = work()
    code, text = run("gc", "--yes")
    assert (code, work()) == (0, before)
    check_message(text)
    assert run("gc", "--yes", *NOW)[0] == 0 and work() == kept
    assert run("pin", "kestrel", "--because", "cited")[0] == 0
    code, text = run("gc", "--yes", "--good-of", "kestrel")
    assert (code, work()) == (1, kept)
    check_message(text.replace(user_name(), "USER"))
    assert run("pin", "kestrel", "--unpin")[0] == 0
    assert run("gc", "--good-of", "kestrel")[0] == 2 and work() == kept
    assert run("gc", "--yes", "--good-of", "kestrel")[0] == 0 and work() == set()
    code, text = run("gc", "--yes", "--good-of", "kestrel")
    assert code == 1
    check_message(text)
    assert run.verdicts()["kestrel"] == "done"


def test_good_checkpoints_are_deleted_with_the_output_unless_it_is_pinned_or_made_meanwhile(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    records = Records(store)
    made = a_record("old/1", "1".ljust(64, "0"), identity={"config": ["model", "a.Config"]})
    records.commit(made)
    folder = checkpoints(store, made.digest)
    unreachable = Roots(frozenset(), frozenset({"old/1"}))
    named = frozenset({made.digest})
    Pins(store).pin(made.key, "old/1", "")
    collector = Collector(store, unreachable, older_than_seconds=0, good_of=named)
    assert collector.delete([garbage for garbage in collector.find() if garbage.kind == "good"]) == [
        "its step is pinned"
    ]
    collector = Collector(store, unreachable, older_than_seconds=0)
    assert [garbage.kind for garbage in collector.find()] == ["work"]
    Pins(store).unpin(made.key, "old/1")
    collector = Collector(store, unreachable, older_than_seconds=0)
    found = collector.find()
    assert [garbage.kind for garbage in found] == ["output", "work", "good"]
    assert collector.delete(found[-1:]) == ["its step has an output"]
    assert f"{folder}/good.json" in {entry.path for entry in store.list("work")}
    assert collector.delete(found) == ["", "", ""]
    assert store.list("work") == store.list("commits") == []


def test_good_checkpoints_of_an_unfinished_step_are_kept_as_long_as_a_pipeline_has_it(tmp_path: Path) -> None:
    store, digest = LocalStore(str(tmp_path)), "ab" * 32
    checkpoints(store, digest)
    wanted = Collector(store, Roots(frozenset({f"{digest}@60"}), frozenset()), older_than_seconds=0)
    assert wanted.find() == [] and wanted.kept_good == ()
    forgotten = Collector(store, Roots(frozenset(), frozenset()), older_than_seconds=0)
    assert [(found.kind, len(found.files)) for found in forgotten.find()] == [("work", 1), ("good", 2)]


class Killed(BaseException):
    """Raised in place of a power cut."""


class Mortal(LocalStore):
    """A store that dies before a deletion."""

    left = 1_000

    def delete(self, path: str) -> None:
        if not self.left:
            raise Killed
        self.left -= 1
        super().delete(path)


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_kill_at_any_deletion_leaves_no_checkpoint_that_looks_complete(tmp_path: Path, is_marked: bool) -> None:
    whole = {"checkpoint/arrays/a/c.0", "checkpoint/metadata.json", "checkpoint/manifest.json"}
    marks = {"good.json"} if is_marked else set[str]()
    for number in range(4):
        store, digest = Mortal(str(tmp_path / f"{number}")), "ab" * 32
        folder = f"work/{digest}/temporary/step-0000000010-epoch-000001"
        for name in whole | marks:
            store.write(f"{folder}/{name}", b"x")
        collector = Collector(store, Roots(frozenset(), frozenset()), older_than_seconds=0)
        found = collector.find()
        store.left = number
        with contextlib.suppress(Killed):
            collector.delete(found)
        left = {entry.path.removeprefix(f"{folder}/") for entry in store.list("work")}
        assert "checkpoint/manifest.json" not in left or whole <= left
        assert "good.json" not in left or whole <= left


def test_inputs_of_a_running_step_are_never_collected(edited: Toy) -> None:
    store = open_store(str(edited.prefix))
    records, leases = Records(store), Leases(store)
    old_web = next(key for key in records.labels()["text/web"] if records.get(key).identity != {} and
                   records.get(key).manifest[0].size_in_bytes == 4)  # fmt: skip
    lease = leases.acquire("cd" * 32, "reader", lambda: None, needs=(old_web,))
    assert isinstance(lease, Lease)
    edited("gc", "--yes", *NOW)
    assert records.find(old_web) is not None
    lease.release()
    edited("gc", "--yes", *NOW)
    assert records.find(old_web) is None
    leases.close()


def test_a_step_that_starts_during_a_collection_keeps_its_inputs(edited: Toy) -> None:
    store = open_store(str(edited.prefix))
    records, leases = Records(store), Leases(store)
    collector = Collector(store, Roots(frozenset(), frozenset({"text/web"})), older_than_seconds=0)
    garbage = collector.find()
    lease = leases.acquire("cd" * 32, "reader", lambda: None, needs=tuple(item.key for item in garbage))
    assert isinstance(lease, Lease)
    before = committed_bytes(edited.prefix)
    assert set(collector.delete(garbage)) == {"a step that has just started reads it, or it was pinned"}
    assert committed_bytes(edited.prefix) == before
    assert all(records.find(item.key) is not None for item in garbage)
    lease.release()
    leases.close()


def test_stray_files_beside_the_folders_of_steps_are_kept(bench: Workbench) -> None:
    assert bench()[0] == 0
    strays = [bench.prefix / "codes" / "note.txt", bench.prefix / "work" / "note.txt"]
    for stray in strays:
        stray.parent.mkdir(exist_ok=True)
        stray.write_text("mine")
    assert bench("gc", "--yes", "--older-than-days", "0")[0] == 0
    assert bench("ls")[0] == 0 and bench("why", "count")[0] == 0
    assert all(stray.exists() for stray in strays)


@pytest.mark.parametrize("does", ["", COPIES], ids=["runs", "copies"])
def test_files_that_another_process_works_on_are_kept(tmp_path: Path, does: str) -> None:
    store, digest = LocalStore(str(tmp_path)), "ab" * 32
    abandoned(store, digest)
    old = Collector(store, Roots(frozenset(), frozenset()), older_than_seconds=60, clock=lambda: time.time() + 7200)
    found = old.find()
    leases = Leases(store)
    assert isinstance(leases.acquire(digest, "a/b", lambda: None, does=does), Lease)
    assert all(old.delete(found))
    assert store.list("outputs")
    leases.close()


def test_a_pipeline_prints_its_roots(run: Toy) -> None:
    run()
    done = subprocess.run(
        [sys.executable, "tests/marin_dag/toy.py", "gc", "--roots", "--prefix", str(run.prefix)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(json.loads(done.stdout)["names"]) == set(run.committed())


def test_state_of_an_unfinished_step_of_the_pipeline_is_kept_at_any_age(tmp_path: Path) -> None:
    store, digest = LocalStore(str(tmp_path)), "ab" * 32
    abandoned(store, digest)
    for keys, kinds in (({f"{digest}@600"}, []), ({"cd" * 32}, ["attempt", "work"])):
        roots = Roots(frozenset(keys), frozenset({"a/b"}))
        old = Collector(store, roots, older_than_seconds=60, clock=lambda: time.time() + 7200)
        assert sorted(garbage.kind for garbage in old.find()) == kinds


def test_an_unfinished_step_of_another_recipe_is_kept_until_its_name_is_given(run: Toy) -> None:
    store, digest = open_store(str(run.prefix)), "ab" * 32
    abandoned(store, digest)
    store.write(f"requests/{digest}/1", b"{}")
    code, text = run("gc", "--yes", *NOW)
    assert code == 0 and store.exists(f"work/{digest}/saved") and store.exists(f"requests/{digest}/1")
    check_message(text)
    code, text = run("gc", "--name", "a/c", *NOW)
    assert code == 1
    check_message(text.replace(str(run.prefix), "PREFIX"))
    assert run("gc", "--yes", "--name", "a/b", *NOW)[0] == 0
    assert store.list("work") == store.list("requests") == []


class Counting(LocalStore):
    """A store that counts requests."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.listed, self.asked = 0, 0

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        entries = super().list(folder, starting_with)
        self.listed += len(entries)
        self.asked += 1
        return entries

    def read(self, path: str) -> bytes:
        self.asked += 1
        return super().read(path)

    def delete(self, path: str) -> None:
        self.asked += 1
        super().delete(path)


def test_twice_the_garbage_takes_twice_the_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "BATCH", 20)
    asked, listed = [], []
    for num_records in (40, 80):
        store = Counting(str(tmp_path / str(num_records)))
        records = Records(store)
        for number in range(num_records):
            identity = {"config": ["model", "a.Config"]}
            # Digests differ in their first eight digits.
            made = a_record(f"old/{number}", f"{number:08x}".ljust(64, "0"), identity=identity)
            store.write(f"{made.output_path}/file", b"x")
            store.write(f"work/{made.digest}/saved", b"x")
            records.commit(made)
            records.label("another/name", made.key)
        names = frozenset({"another/name", *(f"old/{number}" for number in range(num_records))})
        collector = Collector(store, Roots(frozenset(), names), older_than_seconds=0)
        found = collector.find()
        store.asked = store.listed = 0
        assert set(collector.delete(found)) == {""}
        asked.append(store.asked)
        listed.append(store.listed)
        assert store.list("labels") == store.list("commits") == store.list("outputs") == store.list("work") == []
    assert asked[1] == 2 * asked[0]
    # Each batch lists the leases of all that was deleted before.
    assert listed[1] < 4 * listed[0]


def test_requests_are_kept_as_long_as_the_output(edited: Toy) -> None:
    store = open_store(str(edited.prefix))
    labels, requests = Records(store).labels(), Requests(store)
    (webb, web), (kestrel, *_) = labels["text/web"], labels["kestrel"][::-1]
    unmade = "f" * 64
    digests = [webb, web, kestrel.partition("@")[0], unmade, "toy-20260101-000000-abcd"]
    sent = [requests.send(digest, "a step", "save") for digest in digests]
    requests.reply(sent[0], "", "saved")
    at_work = Leases(store)
    lease = at_work.acquire(unmade, "a step", lambda: None)
    assert isinstance(lease, Lease)
    lease.beat()
    assert "request" not in {kind for kind, _ in garbage_of(edited, "7")}
    assert edited("gc", "--yes", *NOW)[0] == 0
    assert {request.digest for request in requests.of_all()} == set(digests[1:4])
    assert store.list("requests", f"{webb}/") == []
    lease.release()
    at_work.close()
