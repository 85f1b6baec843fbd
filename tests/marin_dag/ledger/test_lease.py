"""A lease has one holder, is lost loudly, and never needs a person to remove it."""

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
    """Claims look as if another machine had made them, which cannot be asked whether its process still runs."""
    monkeypatch.setattr(lease_module, "this_process", elsewhere)


def test_a_lease_has_one_holder_and_is_free_again_once_released(store: Store):
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


def test_those_who_look_on_see_how_far_the_step_was_at_the_last_heartbeat(store: Store):
    leases = Leases(store)
    lease = leases.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease)
    assert leases.running()[DIGEST].progress is None, "no heartbeat yet"
    lease.progress = Progress(done=3, total=9, unit="steps", figures={"loss": 1.5})
    lease.beat()
    assert leases.running()[DIGEST].progress == lease.progress
    lease.progress = Progress(done=4, total=9, unit="steps", figures={}, begin=2)
    assert leases.running()[DIGEST].progress != lease.progress, "told at the next one"
    lease.progress = Progress(done=5, total=9, unit="steps", figures={"loss": math.inf})
    lease.beat()
    assert leases.running()[DIGEST].progress == lease.progress, "a figure need not be finite"
    store.write(epoch_path(DIGEST, lease.epoch, BEAT), b"12")
    assert leases.running()[DIGEST].progress is None, "the heartbeat of an earlier version has a number alone"
    leases.close()


def test_those_who_look_on_see_whether_the_step_still_waits_for_its_machines(store: Store):
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
    assert not leases.running()["c" * 64].is_queued, "only a step waits for machines"
    leases.close()


def test_of_many_who_acquire_at_once_one_holds_it(store: Store):
    barrier = threading.Barrier(5)

    def race(_: int) -> Lease | Held:
        barrier.wait()
        return Leases(store).acquire(DIGEST, "web", ignore)

    with ThreadPoolExecutor(5) as pool:
        got = list(pool.map(race, range(5)))
    assert [isinstance(item, Lease) for item in got].count(True) == 1


def test_a_holder_on_this_machine_that_was_killed_blocks_nobody(tmp_path: Path):
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
def test_a_process_of_another_user_that_the_system_does_not_show_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: type[OSError] | None, epoch: int | None
):
    """Where /proc is mounted with `hidepid`; of a process that one may signal it would show whose number it is."""
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
def test_a_heartbeat_that_stands_still_while_watched_is_a_dead_holder(tmp_path: Path):
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
    assert isinstance(watcher.acquire(DIGEST, "web", ignore), Held)  # it moved a short while ago
    time[0] += 2
    assert isinstance(watcher.acquire(DIGEST, "web", ignore), Lease)
    holder.close()
    watcher.close()


@pytest.mark.usefixtures("abroad")
@pytest.mark.parametrize("ahead", [0.0, lease_module.CLOCK_SKEW_SECONDS, 100.0, 86_400.0])
def test_a_clock_that_is_ahead_takes_no_living_lease_over(store: Store, monkeypatch: pytest.MonkeyPatch, ahead: float):
    """A plan, which writes nothing and so cannot ask the store for the time, tells of nobody's silence from 90 s on."""
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
def test_a_heartbeat_that_is_old_by_the_clock_of_the_store_is_that_of_a_dead_holder(tmp_path: Path):
    """At once: a command that asks a single time, such as gc, would find it alive for ever."""
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


def test_a_holder_whose_lease_was_taken_hears_of_it_at_its_next_heartbeat(tmp_path: Path):
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
    zombie.release()  # must not free what is no longer its own
    assert isinstance(Leases(store).acquire(DIGEST, "web", ignore), Held)
    zombie_leases.close()
    successor_leases.close()


@pytest.mark.usefixtures("abroad")
def test_who_was_overtaken_and_has_not_heard_of_it_takes_nothing_from_its_successor(tmp_path: Path):
    """An attempt may meet the seal at its commit, before the next heartbeat does, and its lease is given back."""
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


def test_the_leases_of_many_steps_beat_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One after the other, those on a far store would come later than others wait for them."""
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


def test_a_heartbeat_that_hangs_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_a_heartbeat_that_comes_late_to_a_lease_that_was_given_back_cancels_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By then the next attempt at the step may be at work, under a lease of its own: it would be cancelled."""
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
def test_what_is_no_object_of_a_lease_is_named(tmp_path: Path, stray: str):
    store = LocalStore(str(tmp_path))
    store.write(f"leases/{stray}", b"")
    with expect_error(StoreError):
        Leases(store).running()


