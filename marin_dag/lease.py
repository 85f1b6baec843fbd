"""Lease: who is working on a step. It saves money; that results are right rests on the create-only records alone.

A lease is won by creating the next epoch's claim, so it needs no compare-and-swap. Its holder renews a heartbeat; a
heartbeat that fails counts as a possible loss, and a lost lease cancels the step. Epochs only grow, so that what a
woken zombie wants to publish can be told from its successor's.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from marin_dag.provenance import now
from marin_dag.store import Entry, Store

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 3 * HEARTBEAT_SECONDS
# A heartbeat this old is dead whatever the clocks of two machines disagree by; younger ones are watched first.
CLOCK_SKEW_SECONDS = 60.0
LEASES = "leases"


class Holder(BaseModel, frozen=True, extra="forbid"):
    """Who holds a lease; enough to see, on the same machine, that the process is gone."""

    name: str
    host: str
    pid: int
    process: str
    """Boot, PID namespace and start time: two processes with one pid differ in it."""
    since: str


class Held(NamedTuple):
    """Somebody else's lease, alive as far as can be told."""

    holder: Holder
    epoch: int
    updated: float


class _State(NamedTuple):
    epoch: int
    is_released: bool
    updated: float


class Lease:
    """A lease that this process holds, until `is_lost`."""

    def __init__(self, leases: "Leases", digest: str, epoch: int, on_lost: Callable[[], None]) -> None:
        self.digest = digest
        self.epoch = epoch
        self.is_lost = False
        self._leases = leases
        self._on_lost = on_lost
        self._num_beats = 0

    def beat(self) -> None:
        """Renews the lease, or finds it lost. Any error counts as a possible loss: two holders cost more than none."""
        if self.is_lost:
            return
        try:
            self._num_beats += 1
            self._leases.store.write(_path(self.digest, self.epoch, "beat"), str(self._num_beats).encode())
            taken = self._leases.current_epoch(self.digest) > self.epoch
        except Exception:  # whatever it is, the lease may be lost, and the holder is told
            taken = True
        if taken:
            self.is_lost = True
            self._on_lost()

    def release(self) -> None:
        """Lets the next one in at once; keeps the number of the epoch."""
        if not self.is_lost:
            self._leases.release(self.digest, self.epoch)


class Leases:
    """The leases of one prefix, and one thread that renews those held here."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self._clock = clock
        self._held: list[Lease] = []
        self._seen: dict[tuple[str, int], tuple[float, float]] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, digest: str, name: str, on_lost: Callable[[], None]) -> Lease | Held:
        """The lease of `digest`, or who has it; ask again later, since a dead holder shows only with time."""
        state = self._state(digest)
        if state is not None and not state.is_released:
            held = self._alive(digest, state)
            if held is not None:
                return held
        epoch = 1 if state is None else state.epoch + 1
        claim = this_process(name).model_dump_json().encode()
        if not self.store.create(_path(digest, epoch, "claim"), claim):
            return Held(self._holder(digest, epoch), epoch, time.time())
        lease = Lease(self, digest, epoch, on_lost)
        self._held.append(lease)
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat_all, name="heartbeats", daemon=True)
            self._thread.start()
        return lease

    def running(self) -> dict[str, Held]:
        """Digests whose lease looks alive, by one listing and one read each; for a plan."""
        found = {}
        for digest, state in _states(self.store.list(LEASES)).items():
            if state.is_released or time.time() - state.updated > STALE_SECONDS:
                continue
            holder = self._holder(digest, state.epoch)
            if not _is_gone(holder):
                found[digest] = Held(holder, state.epoch, state.updated)
        return found

    def current_epoch(self, digest: str) -> int:
        """The newest epoch claimed; 0 for none."""
        state = self._state(digest)
        return 0 if state is None else state.epoch

    def release(self, digest: str, epoch: int) -> None:
        """Marks the epoch as over, and tidies what only its renewal needed."""
        self._held = [lease for lease in self._held if (lease.digest, lease.epoch) != (digest, epoch)]
        self.store.create(_path(digest, epoch, "released"), b"")
        keep = _path(digest, epoch, "released")
        for entry in self.store.list(LEASES, f"{digest}/"):
            if entry.path != keep and _parts(entry.path)[1] <= epoch:
                self.store.delete(entry.path)

    def close(self) -> None:
        """Stops the heartbeats."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _beat_all(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            for lease in list(self._held):
                lease.beat()

    def _state(self, digest: str) -> _State | None:
        return _states(self.store.list(LEASES, f"{digest}/")).get(digest)

    def _holder(self, digest: str, epoch: int) -> Holder:
        try:
            return Holder.model_validate_json(self.store.read(_path(digest, epoch, "claim")))
        except FileNotFoundError:  # released between the listing and this read
            return Holder(name="", host="", pid=0, process="", since=now())

    def _alive(self, digest: str, state: _State) -> Held | None:
        if time.time() - state.updated > STALE_SECONDS + CLOCK_SKEW_SECONDS:
            return None
        holder = self._holder(digest, state.epoch)
        if _is_gone(holder):
            return None
        # The writer's clock is not ours: what counts is whether the heartbeat moves while we watch.
        updated, since = self._seen.get((digest, state.epoch), (None, 0.0))
        if updated != state.updated:
            self._seen[digest, state.epoch] = (state.updated, self._clock())
        elif self._clock() - since > STALE_SECONDS:
            return None
        return Held(holder, state.epoch, state.updated)


def this_process(name: str) -> Holder:
    """The holder that this process would be."""
    return Holder(name=name, host=socket.gethostname(), pid=os.getpid(), process=_process(os.getpid()), since=now())


def _process(pid: int) -> str:
    """What tells one life of a pid from another; "" where the system does not say, or no such process runs."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
        # The command, in parentheses, may hold anything; the fields after it are numbers.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, start = fields[0], fields[19]
    return "" if state == "Z" else f"{boot} {namespace} {start}"


def _is_gone(holder: Holder) -> bool:
    """Whether the holder surely runs no more: it ran on this machine, where its process is not to be found."""
    if holder.host != socket.gethostname() or not holder.process:
        return False
    here = _process(os.getpid())
    same_machine = here.split()[:2] == holder.process.split()[:2]
    return same_machine and _process(holder.pid) != holder.process


def _path(digest: str, epoch: int, what: str) -> str:
    return f"{LEASES}/{digest}/{epoch:08d}.{what}"


def _parts(path: str) -> tuple[str, int, str]:
    _, digest, name = path.split("/")
    epoch, _, what = name.partition(".")
    return digest, int(epoch), what


def _states(entries: list[Entry]) -> dict[str, _State]:
    states: dict[str, _State] = {}
    for entry in entries:
        digest, epoch, what = _parts(entry.path)
        state = states.get(digest)
        if state is None or epoch > state.epoch:
            state = _State(epoch, False, 0.0)
        if epoch == state.epoch:
            state = _State(epoch, state.is_released or what == "released", max(state.updated, entry.updated))
        states[digest] = state
    return states
