"""Lease: who is working on a step. It saves money; that results are right rests on records and epochs alone.

A lease is won by creating the next epoch's claim, so it needs no compare-and-swap. Its holder renews a heartbeat; one
that could not be renewed for a while counts as lost, and a lost lease cancels the step. Before the next epoch begins
the last one is sealed (see `epoch`), so that the store itself refuses what a woken zombie wants to publish.
"""

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
# Others wait longer than the holder hopes: it has stopped before they begin.
LOST_SECONDS = 2 * HEARTBEAT_SECONDS
STALE_SECONDS = 3 * HEARTBEAT_SECONDS
CLOCK_SKEW_SECONDS = 60.0
DEAD_SECONDS = STALE_SECONDS + CLOCK_SKEW_SECONDS
"""A heartbeat this old is dead whatever the clocks of two machines disagree by; younger ones are watched first."""
CLOCK = "clock"
"""Folder of an object that is written to learn the time of the store."""

COPIES, COLLECTS, ADOPTS, VERIFIES, MIGRATES = "copies", "collects", "adopts", "verifies", "migrates"
"""What a holder may do with a step other than to run it."""


class Holder(BaseModel, frozen=True, extra="ignore"):
    """Who holds a lease; enough to see, on the same machine, that the process is gone. Claims of other versions may say
    more."""

    name: str
    host: str
    pid: int
    process: str
    """Boot, PID namespace and start time: two processes with one pid differ in it."""
    since: str
    nonce: str = ""
    """Tells apart what two drivers of one process claim, and a lost reply from another's claim."""
    needs: tuple[str, ...] = ()
    """Keys of the records that the step reads: they stay as long as it runs."""
    milestones: tuple[int, ...] | None = None
    """Steps of the trajectory that the attempt is to publish, its own stop among them; None in claims of versions that
    did not write it."""
    does: str = ""
    """`COPIES` and the like; "" of an attempt, and in claims of versions that did not write it."""

    @property
    def said(self) -> str:
        """For a person: where it is, what it does with the step, and since when."""
        if not self.host:
            return "somebody whose claim cannot be read holds it"
        return f"{self.host} pid {self.pid} {self.does or 'runs'} it since {self.since}"


class Beat(BaseModel, frozen=True, extra="forbid", ser_json_inf_nan="constants"):
    """What a heartbeat says. No two of one lease are equal."""

    number: int
    progress: Progress | None
    is_queued: bool = False
    """Handed over, and waiting for its resources."""


class Held(NamedTuple):
    """Somebody else's lease, alive as far as can be told."""

    holder: Holder
    epoch: int
    updated: float
    progress: Progress | None = None
    """As of its last heartbeat; None where the step has told none by then, or nobody asked."""
    is_queued: bool = False
    """Whether, as of its last heartbeat, the step waited for its resources; False before the first."""


class Lease:
    """A lease that this process holds, until `is_lost`."""

    def __init__(self, leases: "Leases", digest: str, epoch: int, on_lost: Callable[[], None]) -> None:
        self.digest = digest
        self.epoch = epoch
        self.is_lost = False
        self.has_started = False
        """Whether the step has its resources; the next heartbeat tells those who look on, and how far it is."""
        self.progress: Progress | None = None
        self._leases = leases
        self._on_lost = on_lost
        self._num_beats = 0
        self._is_given_back = False
        self._renewed = leases.clock()

    def beat(self) -> None:
        """Renews the lease, or finds it lost. An error that passes is waited for as long as nobody else may begin; any
        other counts as a loss at once: two holders cost more than none."""
        if self.is_lost:
            return
        begun = self._leases.clock()
        try:
            self._num_beats += 1
            beat = Beat(number=self._num_beats, progress=self.progress, is_queued=not self.has_started)
            self._leases.store.write(epoch_path(self.digest, self.epoch, BEAT), beat.model_dump_json().encode())
            state = self._leases.state(self.digest)
            taken = state is None or state.number > self.epoch or state.is_sealed
        except Exception as error:  # whatever it is, the lease may be lost, and the holder is told
            if is_transient(error) and begun - self._renewed < LOST_SECONDS:
                return
            taken = True
        if self._is_given_back:  # meanwhile: the seal is its own, and another attempt may be at work
            return
        if taken:
            self.is_lost = True
            self._on_lost()
        else:
            self._renewed = begun

    def release(self, *, has_committed: bool = False) -> None:
        """Ends the epoch and lets the next one in at once; what was lost is somebody else's to end.

        Args:
            has_committed: the attempt is known to have carried out all that it entered.
        """
        self._is_given_back = True
        if not self.is_lost:
            self._leases.release(self.digest, self.epoch, has_committed=has_committed)


