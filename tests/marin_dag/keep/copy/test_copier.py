"""Copies of one output: equal bytes, verified before the record exists, despite damage, other processes and kills."""

import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from marin_dag.errors import UserError
from marin_dag.keep.copy import copier as copier_module
from marin_dag.keep.copy.copier import Copied, Copier, DamagedSourceError, HeldAtTargetError
from marin_dag.ledger.damage import findings_of
from marin_dag.ledger.epoch import LeaseLostError, seal
from marin_dag.ledger.lease import Lease, Leases
from marin_dag.ledger.marks import marked
from marin_dag.ledger.output_warning import OutputWarning
from marin_dag.ledger.records import FileEntry, Record, Records, attempt_path, new_attempt, record_path
from marin_dag.store import gcs, local
from marin_dag.store import retry as transient
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError
from tests.catalogue import check_message, expect_error
from tests.gcs_server.control import GcsServerProcess
from tests.marin_dag.ledger.test_records import a_record
from tests.marin_dag.toy_driver import watch_writes

DIGEST = "ab" * 32
BLOCK = 1 << 16
FILES = {"small.txt": b"small", "deep/large.bin": bytes(range(256)) * 1000, "empty": b""}
SCHEMES = {"gcs": "gs", "s3": "s3"}
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.marin_dag.keep.copy.test_copier"])
PLACES = ["local to local", "local to gcs", "gcs to gcs", "gcs to local", "local to s3", "s3 to local"]


def output(store: Store, files: dict[str, bytes] = FILES, milestone: int | None = None, digest: str = DIGEST) -> Record:
    """Commit an output with a log."""
    attempt = new_attempt()
    folder = attempt_path("tokenize/web", digest, attempt)
    for path, data in files.items():
        store.write(f"{folder}/{path}", data)
    store.write(f"{folder}.log", b"a line")
    manifest = tuple(
        FileEntry(path=path, size_in_bytes=len(data), crc32c=google_crc32c.Checksum(data).digest().hex())
        for path, data in files.items()
    )
    record = a_record(
        digest=digest, milestone=milestone, attempt=attempt, output_path=folder, manifest=manifest, result={"n": 1}
    )
    store.write(record.provenance.environment, b"{}")
    return Records(store).commit(record)


@pytest.fixture
def open_place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Store]:
    def opened(kind: str) -> Store:
        name = uuid.uuid4().hex
        return open_store(
            str(tmp_path / name)
            if kind == "local"
            else f"{SCHEMES[kind]}://{request.getfixturevalue(f'{kind}_bucket')}/{name}"
        )

    return opened


@pytest.fixture
def places(request: pytest.FixtureRequest, open_place: Callable[[str], Store]) -> tuple[Store, Store]:
    """Two empty stores of the kinds in the parameter."""
    source, _, target = getattr(request, "param", "local to local").split()
    return open_place(source), open_place(target)


