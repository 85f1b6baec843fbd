"""Lease: which process works on a step. Leases save money; correct results rest on records and epochs alone.

A process wins a lease by creating the claim of the next epoch, so no compare-and-swap is needed. The holder renews a
heartbeat. A heartbeat that could not be renewed for a while counts as a lost lease, and a lost lease cancels the step.
The previous epoch is sealed before the next one begins (see `epoch`), so the store itself refuses what a zombie, a
process that wakes up after its lease was lost, tries to publish.
"""

import functools
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from marin_dag.ledger.epoch import BEAT, CLAIM, LEASES, EpochState, carry_out, epoch_path, is_seal, parts, seal, states
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import now
from marin_dag.ledger.records import decide
from marin_dag.store.retry import is_transient
from marin_dag.store.store import Store, StoreError

HEARTBEAT_SECONDS = 10.0
# Other processes wait longer than the holder, so it has stopped before they start.
LOST_SECONDS = 2 * HEARTBEAT_SECONDS
STALE_SECONDS = 3 * HEARTBEAT_SECONDS
CLOCK_SKEW_SECONDS = 60.0
DEAD_SECONDS = STALE_SECONDS + CLOCK_SKEW_SECONDS
"""An older heartbeat is dead even if the clocks of two machines disagree; a younger one is watched first."""
CLOCK = "clock"
"""Folder of an object that is written to learn the store's time."""

COPIES, COLLECTS, ADOPTS = "copies", "collects", "adopts"
"""Activities of a holder other than running the step."""


class Holder(BaseModel, frozen=True, extra="ignore"):
    """The process that holds a lease, described well enough to see on the same machine that it is gone."""

    name: str
    host: str
    pid: int
    process: str
    """Boot, PID namespace and start time, which distinguish two processes with one pid."""
    since: str
    nonce: str = ""
    """Distinguishes the claims of two drivers in one process, and a lost reply from the claim of another."""
    needs: tuple[str, ...] = ()
    """Keys of the records that the step reads; `gc` keeps them while it runs."""
    milestones: tuple[int, ...] | None = None
    """Milestones that the attempt is to publish, the end of its own phase included; None in older claims."""
    does: str = ""
    """`COPIES`, `COLLECTS` or `ADOPTS`; "" for an attempt."""

    @property
    def description(self) -> str:
        """The process, its activity and the time since when, for the user."""
        if not self.host:
            return "a process whose claim cannot be read holds it"
        return f"{self.host} pid {self.pid} {self.does or 'runs'} it since {self.since}"


class Beat(BaseModel, frozen=True, extra="forbid", ser_json_inf_nan="constants"):
    """The content of a heartbeat; no two heartbeats of one lease are equal."""

    number: int
    progress: Progress | None
    is_queued: bool = False
    """Whether the step waits for its resources."""


class Held(NamedTuple):
    """A lease that another process holds and seems to renew."""

    holder: Holder
    epoch: int
    updated: float
    progress: Progress | None = None
    """Progress at the last heartbeat, if it was read and had one."""
    is_queued: bool = False
    """Whether the step waited for its resources at the last heartbeat."""


class Lease:
    """A lease that this process holds, until `is_lost`."""

    def __init__(self, leases: "Leases", digest: str, epoch: int, on_lost: Callable[[], None]) -> None:
        self.digest = digest
        self.epoch = epoch
        self.is_lost = False
        self.has_started = False
        """Whether the step has its resources; the next heartbeat publishes this and `progress`."""
        self.progress: Progress | None = None
        self._leases = leases
        self._on_lost = on_lost
        self._num_beats = 0
        self._is_given_back = False
        self._renewed = leases.clock()

    def beat(self) -> None:
        """Renew the lease, or mark it as lost.

        A transient error is tolerated as long as no other process may take over. Any other error counts as a loss at
        once, since two holders cost more than none.
        """
        if self.is_lost:
            return
        started = self._leases.clock()
        try:
            self._num_beats += 1
            beat = Beat(number=self._num_beats, progress=self.progress, is_queued=not self.has_started)
            self._leases.store.write(epoch_path(self.digest, self.epoch, BEAT), beat.model_dump_json().encode())
            state = self._leases.state(self.digest)
            taken = state is None or state.number > self.epoch or state.is_sealed
        except Exception as error:  # after any error the lease may be lost, and the holder must know
            if is_transient(error) and started - self._renewed < LOST_SECONDS:
                return
            taken = True
        if self._is_given_back:  # meanwhile; the seal is our own
            return
        if taken:
            self.is_lost = True
            self._on_lost()
        else:
            self._renewed = started

    def release(self, *, has_committed: bool = False) -> None:
        """End the epoch, so that the next one can begin at once; do nothing if the lease is lost.

        `has_committed`: all records that the attempt entered are known to exist.
        """
        self._is_given_back = True
        if not self.is_lost:
            self._leases.release(self.digest, self.epoch, has_committed=has_committed)


