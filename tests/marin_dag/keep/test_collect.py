"""Collector: each way to reach an output, and files that must not be deleted with another output."""

import os
import time
from pathlib import Path

import pytest

from marin_dag.keep import collect
from marin_dag.keep.collect import Collector, Roots
from marin_dag.ledger import lease as lease_module
from marin_dag.ledger.epoch import epoch_path, seal
from marin_dag.ledger.lease import CLAIM, Lease, Leases, this_process
from marin_dag.ledger.output_warning import OutputWarning
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.records import Failure, FileEntry, Record, Records
from marin_dag.store.local import LocalStore
from marin_dag.store.store import StoreError
from tests.catalogue import expect_error
from tests.marin_dag.ledger.test_records import a_record

DIGEST = "ab" * 32
IDENTITY = {"config": ["model", "a.Config"]}
NOTHING = Roots(frozenset(), frozenset())
KNOWN = Roots(frozenset(), frozenset({"web"}))
"""Roots of a pipeline that has a step of that name, with another digest."""


def committed(store: LocalStore, milestone: int | None = None, *, attempt: Record | None = None, **changes) -> Record:
    """Commit an output with a file, which `KNOWN` does not lead to; a milestone has a folder of its own."""
    record = a_record("web", DIGEST, milestone, identity=IDENTITY, **changes)
    if attempt is not None:
        folder = attempt.output_path.rpartition("/")[0]
        record = record.model_copy(update={"attempt": attempt.attempt, "output_path": f"{folder}/{milestone}"})
    elif milestone is not None:
        record = record.model_copy(update={"output_path": f"{record.output_path}/{milestone}"})
    store.write(f"{record.output_path}/a.bin", b"x")
    return Records(store).commit(record)


def abandoned(store: LocalStore, attempt: str, *, digest: str = DIGEST, age_in_seconds: float = 0.0) -> str:
    """Write a file of a killed attempt; return its path."""
    path = f"outputs/web-{digest[:8]}/{attempt}/a.bin"
    store.write(path, b"x")
    store.create(epoch_path(digest, 1, CLAIM), this_process("web").model_dump_json().encode())
    seal(store, digest, 1)
    os.utime(Path(store.prefix, path), (time.time(), time.time() - age_in_seconds))
    return path


def kinds(store: LocalStore, roots: Roots = KNOWN, older_than_seconds: float = 0.0) -> list[str]:
    return [garbage.kind for garbage in Collector(store, roots, older_than_seconds=older_than_seconds).find()]


def collected(store: LocalStore, roots: Roots = KNOWN) -> list[str]:
    """Delete all garbage; return the reason for each that was left."""
    collector = Collector(store, roots, older_than_seconds=0)
    return collector.delete(collector.find())


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def test_an_output_with_an_acceptance_is_kept(store: LocalStore):
    committed(store)
    assert kinds(store) == ["output"]
    store.create(f"accepted/{DIGEST}/000000.json", b"{}")
    assert kinds(store) == []


def test_inputs_of_a_running_step_are_not_listed(store: LocalStore):
    record, leases = committed(store), Leases(store)
    lease = leases.acquire("cd" * 32, "reader", lambda: None, needs=(record.key,))
    assert isinstance(lease, Lease)
    assert kinds(store) == []
    lease.release()
    assert kinds(store) == ["output"]
    leases.close()


def test_nothing_is_collected_while_a_claim_is_unreadable(store: LocalStore):
    committed(store)
    store.write(epoch_path("cd" * 32, 1, CLAIM), b"{")
    with expect_error(StoreError):
        kinds(store)


def test_inputs_of_a_running_step_are_kept_although_the_collector_s_clock_is_ahead(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
):
    record, leases, now = committed(store), Leases(store), time.time
    assert isinstance(leases.acquire("cd" * 32, "reader", lambda: None, needs=(record.key,)), Lease)
    monkeypatch.setattr(lease_module.time, "time", lambda: now() + 3600)
    assert collected(store) == ["a step that has just started reads it, or it was pinned"]
    assert Records(store).find(record.key) == record
    leases.close()


def test_an_output_with_a_name_of_another_pipeline_is_kept(store: LocalStore):
    record = committed(store)
    Records(store).label("other", record.key)
    assert kinds(store) == []
    assert kinds(store, Roots(frozenset(), frozenset({"web", "other"}))) == ["output"]


def test_young_files_are_kept_whether_they_were_committed_or_not(store: LocalStore):
    committed(store)
    abandoned(store, "20200101-000000-0123abcd", digest="cd" * 32)
    assert kinds(store, older_than_seconds=3600) == []
    assert kinds(store) == ["output", "attempt"]


