"""gc and pin: what nothing leads to any more goes, and nothing else."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marin_dag.keep import collect
from marin_dag.keep.collect import Collector, Roots
from marin_dag.ledger.epoch import seal
from marin_dag.ledger.lease import COPIES, Lease, Leases
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import Requests
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Entry
from tests.marin_dag.cli.test_main import ROOT, Toy
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.marin_dag.ledger.test_records import a_record
from tests.marin_dag.workbench import Workbench

NOW = ("--older-than-days", "0")


@pytest.fixture
def edited(run: Toy) -> Toy:
    """A pipeline that was run with another word before: text/web and all that follows are there twice."""
    assert run("--set", "text/web.text=webb")[0] == 0
    assert run()[0] == 0
    assert len(committed_bytes(run.prefix)) == 13
    return run


def test_an_old_version_is_shown_with_its_size_and_deleted_only_with_yes(edited: Toy) -> None:
    before = committed_bytes(edited.prefix)
    code, said = edited("gc", *NOW)
    assert code == 2
    outputs = {line.split()[1] for line in said.splitlines() if line.startswith("output")}
    assert outputs == {"text/web", "count", "kestrel", "ocelot", "phoenix"}
    assert said.splitlines()[-2].startswith("5 in all, ")
    assert committed_bytes(edited.prefix) == before
    code, said = edited("gc", "--yes", *NOW)
    assert code == 0, said
    assert len(committed_bytes(edited.prefix)) == 8
    assert edited("verify", "all")[0] == 0
    assert len({path.parts[-2] for path in (edited.prefix / "outputs").rglob("*.log")}) == 8
    assert edited("gc", *NOW) == (0, "nothing to collect that is older than 0 days\n")
    assert edited("--dry-run")[0] == 0
    assert edited("--set", "text/web.text=webb")[0] == 0  # it can be made again


def test_what_is_young_stays(edited: Toy) -> None:
    assert edited("gc", "--yes") == (0, "nothing to collect that is older than 7 days\n")


def test_a_pinned_output_stays_and_who_depends_on_garbage_is_said(edited: Toy) -> None:
    webb = ("--set", "text/web.text=webb")
    code, said = edited("pin", "count", "--because", "cited in the paper", *webb)
    assert code == 0 and "count: pinned; `gc` keeps it" in said
    assert "cited in the paper" in edited("pin")[1]
    outputs = {line.split()[1] for line in edited("gc", *NOW)[1].splitlines() if line.startswith("output")}
    assert outputs == {"text/web", "kestrel", "ocelot", "phoenix"}  # what is pinned is not even listed
    code, said = edited("gc", "--yes", *NOW)
    assert code == 0
    assert any(line.startswith("output") and "count were made from it" in line for line in said.splitlines())
    verdicts = edited.verdicts(*webb)
    assert verdicts["count"] == "done"
    assert verdicts["kestrel"] == "stale"
    assert edited("pin", "count", "--unpin", *webb)[0] == 0
    assert "it is not pinned" in edited("pin", "count", "--unpin", *webb)[1]
    edited("gc", "--yes", *NOW)
    assert edited.verdicts(*webb)["count"] != "done"


def test_a_fork_and_another_pipeline_that_is_named_keep_what_they_lead_to(edited: Toy, tmp_path: Path) -> None:
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
    assert edited("gc", "--also", str(other), *NOW) == (0, "nothing to collect that is older than 0 days\n")
    code, said = edited("gc", "--also", str(tmp_path / "none.py"), *NOW)
    assert code == 1 and "it does not say what it leads to, so that nothing can go" in said
    edited("gc", "--yes", *NOW)
    assert edited.verdicts()["mine"] == "done"


def test_outputs_of_names_that_the_pipeline_does_not_know_are_left_alone(edited: Toy) -> None:
    store = open_store(str(edited.prefix))
    found = Collector(store, Roots(frozenset(), frozenset({"count"})), older_than_seconds=0).find()
    assert {garbage.name for garbage in found} == {"count"}


def abandoned(store: LocalStore, digest: str, *, sealed: bool = True) -> str:
    """What an attempt leaves that was killed."""
    attempt = "20200101-000000-0123abcd"
    for path in (f"outputs/a/b-{digest[:8]}/{attempt}/file", f"outputs/a/b-{digest[:8]}/{attempt}.log"):
        store.write(path, b"x" * 10)
    store.write(f"work/{digest}/saved", b"y")
    store.create(f"leases/{digest}/00000001.claim", b'{"name":"a","host":"h","pid":1,"process":"","since":""}')
    if sealed:
        seal(store, digest, 1)
    return attempt


def test_what_killed_attempts_left_goes_when_it_is_old(tmp_path: Path) -> None:
    store, digest = LocalStore(str(tmp_path)), "ab" * 32
    abandoned(store, digest)
    store.write(f"outputs/a/b-{digest[:8]}/waits.html", b"of a report that never came about")
    for folder in ("outputs", "work"):
        assert store.list(folder)
    roots = Roots(frozenset(), frozenset())
    assert Collector(store, roots, older_than_seconds=3600).find() == []
    old = Collector(store, roots, older_than_seconds=3600, clock=lambda: time.time() + 7200)
    found = old.find()
    assert [(garbage.kind, garbage.name) for garbage in found] == [
        ("attempt", "a/b (20200101-000000-0123abcd)"),
        ("work", "a/b (abababab)"),
    ]
    assert old.delete(found) == ["", ""]
    assert store.list("outputs") == store.list("work") == []


def test_the_event_logs_of_a_finished_step_stay_as_long_as_its_output(tmp_path: Path) -> None:
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
def test_what_a_pipeline_wrote_beside_the_attempts_at_an_output_goes_with_it(tmp_path: Path, inside: str) -> None:
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


def certified(store: LocalStore, digest: str) -> str:
    """What a finished phase leaves: a folder that is marked, and one that is not."""
    folder = f"work/{digest}/temporary/step-0000000010-epoch-000001"
    for path in (f"{folder}/checkpoint/manifest.json", f"{folder}/certified.json"):
        store.write(path, b"x" * 500)
    store.write(f"work/{digest}/temporary/step-0000000012-epoch-000001/checkpoint/manifest.json", b"y")
    return folder


def test_what_a_finished_step_has_certified_is_listed_apart_and_goes_only_by_its_name(run: Toy) -> None:
    assert run()[0] == 0
    store = open_store(str(run.prefix))
    assert isinstance(store, LocalStore)
    (key,) = Records(store).labels()["kestrel"]
    digest = key.partition("@")[0]
    folder = certified(store, digest)
    listed = "kestrel: temporary/step-0000000010-epoch-000001".ljust(48)
    stays = f"stays        {listed}       1 kB  certified, to go back to"
    code, said = run("gc", "--yes")
    assert (code, said.splitlines()) == (0, [stays, "nothing to collect that is older than 7 days"])
    code, said = run("gc", "--yes", *NOW)
    assert code == 0 and said.splitlines()[0] == stays
    assert [line.split()[:2] for line in said.splitlines()[1:2]] == [["work", "kestrel"]]
    assert {entry.path for entry in store.list("work")} == {f"{folder}/{name}" for name in
                                                            ("checkpoint/manifest.json", "certified.json")}  # fmt: skip
    assert "nothing is pinned under " in run("pin")[1]
    assert run("pin", "kestrel", "--because", "cited")[0] == 0
    code, said = run("gc", "--yes", "--certified", "kestrel")
    assert code == 1 and "kestrel: it is pinned by" in said and "(cited), and a pinned step keeps" in said
    assert run("pin", "kestrel", "--unpin")[0] == 0
    code, said = run("gc", "--certified", "kestrel")
    assert (
        code == 2 and said.splitlines()[0].split()[:2] == ["certified", "kestrel:"] and "--certified kestrel\n" in said
    )
    assert store.list("work")
    code, said = run("gc", "--yes", "--certified", "kestrel")
    assert code == 0 and said.endswith("deleted 1\n")
    assert store.list("work") == []
    code, said = run("gc", "--yes", "--certified", "kestrel")
    assert code == 1 and "--certified kestrel: there is nothing certified of it that can go" in said
    assert run.verdicts()["kestrel"] == "done"


def test_what_was_certified_goes_with_the_output_and_stays_if_that_is_pinned_or_made_meanwhile(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    records = Records(store)
    made = a_record("old/1", "1".ljust(64, "0"), identity={"config": ["model", "a.Config"]})
    records.commit(made)
    folder = certified(store, made.digest)
    unreachable = Roots(frozenset(), frozenset({"old/1"}))
    named = frozenset({made.digest})
    Pins(store).pin(made.key, "old/1", "")
    for certified_of in (frozenset[str](), named):
        collector = Collector(store, unreachable, older_than_seconds=0, certified_of=certified_of)
        found = [garbage for garbage in collector.find() if garbage.kind == "certified"]
        assert set(collector.delete(found)) <= {"its step is pinned"}
    Pins(store).unpin(made.key, "old/1")
    collector = Collector(store, unreachable, older_than_seconds=0)
    found = collector.find()
    assert [garbage.kind for garbage in found] == ["output", "work", "certified"]
    assert collector.delete(found[-1:]) == ["its step has an output"]
    assert f"{folder}/certified.json" in {entry.path for entry in store.list("work")}
    assert collector.delete(found) == ["", "", ""]
    assert store.list("work") == store.list("commits") == []


def test_what_an_interrupted_step_has_certified_stays_while_a_pipeline_is_to_finish_it(tmp_path: Path) -> None:
    store, digest = LocalStore(str(tmp_path)), "ab" * 32
    certified(store, digest)
    wanted = Collector(store, Roots(frozenset({f"{digest}@60"}), frozenset()), older_than_seconds=0)
    assert wanted.find() == [] and wanted.staying == ()
    forgotten = Collector(store, Roots(frozenset(), frozenset()), older_than_seconds=0)
    assert [(found.kind, len(found.files)) for found in forgotten.find()] == [("work", 1), ("certified", 2)]


class Killed(BaseException):
    """The machine goes off."""


class Mortal(LocalStore):
    """Dies before a deletion."""

    left = 1_000

    def delete(self, path: str) -> None:
        if not self.left:
            raise Killed
        self.left -= 1
        super().delete(path)


@pytest.mark.parametrize("is_marked", [True, False])
def test_killed_at_any_deletion_it_leaves_no_checkpoint_that_looks_complete_and_is_not(
    tmp_path: Path, is_marked: bool
) -> None:
    """A checkpoint exists if its manifest does; a step that is made after all would go on from it."""
    whole = {"checkpoint/arrays/a/c.0", "checkpoint/metadata.json", "checkpoint/manifest.json"}
    marks = {"certified.json"} if is_marked else set[str]()
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
        assert "certified.json" not in left or whole <= left


def test_what_a_running_step_needs_is_never_collected(edited: Toy) -> None:
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


def test_a_step_that_begins_while_it_is_collected_keeps_its_input(edited: Toy) -> None:
    store = open_store(str(edited.prefix))
    records, leases = Records(store), Leases(store)
    collector = Collector(store, Roots(frozenset(), frozenset({"text/web"})), older_than_seconds=0)
    garbage = collector.find()
    lease = leases.acquire("cd" * 32, "reader", lambda: None, needs=tuple(item.key for item in garbage))
    assert isinstance(lease, Lease)
    before = committed_bytes(edited.prefix)
    assert set(collector.delete(garbage)) == {"a step that has just begun reads it, or it was pinned or migrated"}
    assert committed_bytes(edited.prefix) == before
    assert all(records.find(item.key) is not None for item in garbage)
    lease.release()
    leases.close()


def test_a_stray_file_beside_the_folders_of_steps_stays_and_ends_nothing(bench: Workbench) -> None:
    assert bench()[0] == 0
    strays = [bench.prefix / "codes" / "note.txt", bench.prefix / "work" / "note.txt"]
    for stray in strays:
        stray.parent.mkdir(exist_ok=True)
        stray.write_text("mine")
    assert bench("gc", "--yes", "--older-than-days", "0")[0] == 0
    assert bench("ls")[0] == 0 and bench("why", "count")[0] == 0
    assert all(stray.exists() for stray in strays)


@pytest.mark.parametrize(("does", "said"), [("", "runs"), (COPIES, "copies")])
def test_what_another_process_works_on_is_left(tmp_path: Path, does: str, said: str) -> None:
    store, digest = LocalStore(str(tmp_path)), "ab" * 32
    abandoned(store, digest)
    old = Collector(store, Roots(frozenset(), frozenset()), older_than_seconds=60, clock=lambda: time.time() + 7200)
    found = old.find()
    leases = Leases(store)
    assert isinstance(leases.acquire(digest, "a/b", lambda: None, does=does), Lease)
    assert all(f"pid {os.getpid()} {said} it since " in why for why in old.delete(found))
    assert store.list("outputs")
    leases.close()


def test_a_pipeline_says_what_it_leads_to(run: Toy) -> None:
    run()
    done = subprocess.run(
        [sys.executable, "tests/marin_dag/toy.py", "gc", "--roots", "--prefix", str(run.prefix)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert set(said["names"]) == set(run.committed())


def test_what_an_unfinished_step_of_the_pipeline_resumes_from_stays_however_old(tmp_path: Path) -> None:
    store, digest = LocalStore(str(tmp_path)), "ab" * 32
    abandoned(store, digest)
    for keys, kinds in (({f"{digest}@600"}, []), ({"cd" * 32}, ["attempt", "work"])):
        roots = Roots(frozenset(keys), frozenset())
        old = Collector(store, roots, older_than_seconds=60, clock=lambda: time.time() + 7200)
        assert sorted(garbage.kind for garbage in old.find()) == kinds


class Counting(LocalStore):
    """Counts what is asked of it."""

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


def test_twice_as_much_garbage_asks_for_twice_as_much_and_every_name_of_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "BATCH", 20)
    asked, listed = [], []
    for num_records in (40, 80):
        store = Counting(str(tmp_path / str(num_records)))
        records = Records(store)
        for number in range(num_records):
            identity = {"config": ["model", "a.Config"]}
            # Digests are told apart by their first eight digits.
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
    # Who is running is asked once a batch, which lists the leases of all that was deleted before.
    assert listed[1] < 4 * listed[0]


def test_what_people_told_stays_as_long_as_what_it_shaped(edited: Toy) -> None:
    store = open_store(str(edited.prefix))
    labels, requests = Records(store).labels(), Requests(store)
    (webb, web), (kestrel, *_) = labels["text/web"], labels["kestrel"][::-1]
    unmade = "f" * 64
    digests = [webb, web, kestrel.partition("@")[0], unmade, "toy-20260101-000000-abcd"]
    told = [requests.send(digest, "a step", "save") for digest in digests]
    requests.reply(told[0], "", "saved")
    at_work = Leases(store)
    lease = at_work.acquire(unmade, "a step", lambda: None)
    assert isinstance(lease, Lease)
    lease.beat()
    assert "request" not in edited("gc")[1], "all of them are young"
    assert edited("gc", "--yes", *NOW)[0] == 0
    assert {request.digest for request in requests.of_all()} == set(digests[1:4])
    assert store.list("requests", f"{webb}/") == [], "nor is the answer left"
    lease.release()
    at_work.close()
