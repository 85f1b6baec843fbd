"""Pins down: a copy is the same bytes, verified before its record exists, whatever is damaged, held or killed."""

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from marin_dag.keep.copy import copying
from marin_dag.keep.copy.copy_errors import AtWorkThereError, DamagedSourceError
from marin_dag.keep.copy.copying import Copier
from marin_dag.ledger.damage import findings_of
from marin_dag.ledger.epoch import LeaseLostError, seal
from marin_dag.ledger.lease import Lease, Leases
from marin_dag.ledger.records import FileEntry, Record, Records, attempt_path, new_attempt
from marin_dag.store import retry as transient
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError
from tests.catalogue import expect_error
from tests.gcs_server.control import GcsServerProcess
from tests.marin_dag.ledger.test_records import a_record
from tests.marin_dag.toy_driver import die_before

DIGEST = "ab" * 32
BLOCK = 1 << 16
FILES = {"small.txt": b"small", "deep/large.bin": bytes(range(256)) * 1000, "empty": b""}
SCHEMES = {"gcs": "gs", "s3": "s3"}
PLACES = ["local to local", "local to gcs", "gcs to gcs", "gcs to local", "local to s3", "s3 to local"]


def output(store: Store, files: dict[str, bytes] = FILES, milestone: int | None = None, digest: str = DIGEST) -> Record:
    """A committed one, with its log."""
    attempt = new_attempt()
    folder = attempt_path("tokenize/web", digest, attempt)
    for path, data in files.items():
        store.write(f"{folder}/{path}", data)
    store.write(f"{folder}.log", b"what it said")
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
    """Two empty stores, of the kinds that the parameter names."""
    source, _, target = getattr(request, "param", "local to local").split()
    return open_place(source), open_place(target)