def test_a_pinned_milestone_keeps_its_files_and_the_log_of_its_attempt(store: LocalStore):
    first = committed(store, 1)
    second = committed(store, 2, attempt=first)
    log = f"{first.output_path.rpartition('/')[0]}.log"
    store.write(log, b"x")
    Pins(store).pin(second.key, "web", "")
    assert collected(store) == [""]
    assert [entry.path for entry in store.list("outputs")] == [log, f"{second.output_path}/a.bin"]
    assert Records(store).committed_keys() == {second.key}


def test_code_marks_are_deleted_with_an_output_and_no_empty_folder_is_left(store: LocalStore):
    code = {"policy": "versioned", "fingerprint": "f" * 64}
    warnings = (OutputWarning(text="few documents"),)
    record = Records(store).commit(a_record("web", DIGEST, identity=IDENTITY | {"code": code}, warnings=warnings))
    store.write(f"{record.output_path}/a/b/c", b"x")
    assert [entry.path for entry in store.list("codes")] == [f"codes/{record.key}/{'f' * 64}"]
    assert collected(store) == [""]
    assert sorted(path.name for path in Path(store.prefix).iterdir()) == ["commits", "leases"]


def test_saved_state_of_a_finished_run_is_kept_while_a_step_is_to_start_from_it(store: LocalStore):
    key = committed(store, 10).key
    store.write(f"work/{DIGEST}/step-7/checkpoint", b"x")
    done, names = frozenset({key}), frozenset({"web"})
    assert kinds(store, Roots(done, names, wanted=frozenset({f"{DIGEST}@7"}))) == []
    assert kinds(store, Roots(done, names, wanted=done)) == ["work"], "the start is published"


def test_a_young_attempt_keeps_older_attempts_of_its_digest(store: LocalStore):
    abandoned(store, "20200101-000000-0123abcd")
    abandoned(store, "20200102-000000-0123abcd", age_in_seconds=7200)
    assert kinds(store, KNOWN, older_than_seconds=3600) == []
    assert kinds(store, KNOWN) == ["attempt", "attempt"]


def test_attempts_of_two_digests_that_begin_alike_are_kept(store: LocalStore):
    abandoned(store, "20200101-000000-0123abcd")
    abandoned(store, "20200101-000000-0123abce", digest=DIGEST[:8] + "c" * 56)
    assert kinds(store, KNOWN) == []


def test_files_that_are_committed_after_they_were_found_are_kept(store: LocalStore):
    path = abandoned(store, "20200101-000000-0123abcd")
    collector = Collector(store, KNOWN, older_than_seconds=0)
    found = collector.find()
    entry = FileEntry(path="a.bin", size_in_bytes=1, crc32c="00000000")
    record = a_record("web", DIGEST, output_path=path.removesuffix("/a.bin"), manifest=(entry,))
    Records(store).commit(record)
    assert collector.delete(found) == ["it has been committed since"]
    assert store.exists(path)


def test_nothing_is_deleted_under_a_lost_lease(store: LocalStore, monkeypatch: pytest.MonkeyPatch):
    record = committed(store)
    store.write(f"work/{DIGEST}/saved", b"x")

    class LosingLeases(Leases):
        def acquire(self, *arguments, **options):
            lease = super().acquire(*arguments, **options)
            lease.is_lost = True
            return lease

    monkeypatch.setattr(collect, "Leases", LosingLeases)
    assert set(collected(store)) == {"its lease was lost while other garbage was deleted"}
    assert Records(store).find(record.key) and store.exists(f"work/{DIGEST}/saved")


def test_failures_are_deleted_unless_a_pipeline_has_the_step_or_the_output_is_kept(store: LocalStore):
    failure = Failure(
        key=f"{DIGEST}@10", name="web", attempt="20200101-000000-0123abcd", error_type="ValueError", error="no",
        log_path="outputs/web.log", is_transient=False, finished="now",
    )  # fmt: skip
    Records(store).record_failure(failure)
    assert kinds(store, Roots(frozenset({f"{DIGEST}@10"}), frozenset())) == [], "the plan shows it"
    assert kinds(store, older_than_seconds=3600) == []
    assert collected(store, NOTHING) == [""]
    assert store.list("failures") == []
    Records(store).record_failure(failure)
    record = committed(store, 20)
    Pins(store).pin(record.key, "web", "")
    assert kinds(store) == []