def test_what_a_released_lease_leaves_behind_are_the_claims_and_seals_of_its_epochs(tmp_path: Path):
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


def test_a_damaged_seal_is_named_and_nobody_waits_for_it_for_ever(tmp_path: Path):
    """Behind an entry that was tidied, as behind every step that was made."""
    store = LocalStore(str(tmp_path))
    store.write(epoch_path(DIGEST, 1, "claim"), elsewhere("web").model_dump_json().encode())
    store.write(epoch_path(DIGEST, 1, slot(1)), b'{"a')
    leases = Leases(store)
    for path in (tmp_path / "leases" / DIGEST).iterdir():
        os.utime(path, (0, 0))  # whoever held it has long been silent
    with expect_error(StoreError):
        leases.acquire(DIGEST, "web", ignore)
    store.write(epoch_path(DIGEST, 1, slot(1)), b"")
    assert isinstance(leases.acquire(DIGEST, "web", ignore), Lease)
    leases.close()


def test_who_looked_before_an_epoch_began_does_not_begin_it_once_more_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its claim is there, though nobody holds it: in its slots, which are tidied, another could publish again."""
    store = LocalStore(str(tmp_path))
    leases, late = Leases(store), Leases(store)
    monkeypatch.setattr(late, "state", lambda digest: None)  # what it saw before
    lease = leases.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease)
    lease.release()
    assert isinstance(late.acquire(DIGEST, "web", ignore), Held)
    leases.close()


def test_a_prefix_of_before_the_seals_is_read_as_it_was_meant(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    store.create(f"leases/{DIGEST}/00000002.released", b"")
    leases = Leases(store)
    assert leases.running() == {}
    lease = leases.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease)
    assert lease.epoch == 3
    leases.close()


def test_what_this_driver_holds_no_more_it_need_not_wait_for(tmp_path: Path):
    """A claim whose reply was lost for good, or a lease that was lost to an error: nobody acts on it."""

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


def test_a_store_that_stumbles_costs_no_lease_as_long_as_nobody_else_may_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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


def test_a_heartbeat_that_took_long_counts_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its time at the store may be that of its beginning, and others count from there."""
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
def test_a_claim_that_cannot_be_read_is_that_of_nobody_and_ends_with_its_heartbeats(store: Store, claim: bytes):
    """Of whom it is it does not say; that its epoch has begun, it does."""
    seconds = [0.0]
    store.write(f"leases/{DIGEST}/00000001.claim", claim)
    watcher = Leases(store, clock=lambda: seconds[0])
    assert watcher.running()[DIGEST].holder.host == ""
    assert isinstance(watcher.acquire(DIGEST, "web", ignore), Held)
    seconds[0] = lease_module.STALE_SECONDS + 1
    lease = watcher.acquire(DIGEST, "web", ignore)
    assert isinstance(lease, Lease) and lease.epoch == 2
    watcher.close()


def test_what_was_entered_and_cannot_be_read_is_named_with_what_to_do(tmp_path: Path):
    """It lies in the way of every later attempt."""
    store = LocalStore(str(tmp_path))
    store.create(f"leases/{DIGEST}/00000001.0000", b'{"key": 7}')
    store.create(f"leases/{DIGEST}/00000001.0001", b"")
    with expect_error(StoreError):
        Leases(store).acquire(DIGEST, "web", ignore)


class Reads(LocalStore):
    """Notes what is read."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.paths: list[str] = []

    def read(self, path: str) -> bytes:
        self.paths.append(path)
        return super().read(path)


def test_of_who_is_silent_no_heartbeat_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Attempts that were killed elsewhere leave their leases, which every later plan meets."""
    store = Reads(str(tmp_path))
    store.write(f"leases/{DIGEST}/00000001.claim", b"{}")
    store.write(f"leases/{DIGEST}/00000001.beat", b"{}")
    now = time.time
    monkeypatch.setattr(lease_module.time, "time", lambda: now() + 1_000)
    running, silent = Leases(store).running_and_silent()
    assert (running, silent[DIGEST].epoch) == ({}, 1)
    assert store.paths == [f"leases/{DIGEST}/00000001.claim"]