class Leases:
    """The leases of one prefix, with a thread that renews those held by this object."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.clock = clock
        self._nonce = uuid.uuid4().hex
        self._held: list[Lease] = []
        self._seen: dict[tuple[str, int], tuple[float, float]] = {}
        self._store_is_ahead: float | None = None
        """Upper bound of the seconds that the store's clock is ahead of `clock`."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(
        self,
        digest: str,
        name: str,
        on_lost: Callable[[], None],
        *,
        needs: tuple[str, ...] = (),
        milestones: tuple[int, ...] = (),
        does: str = "",
    ) -> Lease | Held:
        """Return the lease of `digest`, or its present holder; a dead holder shows only when asked again later.

        `on_lost` is called in the thread of the heartbeats. The other arguments are fields of `Holder`.
        """
        state = self.state(digest)
        if state is not None and not state.is_sealed:
            held = self._alive(digest, state)
            if held is not None:
                return held
            seal(self.store, digest, state.number)
            carry_out(self.store, digest, state.number)
        elif state is not None and state.has_entries:
            carry_out(self.store, digest, state.number)  # the sealer was killed before it did
        epoch = 1 if state is None else state.number + 1
        details = {"nonce": self._nonce, "needs": needs, "milestones": milestones, "does": does}
        holder = this_process(name).model_copy(update=details)
        claim = holder.model_dump_json().encode()
        there = decide(self.store, epoch_path(digest, epoch, CLAIM), claim)
        if there != claim:
            return Held(_holder_of(there) or _unknown_holder(), epoch, time.time())
        lease = Lease(self, digest, epoch, on_lost)
        lease.has_started = bool(does)  # only a step waits for resources
        self._held.append(lease)
        self._start_heartbeats()
        return lease

    def _start_heartbeats(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat_all, name="heartbeats", daemon=True)
            self._thread.start()

    def running(self) -> dict[str, Held]:
        """Return the leases that look alive by our clock or by the store's, so that their holders may still write."""
        return self._with_beats(self.unsealed(DEAD_SECONDS, writes=True))

    def running_and_silent(self) -> tuple[dict[str, Held], dict[str, Held]]:
        """Return the leases that look alive by our clock, and those whose heartbeat is too old; write nothing."""
        unsealed, now = self.unsealed(math.inf), time.time()
        silent = {digest: held for digest, held in unsealed.items() if now - held.updated >= DEAD_SECONDS}
        return self._with_beats({d: held for d, held in unsealed.items() if d not in silent}), silent

    def at_work(self) -> dict[str, Held]:
        """Return the leases of `running` whose holders run the step, not copies or `gc`."""
        return {digest: each for digest, each in self.running().items() if not each.holder.does}

    def _with_beats(self, unsealed: dict[str, Held]) -> dict[str, Held]:
        found = {}
        for digest, held in unsealed.items():
            beat = self._last_beat(digest, held.epoch)
            found[digest] = held._replace(progress=beat.progress, is_queued=beat.is_queued)
        return found

    def unsealed(
        self, within_seconds: float, *, writes: bool = False, must_know_needs: bool = False
    ) -> dict[str, Held]:
        """Return each lease that was not sealed and was renewed recently, without its progress.

        Args:
            within_seconds: age of the last heartbeat from which on a holder counts as dead.
            writes: the caller writes by the answer, so the store's clock counts too; ours may be wrong.
            must_know_needs: raise StoreError if a claim cannot be read.
        """
        open_states = {d: state for d, state in states(self.store.list(LEASES)).items() if not state.is_sealed}
        now = time.time()
        if writes and any(now - state.updated >= within_seconds for state in open_states.values()):
            now = min(now, self._store_time())
        found = {}
        for digest, state in open_states.items():
            if now - state.updated < within_seconds:
                holder = self._holder(digest, state.number, must_be_known=must_know_needs)
                found[digest] = Held(holder, state.number, state.updated)
        return {digest: held for digest, held in found.items() if not _is_gone(held.holder)}

    def state(self, digest: str) -> EpochState | None:
        return states(self.store.list(LEASES, f"{digest}/")).get(digest)

    def release(self, digest: str, epoch: int, *, has_committed: bool) -> None:
        """Seal the epoch and delete what only its holder needed.

        Seals stay, so that a zombie of any age meets its own. Claims stay, since a process that listed before the epoch
        began would otherwise claim the same epoch again and publish in it.
        """
        self._held = [lease for lease in self._held if (lease.digest, lease.epoch) != (digest, epoch)]
        seal(self.store, digest, epoch)
        if not has_committed:
            carry_out(self.store, digest, epoch)
        for entry in self.store.list(LEASES, f"{digest}/"):
            _, number, what = parts(entry.path)
            if number <= epoch and what != CLAIM and not is_seal(entry):
                self.store.delete(entry.path)

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _beat_all(self) -> None:
        # One thread a heartbeat: in turn, those of many steps on a slow store would come too late, and one request may
        # hang for longer than a lease lives.
        pending: dict[int, threading.Thread] = {}
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            pending = {lease: beat for lease, beat in pending.items() if beat.is_alive()}
            for lease in list(self._held):
                if id(lease) not in pending:
                    pending[id(lease)] = beat = threading.Thread(target=lease.beat, daemon=True)
                    beat.start()
        for beat in pending.values():
            beat.join()

    def _holder(self, digest: str, epoch: int, *, must_be_known: bool = False) -> Holder:
        path = epoch_path(digest, epoch, CLAIM)
        try:
            holder = _holder_of(self.store.read(path))
        except FileNotFoundError:  # released between the listing and this read
            return _unknown_holder()
        if holder is None and must_be_known:
            raise StoreError(
                f"{self.store.url(path)}: not a claim (edited, damaged, or written by another version), so it is not "
                "known which outputs its holder reads. When no run is active, delete the file."
            )
        return holder or _unknown_holder()

    def _last_beat(self, digest: str, epoch: int) -> Beat:
        try:
            return Beat.model_validate_json(self.store.read(epoch_path(digest, epoch, BEAT)))
        except (FileNotFoundError, ValidationError):  # none yet, or one of another version
            return Beat(number=0, progress=None)

    def _alive(self, digest: str, state: EpochState) -> Held | None:
        # Our own clock may be wrong, so it alone declares no holder dead; the store's clock wrote both times.
        if time.time() - state.updated > DEAD_SECONDS and self._store_time() - state.updated > DEAD_SECONDS:
            return None
        holder = self._holder(digest, state.number)
        if _is_gone(holder) or self._is_given_up(holder, digest, state.number):
            return None
        # Clocks differ, so what counts is whether the heartbeat moves while we watch.
        updated, since = self._seen.get((digest, state.number), (None, 0.0))
        if updated != state.updated:
            self._seen[digest, state.number] = (state.updated, self.clock())
        elif self.clock() - since > STALE_SECONDS:
            return None
        return Held(holder, state.number, state.updated)

    def _store_time(self) -> float:
        """Return the time of the store's clock, which is read once."""
        if self._store_is_ahead is None:
            self.store.write(f"{CLOCK}/now", b"")
            (written,) = (entry.updated for entry in self.store.list(CLOCK) if entry.path == f"{CLOCK}/now")
            self._store_is_ahead = written - self.clock()
        return self.clock() + self._store_is_ahead

    def _is_given_up(self, holder: Holder, digest: str, epoch: int) -> bool:
        """Return whether the claim is our own and no lease here acts on it any more."""
        mine = any((lease.digest, lease.epoch) == (digest, epoch) and not lease.is_lost for lease in self._held)
        return holder.nonce == self._nonce and not mine