class Leases:
    """The leases of one prefix, and one thread that renews those held here."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.clock = clock
        self._nonce = uuid.uuid4().hex
        self._held: list[Lease] = []
        self._seen: dict[tuple[str, int], tuple[float, float]] = {}
        self._store_is_ahead: float | None = None
        """Seconds that the store's clock is ahead of `clock`, at most."""
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
        """The lease of `digest`, or who has it; ask again later, since a dead holder shows only with time.

        Args:
            digest: of the step, or of its trajectory.
            name: under which the holder works on it.
            on_lost: called when the lease is lost, in the thread of the heartbeats.
            needs: keys of the records that the holder reads.
            milestones: what the holder is to publish of a trajectory, its own stop among them.
            does: what it does other than to make the step.
        """
        state = self.state(digest)
        if state is not None and not state.is_sealed:
            held = self._alive(digest, state)
            if held is not None:
                return held
            seal(self.store, digest, state.number)
            carry_out(self.store, digest, state.number)
        elif state is not None and state.has_entries:
            carry_out(self.store, digest, state.number)  # whoever sealed it was killed over it
        epoch = 1 if state is None else state.number + 1
        told = {"needs": needs, "milestones": milestones, "does": does}
        holder = this_process(name).model_copy(update={"nonce": self._nonce, **told})
        claim = holder.model_dump_json().encode()
        there = decide(self.store, epoch_path(digest, epoch, CLAIM), claim)
        if there != claim:
            return Held(_holder_of(there) or _nobody(), epoch, time.time())
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
        """Digests whose lease looks alive by the clock of the store as well as ours, so that it may write."""
        return self._with_beats(self.unsealed(DEAD_SECONDS, writes=True))

    def running_and_silent(self) -> tuple[dict[str, Held], dict[str, Held]]:
        """For a plan, which writes nothing: by our own clock, whose lease looks alive, and who has not ended but was
        last heard of too long ago."""
        unsealed, now = self.unsealed(math.inf), time.time()
        alive = {digest: each for digest, each in unsealed.items() if now - each[1].updated < DEAD_SECONDS}
        silent = {
            digest: Held(holder, state.number, state.updated)
            for digest, (holder, state) in unsealed.items()
            if digest not in alive
        }
        return self._with_beats(alive), silent

    def at_work(self) -> dict[str, Held]:
        """Those of `running` that run their step: a copier or `gc` hears nothing, and publishes nothing new."""
        return {digest: each for digest, each in self.running().items() if not each.holder.does}

    def _with_beats(self, unsealed: dict[str, tuple[Holder, EpochState]]) -> dict[str, Held]:
        found = {}
        for digest, (holder, state) in unsealed.items():
            beat = self._last_beat(digest, state.number)
            found[digest] = Held(holder, state.number, state.updated, beat.progress, beat.is_queued)
        return found

    def unsealed(
        self, within_seconds: float, *, writes: bool = False, must_know_needs: bool = False
    ) -> dict[str, tuple[Holder, EpochState]]:
        """Digests that somebody may still work on, who, and in which epoch; who beat last so long ago is dead.

        For whoever `writes` by the clock of the store as well: our own may be wrong.

        Raises:
            StoreError: for whoever `must_know_needs`, a claim that cannot be read.
        """
        open_states = {d: state for d, state in states(self.store.list(LEASES)).items() if not state.is_sealed}
        now = time.time()
        if writes and any(now - state.updated >= within_seconds for state in open_states.values()):
            now = min(now, self._store_time())
        found = {
            digest: (self._holder(digest, state.number, must_be_known=must_know_needs), state)
            for digest, state in open_states.items()
            if now - state.updated < within_seconds
        }
        return {digest: (holder, state) for digest, (holder, state) in found.items() if not _is_gone(holder)}

    def state(self, digest: str) -> EpochState | None:
        """The newest epoch of a lease, or None if nobody ever held it."""
        return states(self.store.list(LEASES, f"{digest}/")).get(digest)

    def release(self, digest: str, epoch: int, *, has_committed: bool) -> None:
        """Seals the epoch, and tidies what only its holder needed.

        Seals stay: a zombie of any age meets its own. Claims stay: whoever looked before the epoch began would claim it
        once more, and publish in it once more.
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
        """Stops the heartbeats."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _beat_all(self) -> None:
        # Side by side: one after the other, those of many steps on a far store come later than others wait for them.
        # Nor does one wait for another: a request may hang for longer than a lease lives.
        under_way: dict[int, threading.Thread] = {}
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            under_way = {lease: beat for lease, beat in under_way.items() if beat.is_alive()}
            for lease in list(self._held):
                if id(lease) not in under_way:
                    under_way[id(lease)] = beat = threading.Thread(target=lease.beat, daemon=True)
                    beat.start()
        for beat in under_way.values():
            beat.join()

    def _holder(self, digest: str, epoch: int, *, must_be_known: bool = False) -> Holder:
        path = epoch_path(digest, epoch, CLAIM)
        try:
            holder = _holder_of(self.store.read(path))
        except FileNotFoundError:  # released between the listing and this read
            return _nobody()
        if holder is None and must_be_known:
            raise StoreError(
                f"{self.store.url(path)}: not a claim, so that what its holder reads is not known; it was edited, "
                "damaged, or written by another version. When no run is at work, delete it."
            )
        return holder or _nobody()

    def _last_beat(self, digest: str, epoch: int) -> Beat:
        try:
            return Beat.model_validate_json(self.store.read(epoch_path(digest, epoch, BEAT)))
        except (FileNotFoundError, ValidationError):  # none yet, or that of a driver which told a number alone
            return Beat(number=0, progress=None)

    def _alive(self, digest: str, state: EpochState) -> Held | None:
        # Our own clock may be wrong: nobody is taken for dead by it alone. That of the store wrote both times.
        if time.time() - state.updated > DEAD_SECONDS and self._store_time() - state.updated > DEAD_SECONDS:
            return None
        holder = self._holder(digest, state.number)
        if _is_gone(holder) or self._is_given_up(holder, digest, state.number):
            return None
        # The writer's clock is not ours: what counts is whether the heartbeat moves while we watch.
        updated, since = self._seen.get((digest, state.number), (None, 0.0))
        if updated != state.updated:
            self._seen[digest, state.number] = (state.updated, self.clock())
        elif self.clock() - since > STALE_SECONDS:
            return None
        return Held(holder, state.number, state.updated)

    def _store_time(self) -> float:
        """What the store's clock says now, or a moment ago; asked once."""
        if self._store_is_ahead is None:
            self.store.write(f"{CLOCK}/now", b"")
            (written,) = (entry.updated for entry in self.store.list(CLOCK) if entry.path == f"{CLOCK}/now")
            self._store_is_ahead = written - self.clock()
        return self.clock() + self._store_is_ahead

    def _is_given_up(self, holder: Holder, digest: str, epoch: int) -> bool:
        """Whether it is a claim of ours that nobody here acts on any more: there is nobody to wait for."""
        mine = any((lease.digest, lease.epoch) == (digest, epoch) and not lease.is_lost for lease in self._held)
        return holder.nonce == self._nonce and not mine


def this_process(name: str) -> Holder:
    """The holder that this process would be."""
    return Holder(name=name, host=socket.gethostname(), pid=os.getpid(), process=_process(os.getpid()), since=now())


def _holder_of(claim: bytes) -> Holder | None:
    """Who wrote a claim; None where it cannot be read: its epoch counts all the same, by its heartbeats."""
    try:
        return Holder.model_validate_json(claim)
    except ValidationError:
        return None


def _nobody() -> Holder:
    return Holder(name="", host="", pid=0, process="", since=now())


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
    return same_machine and _process(holder.pid) != holder.process and not _is_anothers(holder.pid)


def _is_anothers(pid: int) -> bool:
    """Whether a process of that number runs for another user, of which /proc need not tell (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not _process(pid)
    except OSError:
        pass
    return False
