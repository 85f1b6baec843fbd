"""Leases: one holder at a time, losses that are noticed, and no lock that a user must remove."""

import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from marin_dag.ledger import lease as lease_module
from marin_dag.ledger.epoch import BEAT, EpochState, epoch_path, slot
from marin_dag.ledger.lease import COPIES, Held, Holder, Lease, Leases, this_process
from marin_dag.ledger.progress import Progress
from marin_dag.store.local import LocalStore
from marin_dag.store.store import Store, StoreError
from tests.catalogue import expect_error

DIGEST = "ab" * 32


def ignore() -> None:
    pass


def elsewhere(name: str) -> Holder:
    return this_process(name).model_copy(update={"host": "another-machine"})


@pytest.fixture
def abroad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let claims name another machine, where no process can be checked."""
    monkeypatch.setattr(lease_module, "this_process", elsewhere)


def test_a_lease_has_one_holder_and_is_free_after_release(store: Store):
    first, second = Leases(store), Leases(store)
    lease = first.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease)
    held = second.acquire(DIGEST, "web", ignore)
    assert isinstance(held, Held)
    assert held.holder == this_process("web").model_copy(
        update={
            "since": held.holder.since,
            "nonce": held.holder.nonce,
            "milestones": (),
        }
    )
    assert set(second.running()) == {DIGEST}
    lease.release()
    assert second.running() == {}
    again = second.acquire(DIGEST, "web", ignore)
    assert isinstance(again, Lease)
    assert again.epoch == lease.epoch + 1
    first.close()
    second.close()


def test_progress_is_that_of_the_last_heartbeat(store: Store):
    leases = Leases(store)
    lease = leases.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease)
    assert leases.running()[DIGEST].progress is None, "no heartbeat yet"
    lease.progress = Progress(done=3, total=9, unit="steps", figures={"loss": 1.5})
    lease.beat()
    assert leases.running()[DIGEST].progress == lease.progress
    lease.progress = Progress(done=4, total=9, unit="steps", figures={}, begin=2)
    assert leases.running()[DIGEST].progress != lease.progress
    lease.progress = Progress(done=5, total=9, unit="steps", figures={"loss": math.inf})
    lease.beat()
    assert leases.running()[DIGEST].progress == lease.progress, "a figure need not be finite"
    store.write(epoch_path(DIGEST, lease.epoch, BEAT), b"12")
    assert leases.running()[DIGEST].progress is None, "a heartbeat of another version"
    leases.close()


def test_a_heartbeat_shows_whether_the_step_waits_for_resources(store: Store):
    leases = Leases(store)
    lease = leases.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease)
    lease.beat()
    assert leases.running()[DIGEST].is_queued
    lease.has_started = True
    lease.beat()
    assert not leases.running()[DIGEST].is_queued
    copier = leases.acquire("c" * 64, "copy of web", ignore, does=COPIES)
    assert isinstance(copier, Lease)
    copier.beat()
    assert not leases.running()["c" * 64].is_queued, "only a step waits for resources"
    leases.close()


def test_one_of_many_who_acquire_at_once_gets_the_lease(store: Store):
    barrier = threading.Barrier(5)

    def race(_: int) -> Lease | Held:
        barrier.wait()
        return Leases(store).acquire(DIGEST, "web", ignore)

    with ThreadPoolExecutor(5) as pool:
        got = list(pool.map(race, range(5)))
    assert [isinstance(item, Lease) for item in got].count(True) == 1


def test_a_killed_holder_on_this_machine_blocks_no_one(tmp_path: Path):
    code = f"""
import os, signal
from marin_dag.ledger.lease import Leases
from marin_dag.store.local import LocalStore
Leases(LocalStore({str(tmp_path)!r})).acquire({DIGEST!r}, "web", print)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    leases = Leases(LocalStore(str(tmp_path)))
    assert leases.running() == {}
    lease = leases.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease)
    assert lease.epoch == 2
    leases.close()


@pytest.mark.parametrize(("answer", "epoch"), [(PermissionError, None), (ProcessLookupError, 2), (None, 2)])
def test_a_hidden_process_of_another_user_does_not_count_as_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: type[OSError] | None, epoch: int | None
):
    """Hide the process, as a /proc mounted with `hidepid` does."""
    leases, process, own = Leases(LocalStore(str(tmp_path))), lease_module._process, os.getpid()
    holder = this_process("web").model_copy(update={"pid": own + 1, "process": f"{process(own)}1"})
    monkeypatch.setattr(lease_module, "this_process", lambda name: holder)
    assert isinstance(leases.acquire(DIGEST, "web", ignore), Lease)

    def kill(pid: int, signal: int) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(lease_module, "_process", lambda pid: process(pid) if pid == own else "")
    monkeypatch.setattr(os, "kill", kill)
    other = Leases(leases.store)
    assert (DIGEST in other.running()) == (epoch is None)
    got = other.acquire(DIGEST, "web", ignore)
    assert (got.epoch if isinstance(got, Lease) else None) == epoch
    leases.close()
    other.close()


