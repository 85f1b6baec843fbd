"""Records: an output exists if and only if its record does, and the first committer wins."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from marin_dag.ledger.checked_json import checked_json
from marin_dag.ledger.pins import Pin
from marin_dag.ledger.provenance import Environment, Provenance, collect_provenance
from marin_dag.ledger.records import (
    Failure,
    FileEntry,
    OutputChangedError,
    Record,
    Records,
    UnreadableRecordError,
    attempt_path,
    first_lines,
    make_manifest,
    new_attempt,
    record_path,
)
from marin_dag.plan.explain import newest_made
from marin_dag.store.local import LocalStore
from marin_dag.store.store import Store, StoreError
from tests.catalogue import check_message, expect_error

DIGEST = "ab" * 32


def a_record(name: str = "tokenize/web", digest: str = DIGEST, milestone: int | None = None, **changes) -> Record:
    attempt = new_attempt()
    fields = {
        "key": digest if milestone is None else f"{digest}@{milestone}",
        "digest": digest,
        "milestone": milestone,
        "name": name,
        "kind": "tokenize",
        "identity": {"kind": "tokenize", "fields": [1, 2.5, None, "x"]},
        "result": {"num_tokens": 3},
        "output_path": attempt_path(name, digest, attempt),
        "attempt": attempt,
        "manifest": (FileEntry(path="a.bin", size_in_bytes=1, crc32c="00000000"),),
        "provenance": Provenance(git_commit=None, is_dirty=None, argv=(), host="h", environment="e"),
    }
    return Record(**{**fields, **changes})


def test_a_committed_record_is_read_back_unchanged(store: Store):
    records, record = Records(store), a_record()
    assert records.find(record.key) is None
    assert records.commit(record) == record
    assert records.get(record.key) == record
    assert records.committed_keys() == {record.key}


def test_the_first_committer_wins_and_the_loser_adopts_its_record(store: Store):
    records = Records(store)
    first, second = a_record(), a_record()
    assert records.commit(first) == first
    assert records.commit(second) == first
    assert records.get(DIGEST) == first


def test_racing_committers_all_return_the_same_record(store: Store):
    candidates = [a_record() for _ in range(5)]
    barrier = threading.Barrier(5)

    def commit(record: Record) -> Record:
        barrier.wait()
        return Records(store).commit(record)

    with ThreadPoolExecutor(5) as pool:
        returned = list(pool.map(commit, candidates))
    assert {record.attempt for record in returned} == {Records(store).get(DIGEST).attempt}


def test_milestones_of_one_run_have_their_own_keys(store: Store):
    records = Records(store)
    for milestone in (9, 10, 660_001):
        records.commit(a_record("kestrel", milestone=milestone))
    records.commit(a_record("ocelot", digest="cd" * 32, milestone=9))
    assert set(records.milestones(DIGEST)) == {9, 10, 660_001}
    assert records.milestones(DIGEST)[660_001].key == f"{DIGEST}@660001"


def test_an_output_is_found_by_its_names_and_not_by_a_longer_one(store: Store):
    records = Records(store)
    older, newer = a_record("web", digest="11" * 32), a_record("web", digest="22" * 32)
    records.commit(older)
    records.commit(newer)
    records.label("text", newer.key)
    records.commit(a_record("web/deep", digest="33" * 32))
    assert set(records.labels()["web"]) == {older.key, newer.key} and set(records.labels()) == {
        "text",
        "web",
        "web/deep",
    }
    assert records.names() == {older.key: {"web"}, newer.key: {"text", "web"}, "33" * 32: {"web/deep"}}


def test_a_label_without_a_record_leads_to_nothing(store: Store):
    store.create(f"labels/web/{DIGEST}", b"")
    assert newest_made(Records(store), "web") is None
    Records(store).commit(a_record("web"))
    assert newest_made(Records(store), "web") == DIGEST


def test_an_edited_record_is_refused_with_its_path(store: Store):
    store.write(record_path(DIGEST), b'{"key": 1}')
    with expect_error(StoreError):
        Records(store).find(DIGEST)


def test_a_record_with_a_changed_byte_is_refused(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    Records(store).commit(a_record())
    store.write(
        record_path(DIGEST), store.read(record_path(DIGEST)).replace(b'"kind": "tokenize"', b'"kind": "tokenise"')
    )
    with pytest.raises(UnreadableRecordError) as caught:
        Records(store).find(DIGEST)
    check_message(re.sub(r"CRC32C \w+, recorded \w+", "CRC32C <hex>, recorded <hex>", str(caught.value)))


def test_a_record_of_another_version_is_refused(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    store.write(record_path(DIGEST), checked_json(Pin(key="a", name="b", author="c", because="", created="d")))
    with expect_error(UnreadableRecordError):
        Records(store).find(DIGEST)


def test_getting_a_missing_record_is_an_error(store: Store):
    with expect_error(StoreError):
        Records(store).get(DIGEST)


def test_a_manifest_has_every_file_with_size_and_checksum(store: Store):
    store.write("outputs/x/one/a.bin", b"123456789")
    store.write("outputs/x/one/deep/b.bin", b"")
    store.write("outputs/x/one.log", b"not part of it")
    assert make_manifest(store, "outputs/x/one") == (
        FileEntry(path="a.bin", size_in_bytes=9, crc32c="e3069283"),
        FileEntry(path="deep/b.bin", size_in_bytes=0, crc32c="00000000"),
    )


def test_a_shard_changed_after_it_was_finished_is_refused(store: Store):
    store.write("outputs/x/one/shards/00000/a", b"1")
    expected = make_manifest(store, "outputs/x/one")
    store.write("outputs/x/one/shards/00000/a", b"2")
    with expect_error(OutputChangedError):
        make_manifest(store, "outputs/x/one", expected)


def test_a_file_still_being_written_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch):
    store = LocalStore(str(tmp_path))
    store.write("outputs/x/a", b"1")
    settle = store.settle

    def settle_while_a_thread_writes(path: str) -> tuple[int, str]:
        found = settle(path)
        store.write("outputs/x/late", b"2")
        return found

    monkeypatch.setattr(store, "settle", settle_while_a_thread_writes)
    with expect_error(OutputChangedError):
        make_manifest(store, "outputs/x")


def test_failures_are_kept_in_the_order_they_happened(store: Store):
    records = Records(store)
    for number in range(3):
        records.record_failure(
            Failure(
                key=DIGEST,
                name="web",
                attempt=f"2026-{number}",
                error_type="ValueError",
                error=f"failure {number}",
                log_path="outputs/web/x.log",
                is_transient=False,
                finished="now",
            )
        )
    assert [failure.error for failure in records.failures(DIGEST)] == ["failure 0", "failure 1", "failure 2"]
    assert records.failed_keys() == {DIGEST}


@pytest.mark.parametrize("torn", [b"", b'{"key": "', b"garbage", b"\xff\xfe"])
def test_an_unreadable_failure_is_shown_with_its_fix_and_hides_no_other(store: Store, torn: bytes):
    records = Records(store)
    store.write(f"failures/{DIGEST}/2026-1.json", torn)
    (failure,) = records.failures(DIGEST)
    assert failure.attempt == "2026-1" and failure.error_type == "UnreadableRecordError"
    assert store.url(f"failures/{DIGEST}/2026-1.json") in failure.error


def test_a_failure_that_is_deleted_after_the_listing_is_not_reported(store: Store, monkeypatch: pytest.MonkeyPatch):
    store.write(f"failures/{DIGEST}/2026-1.json", b"{}")
    listed = store.list("failures")
    store.delete(listed[0].path)
    monkeypatch.setattr(store, "list", lambda *given: listed)
    assert Records(store).failures(DIGEST) == []


def test_a_long_line_of_an_error_is_cut():
    (line,) = first_lines(ValueError("token=hunter2hunter2 " + "x" * 30_000_000)).splitlines()
    assert len(line) == 2_004 and line.endswith("x ...") and "hunter2" not in line


def test_the_first_lines_of_an_error_hide_secrets_and_the_rest():
    text = "cannot fetch https://me:hunter2@host/x\n" + "line\n" * 50
    lines = first_lines(ValueError(text)).splitlines()
    assert lines[0] == "cannot fetch https://***@host/x"
    assert lines[-1] == "... (39 more lines in the log)"


def test_provenance_has_command_and_packages_and_hides_secrets(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_API_TOKEN", "s3cr3t-value")
    monkeypatch.setattr("sys.argv", ["pipelines/tootsie.py", "--set", "x=s3cr3t-value", "--wandb-api-key=abcdef"])
    provenance = collect_provenance(store)
    assert provenance.argv == ("pipelines/tootsie.py", "--set", "x=***", "--wandb-api-key=***")
    environment = Environment.model_validate_json(store.read(provenance.environment))
    assert environment.packages["pydantic"]
    assert collect_provenance(store).environment == provenance.environment