def this_process(name: str) -> Holder:
    pid = os.getpid()
    return Holder(name=name, host=socket.gethostname(), pid=pid, process=_own_process(pid), since=now())


def _holder_of(claim: bytes) -> Holder | None:
    """Return the holder of a claim; None if it cannot be read, though its epoch counts by its heartbeats."""
    try:
        return Holder.model_validate_json(claim)
    except ValidationError:
        return None


def _unknown_holder() -> Holder:
    return Holder(name="", host="", pid=0, process="", since=now())


def _process(pid: int) -> str:
    """Return text that distinguishes two processes with one pid; "" if unknown, or if no such process runs."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
        # The command, in parentheses, may hold anything; the fields after it are numbers.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, start = fields[0], fields[19]
    return "" if state == "Z" else f"{boot} {namespace} {start}"


_own_process = functools.cache(_process)


def _is_gone(holder: Holder) -> bool:
    """Return whether the holder ran on this machine and its process has ended."""
    if holder.host != socket.gethostname() or not holder.process:
        return False
    here = _process(os.getpid())
    same_machine = here.split()[:2] == holder.process.split()[:2]
    return same_machine and _process(holder.pid) != holder.process and not _is_of_another_user(holder.pid)


def _is_of_another_user(pid: int) -> bool:
    """Return whether the process runs for another user, whose processes /proc may hide (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not _process(pid)
    except OSError:
        pass
    return False