@pytest.mark.usefixtures("abroad")
def test_a_holder_whose_heartbeat_stops_while_watched_is_dead(tmp_path: Path):
    store, time = LocalStore(str(tmp_path)), [0.0]
    holder = Leases(store)
    first = holder.acquire(DIGEST, "web", ignore)
    assert isinstance(first, Lease)
    watcher = Leases(store, clock=lambda: time[0])
    assert isinstance(watcher.acquire(DIGEST, "web", ignore), Held)
    time[0] = lease_module.STALE_SECONDS - 1
    first.beat()
    assert isinstance(watcher.acquire(DIGEST, "web", ignore), Held)
    time[0] += lease_module.STALE_SECONDS - 1
    assert isinstance(watcher.acquire(DIGEST, "web", ignore), Held)  # it moved a moment ago
    time[0] += 2
    assert isinstance(watcher.acquire(DIGEST, "web", ignore), Lease)
    holder.close()
    watcher.close()


@pytest.mark.usefixtures("abroad")
@pytest.mark.parametrize("ahead", [0.0, lease_module.CLOCK_SKEW_SECONDS, 100.0, 86_400.0])
def test_a_clock_that_is_ahead_takes_over_no_living_lease(store: Store, monkeypatch: pytest.MonkeyPatch, ahead: float):
    """Plans write nothing, so they cannot read the store's clock, and report silence from 90 s on."""
    leases, now = Leases(store), time.time
    assert isinstance(leases.acquire(DIGEST, "web", ignore), Lease)
    monkeypatch.setattr(lease_module.time, "time", lambda: now() + ahead)
    other = Leases(store)
    is_old = ahead >= lease_module.DEAD_SECONDS
    running, silent = other.running_and_silent()
    assert (DIGEST in running, DIGEST in silent) == (not is_old, is_old)
    assert not store.exists("clock/now")
    assert DIGEST in other.running() and DIGEST in other.at_work()
    for _ in range(2):
        assert isinstance(other.acquire(DIGEST, "web", ignore), Held)
    leases.close()


@pytest.mark.usefixtures("abroad")
def test_a_holder_whose_heartbeat_is_old_by_the_store_s_clock_is_dead(tmp_path: Path):
    """A dead holder is seen at once: a command that asks only once, such as gc, would find it alive for ever."""
    store, seconds = LocalStore(str(tmp_path)), [0.0]
    leases = Leases(store)
    assert isinstance(leases.acquire(DIGEST, "web", ignore), Lease)
    leases.close()
    for entry in store.list("leases"):
        os.utime(tmp_path / entry.path, (entry.updated, time.time() - lease_module.DEAD_SECONDS - 5))
    watcher = Leases(store, clock=lambda: seconds[0])
    lease = watcher.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease) and lease.epoch == 2
    watcher.close()


def test_a_holder_notices_a_lost_lease_at_its_next_heartbeat(tmp_path: Path):
    store, lost, time = LocalStore(str(tmp_path)), [], [0.0]
    zombie_leases, successor_leases = Leases(store), Leases(store, clock=lambda: time[0])
    zombie = zombie_leases.acquire(DIGEST, "web", lambda: lost.append("zombie"))
    assert isinstance(zombie, Lease)
    successor_leases.acquire(DIGEST, "web", ignore)
    time[0] = lease_module.STALE_SECONDS + 1
    successor = successor_leases.acquire(DIGEST, "web", ignore)
    assert isinstance(successor, Lease)
    successor.beat()
    zombie.beat()
    zombie.beat()
    assert lost == ["zombie"]
    assert zombie.is_lost
    assert not successor.is_lost
    zombie.release()  # must not release the successor's lease
    assert isinstance(Leases(store).acquire(DIGEST, "web", ignore), Held)
    zombie_leases.close()
    successor_leases.close()


@pytest.mark.usefixtures("abroad")
def test_a_late_release_deletes_nothing_of_the_successor(tmp_path: Path):
    """An attempt may meet the seal at its commit, before the next heartbeat, and then releases its lease."""
    store, seconds = LocalStore(str(tmp_path)), [0.0]
    zombie_leases, leases = Leases(store), Leases(store, clock=lambda: seconds[0])
    zombie = zombie_leases.acquire(DIGEST, "web", ignore)
    leases.acquire(DIGEST, "web", ignore)
    seconds[0] = lease_module.STALE_SECONDS + 1
    successor = leases.acquire(DIGEST, "web", ignore)
    assert isinstance(zombie, Lease) and isinstance(successor, Lease)
    successor.beat()
    entry = epoch_path(DIGEST, successor.epoch, slot(0))
    store.create(entry, b"a record that is about to be created")
    zombie.release()
    assert store.exists(entry) and store.exists(epoch_path(DIGEST, successor.epoch, BEAT))
    zombie_leases.close()
    leases.close()


