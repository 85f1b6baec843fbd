"""Epoch: the write-once log of one holder of a step's lease: what it commits, and then a seal.

Before its holder creates a record it enters it in the next slot of its epoch; whoever ends an epoch, its holder or the
successor of a dead one, puts an empty object there. A slot is created once, so of a commit and a seal that meet in one,
one wins: a sealed holder that wakes up however late publishes nothing. To ask for the newest epoch and then create the
record would leave a gap between the two. What was entered before the seal is carried out by whoever sealed, before the
next epoch begins.
"""

import contextlib
import re
from typing import NamedTuple

from marin_dag.ledger.records import Record, Records, UnreadableRecordError, decide
from marin_dag.store.store import Entry, Store, StoreError

LEASES = "leases"
CLAIM, BEAT = "claim", "beat"
PATH = re.compile(rf"{LEASES}/(?P<digest>[^/]+)/(?P<number>\d+)\.(?P<what>[^/]+)")
RELEASED = "released"
"""How an epoch was sealed before there were slots."""


class LeaseLostError(Exception):
    """Somebody else has taken this step over; what this attempt makes must not be published."""


class EpochState(NamedTuple):
    """The newest epoch of a lease, as a listing shows it."""

    number: int
    is_sealed: bool
    next_slot: int
    """Behind the last one: those before it may have been tidied."""
    has_entries: bool
    updated: float


class Epoch:
    """The epoch of a running attempt. One attempt an epoch: a slot that is taken was taken by it, or is the seal."""

    def __init__(self, store: Store, digest: str, number: int) -> None:
        self.digest = digest
        self.number = number
        self._store = store
        self._num_entries = 0

    def commit(self, record: Record) -> Record:
        """Makes the output exist; returns the record that does, which another attempt may have created first.

        Raises:
            LeaseLostError: the epoch is sealed.
        """
        entry = record.model_dump_json(indent=1).encode()
        path = epoch_path(self.digest, self.number, slot(self._num_entries))
        try:
            there = decide(self._store, path, entry)
        except FileNotFoundError:  # an entry of ours that was carried out and tidied while its reply was on the way
            there = b""
        if there != entry:
            raise LeaseLostError(
                f"{record.name}: epoch {self.number} of its lease is over; what this attempt made is not published. "
                "Whoever has taken the step over goes on."
            )
        self._num_entries += 1
        return Records(self._store).commit(record)


def seal(store: Store, digest: str, number: int) -> None:
    """Ends an epoch: nothing that is not entered by now will ever be committed in it."""
    while True:
        state = states(store.list(LEASES, f"{digest}/{number:08d}.")).get(digest)
        if state is not None and state.is_sealed:
            return
        path = epoch_path(digest, number, slot(0 if state is None else state.next_slot))
        # An entry came in between, or entry and seal did and the entry is tidied: look again.
        with contextlib.suppress(FileNotFoundError):
            if decide(store, path, b"") == b"":
                return


def carry_out(store: Store, digest: str, number: int) -> None:
    """Creates the records that were entered in a sealed epoch and may not exist yet; before the next one begins."""
    records = Records(store)
    for entry in store.list(LEASES, f"{digest}/{number:08d}."):
        if _is_slot(entry) and entry.size_in_bytes:
            data = b""
            with contextlib.suppress(FileNotFoundError):
                data = store.read(entry.path)
            # Gone, or the seal of somebody who came late and found the slot free: tidied, so it was carried out.
            if not data:
                continue
            try:
                record = records.parsed(entry.path, data)
            except UnreadableRecordError as error:
                # Not to be deleted: who has been cut off would find the slot free, and publish.
                raise StoreError(
                    f"{store.url(entry.path)}: neither a record nor the end of an epoch of a lease, so it was damaged. "
                    "Empty the file, and leave it there: its step is run again."
                ) from error
            records.commit(record)


def epoch_path(digest: str, number: int, what: str) -> str:
    """Where an object of an epoch lies."""
    return f"{LEASES}/{digest}/{number:08d}.{what}"


def slot(index: int) -> str:
    """Name of a slot: a record in it is a commit, nothing in it the seal."""
    return f"{index:04d}"


def parts(path: str) -> tuple[str, int, str]:
    """Digest, number of the epoch, and what it is.

    Raises:
        StoreError: it is nothing of a lease.
    """
    found = PATH.fullmatch(path)
    if found is None:
        raise StoreError(f"{path}, below the prefix: no object of a lease, so that none can be told; move it away.")
    return found["digest"], int(found["number"]), found["what"]


def is_seal(entry: Entry) -> bool:
    """Whether it ends an epoch."""
    return parts(entry.path)[2] == RELEASED or (_is_slot(entry) and not entry.size_in_bytes)


def states(entries: list[Entry]) -> dict[str, EpochState]:
    """The newest epoch of each digest in a listing."""
    found: dict[str, EpochState] = {}
    for entry in entries:
        digest, number, what = parts(entry.path)
        state = found.get(digest)
        if state is None or number > state.number:
            state = EpochState(number, False, 0, False, 0.0)
        if number == state.number:
            found[digest] = EpochState(
                number,
                state.is_sealed or is_seal(entry),
                max(state.next_slot, int(what) + 1) if _is_slot(entry) else state.next_slot,
                state.has_entries or (_is_slot(entry) and entry.size_in_bytes > 0),
                max(state.updated, entry.updated),
            )
        else:
            found[digest] = state
    return found


def _is_slot(entry: Entry) -> bool:
    return parts(entry.path)[2].isdigit()