@pytest.fixture(autouse=True)
def small_blocks_and_no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "BLOCK_IN_BYTES", BLOCK)
    monkeypatch.setattr(gcs, "BLOCK_IN_BYTES", 4 * BLOCK)  # a multiple of 256 KiB
    monkeypatch.setattr(copier_module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(transient, "PAUSES_SECONDS", (0.0, 0.0))


def copied(source: Store, target: Store, key: str = DIGEST, *, check: bool = False) -> Copied:
    copier = Copier(source, target, check=check)
    try:
        return copier.copy(key)
    finally:
        copier.close()


@pytest.mark.parametrize("places", PLACES, indirect=True)
def test_a_copy_has_the_record_and_the_bytes_and_is_made_once(places: tuple[Store, Store]) -> None:
    source, target = places
    record = output(source)
    done = copied(source, target)
    assert done == Copied("copied", 3, 256_005)
    assert Records(target).get(DIGEST) == record
    assert target.read(f"commits/{DIGEST}.json") == source.read(f"commits/{DIGEST}.json")
    assert {path: target.read(f"{record.output_path}/{path}") for path in FILES} == FILES
    assert findings_of(target, record) == []
    assert target.read(f"{record.output_path}.log") == b"a line" and target.read("e") == b"{}"
    assert set(Records(target).labels()) == {"tokenize/web"}
    assert copied(source, target).outcome == "there"


def test_a_copy_inside_one_cloud_moves_no_bytes_through_this_machine(
    open_place: Callable[[str], Store], gcs_server: GcsServerProcess
) -> None:
    source, target = open_place("gcs"), open_place("gcs")
    output(source)
    gcs_server.clear_requests()
    assert copied(source, target).num_files == 3
    assert len(gcs_server.requests("rewriteTo")) == 3
    moved = [asked["request"] for asked in gcs_server.requests("large.bin") if "rewriteTo" not in asked["request"]]
    assert moved and not any("alt=media" in request or "/upload/" in request for request in moved)


@pytest.mark.parametrize("places", ["local to local", "gcs to gcs", "s3 to local"], indirect=True)
def test_damaged_files_of_the_source_are_named_and_not_copied(places: tuple[Store, Store]) -> None:
    source, target = places
    record = output(source, {**FILES, "short.bin": b"x" * 3 * BLOCK, "other.bin": b"y" * 3 * BLOCK, "lost": b"z"})
    source.write(f"{record.output_path}/short.bin", b"x" * 2 * BLOCK)
    source.write(f"{record.output_path}/other.bin", b"y" * (3 * BLOCK - 1) + b"Y")
    source.delete(f"{record.output_path}/lost")
    with pytest.raises(DamagedSourceError) as raised:
        copied(source, target)
    check_message(str(raised.value).replace(f"{source.prefix}/{record.output_path}", "OUTPUT"))
    damaged = {finding.path for finding in raised.value.findings}
    assert damaged == {"short.bin", "other.bin", "lost"}
    assert Records(target).committed_keys() == frozenset()
    there = {entry.path.removeprefix(f"{record.output_path}/") for entry in target.list("outputs")}
    assert not there & damaged
    source.write(f"{record.output_path}/short.bin", b"x" * 3 * BLOCK)
    source.write(f"{record.output_path}/other.bin", b"y" * 3 * BLOCK)
    source.write(f"{record.output_path}/lost", b"z")
    assert copied(source, target).num_files == 3  # the whole ones were there already


class Flipping(LocalStore):
    """A disk that stores other bytes than were sent."""

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        super().write_blocks(path, [block.replace(b"small", b"Small") for block in blocks])


def test_a_file_that_arrives_changed_gets_no_record(tmp_path: Path) -> None:
    source, target = LocalStore(str(tmp_path / "a")), Flipping(str(tmp_path / "b"))
    output(source)
    with expect_error(StoreError) as raised:
        copied(source, target)
    assert isinstance(raised.value, StoreError) and raised.value.is_transient
    assert Records(target).committed_keys() == frozenset()
    assert copied(source, LocalStore(target.prefix)).outcome == "copied"


class Counting(LocalStore):
    largest = 0

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        def counted() -> Iterator[bytes]:
            for block in blocks:
                self.largest = max(self.largest, len(block))
                yield block

        super().write_blocks(path, counted())


def test_a_large_file_is_copied_in_blocks(tmp_path: Path) -> None:
    source, target = LocalStore(str(tmp_path / "a")), Counting(str(tmp_path / "b"))
    output(source)
    copied(source, target)
    assert target.largest == BLOCK


def test_two_copiers_at_once_make_one_copy(places: tuple[Store, Store]) -> None:
    source, target = places
    record = output(source, {f"file{number}": b"x" * BLOCK for number in range(20)})
    with ThreadPoolExecutor(2) as pool:
        outcomes = sorted(future.result().outcome for future in [pool.submit(copied, source, target) for _ in range(2)])
    assert outcomes in (["copied", "copied"], ["copied", "there"])
    assert Records(target).get(DIGEST) == record and findings_of(target, record) == []


def test_a_record_of_another_attempt_stays(places: tuple[Store, Store]) -> None:
    source, target = places
    output(source)
    theirs = output(target)
    assert copied(source, target).outcome == "other attempt"
    assert Records(target).get(DIGEST) == theirs and findings_of(target, theirs) == []


def test_an_attempt_that_commits_at_the_target_meanwhile_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = LocalStore(str(tmp_path / "a")), LocalStore(str(tmp_path / "b"))
    output(source, {"w": b"ours"})
    copy_files = Copier.copy_files

    def slow(self: Copier, *args: Any) -> tuple[int, int]:
        done = copy_files(self, *args)
        output(target, {"w": b"theirs"})
        return done

    monkeypatch.setattr(Copier, "copy_files", slow)
    assert copied(source, target).outcome == "other attempt"
    theirs = Records(target).get(DIGEST)
    assert findings_of(target, theirs) == [] and target.read(f"{theirs.output_path}/w") == b"theirs"


def test_an_output_that_another_process_makes_at_the_target_is_left_to_it(places: tuple[Store, Store]) -> None:
    source, target = places
    output(source)
    leases = Leases(target)
    lease = leases.acquire(DIGEST, "tokenize/web", lambda: None)
    assert isinstance(lease, Lease)
    with expect_error(HeldAtTargetError):
        copied(source, target)
    assert target.list("outputs") == [] and target.list("commits") == []
    lease.release()
    leases.close()
    assert copied(source, target).outcome == "copied"


def test_check_repairs_a_damaged_copy(places: tuple[Store, Store]) -> None:
    source, target = places
    record = output(source)
    copied(source, target)
    target.write(f"{record.output_path}/deep/large.bin", b"rotten")
    target.delete(f"{record.output_path}/empty")
    assert copied(source, target).outcome == "there"
    assert copied(source, target, check=True).outcome == "repaired"
    assert findings_of(target, record) == []
    assert copied(source, target, check=True).outcome == "there"


def copy_and_die(source: str, target: str, write: int | None, block: int | None) -> None:
    """Copy two outputs; die before the write or block of that number."""
    local.BLOCK_IN_BYTES = BLOCK
    if write is not None:
        watch_writes(write)
    copier = Copier(LocalStore(source), LocalStore(target))
    left, check_going = [block], copier._check_going

    def dying(lease: Lease | None = None) -> None:
        if left[0] is not None:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
        check_going(lease)

    copier._check_going = dying  # type: ignore[method-assign]
    for key in (f"{DIGEST}@5", f"{DIGEST}@10"):
        copier.copy(key)


def in_child(source: str, target: str, *, write: int | None = None, block: int | None = None) -> int | None:
    """Return the exit code of a copier of two outputs, killed before its write or block of that number."""
    # Not a fork of this process, whose memory may be that of a whole suite.
    child = FORKSERVER.Process(target=copy_and_die, args=(source, target, write, block))
    child.start()
    child.join()
    return child.exitcode


@pytest.mark.parametrize("what", ["write", "block"])
def test_killed_at_any_moment_the_next_copy_completes_with_the_same_bytes(tmp_path: Path, what: str) -> None:
    source = LocalStore(str(tmp_path / "source"))
    records = [output(source, {"a": b"a" * 3 * BLOCK, "b": b"b", "empty": b""}, milestone=at) for at in (5, 10)]
    number = 0
    while True:
        target = LocalStore(str(tmp_path / str(number)))
        code = in_child(source.prefix, target.prefix, **{what: number})
        for key in Records(target).committed_keys():
            assert findings_of(target, Records(target).get(key)) == [], f"half a copy, killed before {what} {number}"
        if code != 0:
            assert code == -signal.SIGKILL
            assert in_child(source.prefix, target.prefix) == 0, f"killed before {what} {number}"
        for record in records:
            assert Records(target).get(record.key) == record
            assert findings_of(target, record, Records(target).milestones(DIGEST).values()) == []
        assert not [left for record in records for left in Path(target.prefix, record.output_path).rglob(".tmp-*")]
        if code == 0:
            break
        number += 1
    assert number > (30 if what == "write" else 8)


def test_a_lost_lease_stops_the_copy_and_the_next_one_completes_it(
    places: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    record = output(source, {"a": b"a" * 5 * BLOCK})
    blocks_of, leases = Copier._blocks, list[Lease]()
    acquire = Leases.acquire

    def acquired(self: Leases, *args: Any, **options: Any) -> Any:
        leases.append(acquire(self, *args, **options))  # type: ignore[arg-type]
        return leases[-1]

    def losing(self: Copier, *args: Any) -> Iterator[bytes]:
        for number, block in enumerate(blocks_of(self, *args)):
            if number == 2 and len(leases) == 1:
                leases[0].is_lost = True
            assert number < 3 or len(leases) > 1, "it goes on without a lease"
            yield block

    monkeypatch.setattr(Leases, "acquire", acquired)
    monkeypatch.setattr(Copier, "_blocks", losing)
    copier = Copier(source, target)
    with expect_error(LeaseLostError):
        copier.copy(DIGEST)
    assert target.list("commits") == []
    seal(target, DIGEST, 1)  # as a successor does first
    assert copied(source, target).outcome == "copied" and findings_of(target, record) == []
    copier.close()


def test_logs_of_all_hosts_are_copied_and_may_grow(places: tuple[Store, Store]) -> None:
    source, target = places
    record = output(source)
    source.write(f"{record.output_path}.host1.log", b"of host 1")
    copied(source, target)
    assert target.read(f"{record.output_path}.host1.log") == b"of host 1"
    source.write(f"{record.output_path}.log", b"a line, and the last line")
    copier = Copier(source, target)
    copier.copy_beside(record)
    copier.close()
    assert target.read(f"{record.output_path}.log") == b"a line, and the last line"


def test_a_copy_keeps_the_warnings_about_the_output_and_their_mark(places: tuple[Store, Store]) -> None:
    source, target = places
    warning = OutputWarning(text="rule `length` drops 77 % of the bytes", samples=("a", "b"))
    record = Records(source).commit(a_record(digest=DIGEST, warnings=(warning,), manifest=()))
    assert copied(source, target).outcome == "copied"
    assert Records(target).get(record.key).warnings == (warning,) and marked(target)["warned"] == {record.key}


def test_a_damaged_record_at_the_target_is_named_with_its_fix(tmp_path: Path) -> None:
    source, target = open_store(str(tmp_path / "source")), open_store(str(tmp_path / "target"))
    record = output(source)
    target.write(record_path(record.key), b"{}")
    copier = Copier(source, target)
    with expect_error(UserError):
        copier.copy(DIGEST)
    copier.close()