@pytest.mark.parametrize("error", [StoreError("no"), ValueError("a stray file among the leases")])
def test_a_heartbeat_that_fails_counts_as_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception):
    store, lost = LocalStore(str(tmp_path)), []
    leases = Leases(store)
    lease = leases.acquire(DIGEST, "web", lambda: lost.append(1))
    assert isinstance(lease, Lease)

    def refuse(path: str, data: bytes) -> None:
        raise error

    monkeypatch.setattr(store, "write", refuse)
    lease.beat()
    assert lost == [1]
    leases.close()


def test_the_heartbeats_of_many_steps_are_concurrent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease_module, "HEARTBEAT_SECONDS", 0.05)
    store, lost = LocalStore(str(tmp_path)), []
    write, inside, all_inside = store.write, [], threading.Event()

    def slowly(path: str, data: bytes) -> None:
        inside.append(path)
        if len(inside) == 8:
            all_inside.set()
        all_inside.wait(0.5)
        inside.remove(path)
        write(path, data)

    monkeypatch.setattr(store, "write", slowly)
    leases = Leases(store)
    for number in range(8):
        assert isinstance(leases.acquire(f"{number:064x}", "web", lambda: lost.append(1)), Lease)
    assert all_inside.wait(60)
    leases.close()
    assert lost == []


def test_a_hanging_heartbeat_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease_module, "HEARTBEAT_SECONDS", 0.01)
    store = LocalStore(str(tmp_path))
    write, goes_on, hanging, beaten = store.write, threading.Event(), threading.Event(), threading.Event()
    stuck, other = "a" * 64, "b" * 64
    beats: list[str] = []

    def write_or_hang(path: str, data: bytes) -> None:
        if stuck in path:
            hanging.set()
            goes_on.wait(60)
        elif hanging.is_set():
            beats.append(path)
            if len(beats) == 5:
                beaten.set()
        write(path, data)

    leases = Leases(store)
    assert isinstance(leases.acquire(stuck, "stuck", ignore), Lease)
    monkeypatch.setattr(store, "write", write_or_hang)
    assert hanging.wait(60)
    assert isinstance(leases.acquire(other, "other", ignore), Lease)
    try:
        assert beaten.wait(50)
    finally:
        goes_on.set()
        leases.close()


def test_a_late_heartbeat_of_a_released_lease_cancels_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The next attempt at the step may be running by then, and would be cancelled."""
    leases, lost = Leases(LocalStore(str(tmp_path))), threading.Event()
    lease = leases.acquire(DIGEST, "web", lost.set)
    assert isinstance(lease, Lease)
    state = leases.state

    def state_after_release(digest: str) -> EpochState | None:
        lease.release()
        return state(digest)

    monkeypatch.setattr(leases, "state", state_after_release)
    lease.beat()
    assert not lost.is_set() and not lease.is_lost
    leases.close()


@pytest.mark.parametrize("stray", [f"{DIGEST}/note.txt", f"{DIGEST}/deep/00000001.claim", "00000001.claim"])
def test_a_stray_file_among_the_leases_is_an_error(tmp_path: Path, stray: str):
    store = LocalStore(str(tmp_path))
    store.write(f"leases/{stray}", b"")
    with expect_error(StoreError):
        Leases(store).running()


def test_a_released_lease_leaves_only_claims_and_seals(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    leases = Leases(store)
    for _ in range(3):
        lease = leases.acquire(DIGEST, "web", ignore)
        assert isinstance(lease, Lease)
        lease.beat()
        lease.release()
    left = [f"leases/{DIGEST}/0000000{n}.{what}" for n in (1, 2, 3) for what in ("0000", "claim")]
    assert [entry.path for entry in store.list("leases")] == left
    assert {entry.size_in_bytes for entry in store.list("leases") if entry.path.endswith("0000")} == {0}
    leases.close()


def test_a_damaged_seal_is_an_error_until_it_is_emptied(tmp_path: Path):
    """It follows an entry that was deleted, as after every finished step."""
    store = LocalStore(str(tmp_path))
    store.write(epoch_path(DIGEST, 1, "claim"), elsewhere("web").model_dump_json().encode())
    store.write(epoch_path(DIGEST, 1, slot(1)), b'{"a')
    leases = Leases(store)
    for path in (tmp_path / "leases" / DIGEST).iterdir():
        os.utime(path, (0, 0))  # the holder has been silent for long
    with expect_error(StoreError):
        leases.acquire(DIGEST, "web", ignore)
    store.write(epoch_path(DIGEST, 1, slot(1)), b"")
    assert isinstance(leases.acquire(DIGEST, "web", ignore), Lease)
    leases.close()


def test_an_epoch_that_is_over_cannot_be_claimed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its claim stays, since its slots are deleted and another holder could publish in them again."""
    store = LocalStore(str(tmp_path))
    leases, late = Leases(store), Leases(store)
    monkeypatch.setattr(late, "state", lambda digest: None)  # what it saw before
    lease = leases.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease)
    lease.release()
    assert isinstance(late.acquire(DIGEST, "web", ignore), Held)
    leases.close()