@pytest.fixture(autouse=True)
def small_blocks_and_no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "BLOCK_IN_BYTES", BLOCK)
    monkeypatch.setattr(copying, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(transient, "PAUSES_SECONDS", (0.0, 0.0))


def copied(source: Store, target: Store, key: str = DIGEST, *, check: bool = False) -> copying.Copied:
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
    assert (done.what, done.num_files, done.size_in_bytes) == ("copied", 3, 256_005)
    assert Records(target).get(DIGEST) == record
    assert target.read(f"commits/{DIGEST}.json") == source.read(f"commits/{DIGEST}.json")
    assert {path: target.read(f"{record.output_path}/{path}") for path in FILES} == FILES
    assert findings_of(target, record) == []
    assert target.read(f"{record.output_path}.log") == b"what it said" and target.read("e") == b"{}"
    assert set(Records(target).labels()) == {"tokenize/web"}
    assert copied(source, target).what == "there"


def test_within_one_cloud_no_bytes_pass_through_this_machine(
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
def test_what_is_damaged_at_the_source_is_named_and_never_reaches_the_target(places: tuple[Store, Store]) -> None:
    source, target = places
    record = output(source, {**FILES, "short.bin": b"x" * 3 * BLOCK, "other.bin": b"y" * 3 * BLOCK, "lost": b"z"})
    source.write(f"{record.output_path}/short.bin", b"x" * 2 * BLOCK)
    source.write(f"{record.output_path}/other.bin", b"y" * (3 * BLOCK - 1) + b"Y")
    source.delete(f"{record.output_path}/lost")
    with expect_error(DamagedSourceError) as raised:
        copied(source, target)
    said = {finding.path: finding.what for finding in raised.value.findings}
    assert set(said) == {"short.bin", "other.bin", "lost"}
    assert said["lost"] == "is missing" and said["short.bin"] == "has 131072 bytes, recorded 196608"
    assert "has CRC32C" in said["other.bin"]
    assert Records(target).committed_keys() == frozenset()
    there = {entry.path.removeprefix(f"{record.output_path}/") for entry in target.list("outputs")}
    assert not there & set(said)
    source.write(f"{record.output_path}/short.bin", b"x" * 3 * BLOCK)
    source.write(f"{record.output_path}/other.bin", b"y" * 3 * BLOCK)
    source.write(f"{record.output_path}/lost", b"z")
    assert copied(source, target).num_files == 3  # the whole ones were there already


class Flipping(LocalStore):
    """A disk that keeps other bytes than were sent."""

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        super().write_blocks(path, [block.replace(b"small", b"Small") for block in blocks])


def test_what_arrives_changed_is_read_back_and_gets_no_record(tmp_path: Path) -> None:
    source, target = LocalStore(str(tmp_path / "a")), Flipping(str(tmp_path / "b"))
    output(source)
    with expect_error(StoreError) as raised:
        copied(source, target)
    assert raised.value.is_transient
    assert Records(target).committed_keys() == frozenset()
    assert copied(source, LocalStore(target.prefix)).what == "copied"


class Counting(LocalStore):
    largest = 0

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        def counted() -> Iterator[bytes]:
            for block in blocks:
                self.largest = max(self.largest, len(block))
                yield block

        super().write_blocks(path, counted())


def test_a_large_file_passes_in_blocks(tmp_path: Path) -> None:
    source, target = LocalStore(str(tmp_path / "a")), Counting(str(tmp_path / "b"))
    output(source)
    copied(source, target)
    assert target.largest == BLOCK


def test_two_copiers_at_once_make_one_copy(places: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = places
    output(source, {f"file{number}": b"x" * BLOCK for number in range(20)})
    both_begun, first = threading.Barrier(2), Copier.copy_files

    def slow(self: Copier, *args: Any) -> tuple[int, int]:
        both_begun.wait(10)
        return first(self, *args)

    monkeypatch.setattr(Copier, "copy_files", slow)
    said: list[str] = []
    done: list[str] = []

    def copy() -> None:
        copier = Copier(source, target, say=lambda text: (said.append(text), both_begun.wait(10))[0])
        done.append(copier.copy(DIGEST).what)
        copier.close()

    threads = [threading.Thread(target=copy) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(done) == ["copied", "there"]
    assert len(said) == 1 and "copies it there too; waiting for it" in said[0]
    assert findings_of(target, Records(target).get(DIGEST)) == []


def test_a_record_of_another_attempt_stays_and_whether_it_is_the_same_is_told(places: tuple[Store, Store]) -> None:
    source, target = places
    output(source)
    theirs = output(target)
    assert copied(source, target)[:2] == (DIGEST, "anothers") and copied(source, target).is_same
    assert Records(target).get(DIGEST) == theirs
    output(source, digest="cd" * 32)
    output(target, {"small.txt": b"other"}, digest="cd" * 32)
    assert not copied(source, target, "cd" * 32).is_same


def test_where_somebody_makes_the_step_it_is_left_to_them(places: tuple[Store, Store]) -> None:
    source, target = places
    output(source)
    leases = Leases(target)
    lease = leases.acquire(DIGEST, "tokenize/web", lambda: None)
    assert isinstance(lease, Lease)
    with expect_error(AtWorkThereError):
        copied(source, target)
    assert target.list("outputs") == [] and target.list("commits") == []
    lease.release()
    leases.close()
    assert copied(source, target).what == "copied"


def test_a_damaged_copy_is_mended_when_it_is_asked_for(places: tuple[Store, Store]) -> None:
    source, target = places
    record = output(source)
    copied(source, target)
    target.write(f"{record.output_path}/deep/large.bin", b"rotten")
    target.delete(f"{record.output_path}/empty")
    assert copied(source, target).what == "there"
    assert copied(source, target, check=True)[:2] == (DIGEST, "mended")
    assert findings_of(target, record) == []
    assert copied(source, target, check=True).what == "there"


def test_what_another_attempt_makes_while_the_lease_is_waited_for_is_not_mended_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other, target = (LocalStore(str(tmp_path / name)) for name in "sot")
    output(source, {"w": b"ours", "more": b"x"})
    theirs = output(other, {"w": b"theirs"})
    copy_files, is_begun, is_waited_for = Copier.copy_files, threading.Event(), threading.Event()

    def slow(self: Copier, *args: Any) -> tuple[int, int]:
        if self.source is other:
            is_begun.set()
            assert is_waited_for.wait(10)
        return copy_files(self, *args)

    monkeypatch.setattr(Copier, "copy_files", slow)
    first = threading.Thread(target=copied, args=(other, target))
    first.start()
    assert is_begun.wait(10)
    copier = Copier(source, target, say=lambda text: is_waited_for.set(), check=True)
    assert copier.copy(DIGEST).what == "anothers"
    copier.close()
    first.join()
    assert Records(target).get(DIGEST) == theirs and findings_of(target, theirs) == []
    assert {entry.path for entry in target.list(theirs.output_path)} == {f"{theirs.output_path}/w"}


def in_child(source: Path, target: Path, *, write: int | None = None, block: int | None = None) -> int:
    """Wait status of a copier of two outputs, killed before its write or in its block of that number."""
    child = os.fork()
    if child == 0:
        try:
            if write is not None:
                die_before(write)
            copier = Copier(LocalStore(str(source)), LocalStore(str(target)))
            left, count = [block], copier._count

            def dying(size: int) -> None:
                if left[0] is not None and size >= 0:
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left[0] -= 1
                count(size)

            copier._count = dying  # type: ignore[method-assign]
            for key in (f"{DIGEST}@5", f"{DIGEST}@10"):
                copier.copy(key)
            os._exit(0)
        except BaseException:
            os._exit(99)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("what", ["write", "block"])
def test_killed_at_any_moment_the_next_copy_completes_with_the_same_bytes(tmp_path: Path, what: str) -> None:
    source = LocalStore(str(tmp_path / "source"))
    records = [output(source, {"a": b"a" * 3 * BLOCK, "b": b"b", "empty": b""}, milestone=at) for at in (5, 10)]
    number = 0
    while True:
        target = LocalStore(str(tmp_path / str(number)))
        status = in_child(tmp_path / "source", Path(target.prefix), **{what: number})
        for key in Records(target).committed_keys():
            assert findings_of(target, Records(target).get(key)) == [], f"half a copy, killed before {what} {number}"
        if status != 0:
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
            assert in_child(tmp_path / "source", Path(target.prefix)) == 0, f"killed before {what} {number}"
        for record in records:
            assert Records(target).get(record.key) == record
            assert findings_of(target, record, Records(target).milestones(DIGEST).values()) == []
        assert not [left for record in records for left in Path(target.prefix, record.output_path).rglob(".tmp-*")]
        if status == 0:
            break
        number += 1
    assert number > (30 if what == "write" else 8)


def test_a_lost_lease_stops_the_copy_between_two_blocks_and_the_next_finds_what_there_is(
    places: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    record = output(source, {"a": b"a" * 5 * BLOCK})
    blocks_of, leases = Copier._checked_blocks, list[Lease]()
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
    monkeypatch.setattr(Copier, "_checked_blocks", losing)
    copier = Copier(source, target)
    with pytest.raises(LeaseLostError):
        copier.copy(DIGEST)
    assert copier.bytes_done == 0 and target.list("commits") == []
    seal(target, DIGEST, 1)  # what a successor does first
    assert copied(source, target).what == "copied" and findings_of(target, record) == []
    copier.close()


def test_a_file_and_an_output_that_are_tried_again_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = LocalStore(str(tmp_path / "a")), LocalStore(str(tmp_path / "b"))
    output(source, {"a": b"a" * 2 * BLOCK, "b": b"b" * BLOCK})
    settle, left = LocalStore.settle, [4]  # both files more often than one is tried

    def failing(self: LocalStore, path: str) -> tuple[int, str]:
        if self is target and path.endswith("/b") and left[0]:
            left[0] -= 1
            raise StoreError("the network is down", is_transient=True)
        return settle(self, path)

    monkeypatch.setattr(LocalStore, "settle", failing)
    copier = Copier(source, target)
    with pytest.raises(StoreError):
        copier.copy(DIGEST)
    assert copier.copy(DIGEST).what == "copied" and copier.bytes_done == 3 * BLOCK
    copier.close()


def test_of_a_large_output_few_files_wait_for_the_threads_that_all_share(
    places: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    output(source, {f"{number:04d}": b"" for number in range(100)})
    copier, most, copy_file = Copier(source, target), [0], Copier._copy_file

    def slow(self: Copier, *args: Any) -> bool:
        time.sleep(0.002)
        most[0] = max(most[0], copier._files._work_queue.qsize())
        return copy_file(self, *args)

    monkeypatch.setattr(Copier, "_copy_file", slow)
    assert copier.copy(DIGEST).num_files == 100
    copier.close()
    assert most[0] <= copying.FILES_AT_HAND


def test_the_last_lines_of_a_log_and_those_of_other_hosts_go_along(places: tuple[Store, Store]) -> None:
    source, target = places
    record = output(source)
    source.write(f"{record.output_path}.host1.log", b"of host 1")
    copied(source, target)
    assert target.read(f"{record.output_path}.host1.log") == b"of host 1"
    source.write(f"{record.output_path}.log", b"what it said, and its last line")
    copier = Copier(source, target)
    copier.loose.copy_logs(record)
    copier.close()
    assert target.read(f"{record.output_path}.log") == b"what it said, and its last line"