def test_a_driver_does_not_wait_for_its_own_abandoned_claim(tmp_path: Path):
    """Such as a claim whose reply was lost, or a lease lost by an error."""

    class Deaf(LocalStore):
        is_deaf = True

        def create(self, path: str, data: bytes) -> bool:
            created = super().create(path, data)
            if self.is_deaf:
                raise StoreError("the reply is lost")
            return created

    store = Deaf(str(tmp_path))
    leases = Leases(store)
    with expect_error(StoreError):
        leases.acquire(DIGEST, "web", ignore)
    store.is_deaf = False
    assert isinstance(Leases(store).acquire(DIGEST, "web", ignore), Held)
    lease = leases.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease)
    assert lease.epoch == 2
    leases.close()


def test_transient_errors_cost_no_lease_before_others_may_take_it_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, lost, time = LocalStore(str(tmp_path)), [], [0.0]
    leases = Leases(store, clock=lambda: time[0])
    lease = leases.acquire(DIGEST, "web", lambda: lost.append(1))
    assert isinstance(lease, Lease)

    def refuse(path: str, data: bytes) -> None:
        raise StoreError("503", is_transient=True)

    time[0] = lease_module.LOST_SECONDS - 1
    with monkeypatch.context() as stumbling:
        stumbling.setattr(store, "write", refuse)
        lease.beat()
    assert lost == []
    lease.beat()
    time[0] += lease_module.LOST_SECONDS - 1
    monkeypatch.setattr(store, "write", refuse)
    lease.beat()
    assert lost == []
    time[0] += 1
    lease.beat()
    assert lost == [1]
    assert lease_module.LOST_SECONDS < lease_module.STALE_SECONDS
    leases.close()


def test_a_slow_heartbeat_counts_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its time at the store may be that of its start, and others count from there."""
    store, lost, time = LocalStore(str(tmp_path)), [], [0.0]
    leases = Leases(store, clock=lambda: time[0])
    lease = leases.acquire(DIGEST, "web", lambda: lost.append(1))
    assert isinstance(lease, Lease)
    write = store.write

    def slowly(path: str, data: bytes) -> None:
        write(path, data)
        time[0] += lease_module.LOST_SECONDS - 1

    def refuse(path: str, data: bytes) -> None:
        raise StoreError("503", is_transient=True)

    monkeypatch.setattr(store, "write", slowly)
    lease.beat()
    monkeypatch.setattr(store, "write", refuse)
    time[0] += 1
    lease.beat()
    assert lost == [1]
    leases.close()


@pytest.mark.parametrize("claim", [b"", b"garbage", b"{"])
def test_an_unreadable_claim_counts_until_its_heartbeats_stop(store: Store, claim: bytes):
    seconds = [0.0]
    store.write(f"leases/{DIGEST}/00000001.claim", claim)
    watcher = Leases(store, clock=lambda: seconds[0])
    assert watcher.running()[DIGEST].holder.host == ""
    assert isinstance(watcher.acquire(DIGEST, "web", ignore), Held)
    seconds[0] = lease_module.STALE_SECONDS + 1
    lease = watcher.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease) and lease.epoch == 2
    watcher.close()


def test_an_unreadable_entry_is_an_error_with_its_fix(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    store.create(f"leases/{DIGEST}/00000001.0000", b'{"key": 7}')
    store.create(f"leases/{DIGEST}/00000001.0001", b"")
    with expect_error(StoreError):
        Leases(store).acquire(DIGEST, "web", ignore)


class Reads(LocalStore):
    """A store that records which paths are read."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.paths: list[str] = []

    def read(self, path: str) -> bytes:
        self.paths.append(path)
        return super().read(path)


def test_heartbeats_of_silent_holders_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Attempts that were killed elsewhere leave leases that every later plan lists."""
    store = Reads(str(tmp_path))
    store.write(f"leases/{DIGEST}/00000001.claim", b"{}")
    store.write(f"leases/{DIGEST}/00000001.beat", b"{}")
    now = time.time
    monkeypatch.setattr(lease_module.time, "time", lambda: now() + 1_000)
    running, silent = Leases(store).running_and_silent()
    assert (running, silent[DIGEST].epoch) == ({}, 1)
    assert store.paths == [f"leases/{DIGEST}/00000001.claim"]
