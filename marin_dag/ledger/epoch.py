"""Epoch: the write-once log of one holder of a step's lease: the records it commits, then a seal.

Before the holder creates a record, it enters the record in the next slot of its epoch. The end of an epoch is an empty
object in its next slot, the seal; its holder creates it, or the successor of a dead holder. A slot is created once, so
when a commit and a seal meet, one wins: a sealed holder that wakes up late publishes nothing. Asking for the newest
epoch and then creating the record would leave a gap between the two. Records entered before the seal are committed by
the sealer, before the next epoch begins.
"""

import contextlib
import re
from typing import NamedTuple

from marin_dag.ledger.checked_json import checked_json
from marin_dag.ledger.records import Record, Records, UnreadableRecordError, decide
from marin_dag.store.store import Entry, Store, StoreError

LEASES = "leases"
CLAIM, BEAT = "claim", "beat"
PATH = re.compile(rf"{LEASES}/(?P<digest>[^/]+)/(?P<number>\d+)\.(?P<what>[^/]+)")


class LeaseLostError(Exception):
    """Another attempt has taken over this step; the output of this attempt must not be published."""


class EpochState(NamedTuple):
    """The newest epoch of a lease, as a listing shows it."""

    number: int
    is_sealed: bool
    next_slot: int
    """The slot after the last one in the listing; earlier slots may have been deleted."""
    has_entries: bool
    updated: float


class Epoch:
    """The epoch of a running attempt; only this attempt and the seal fill its slots."""

    def __init__(self, store: Store, digest: str, number: int) -> None:
        self.digest = digest
        self.number = number
        self._store = store
        self._num_entries = 0

    def commit(self, record: Record) -> Record:
        """Create the record; return the record in force. Raise LeaseLostError if the epoch is sealed."""
        entry = checked_json(record)
        path = epoch_path(self.digest, self.number, slot(self._num_entries))
        try:
            there = decide(self._store, path, entry)
        except FileNotFoundError:  # our own entry, committed and deleted while its reply was on the way
            there = b""
        if there != entry:
            raise LeaseLostError(
                f"{record.name}: epoch {self.number} of its lease is over, so the output of this attempt is not "
                "published. The attempt that took the step over continues."
            )
        self._num_entries += 1
        return Records(self._store).commit(record)


def seal(store: Store, digest: str, number: int) -> None:
    """End an epoch: records that are not entered by now are never committed in it."""
    while True:
        state = states(store.list(LEASES, f"{digest}/{number:08d}.")).get(digest)
        if state is not None and state.is_sealed:
            return
        path = epoch_path(digest, number, slot(0 if state is None else state.next_slot))
        # If another object took the slot, or took it and was deleted, list again.
        with contextlib.suppress(FileNotFoundError):
            if decide(store, path, b"") == b"":
                return


def carry_out(store: Store, digest: str, number: int) -> None:
    """Create the records that were entered in a sealed epoch and may not exist yet; call before the next epoch."""
    records = Records(store)
    for entry in store.list(LEASES, f"{digest}/{number:08d}."):
        if _is_slot(entry) and entry.size_in_bytes:
            data = b""
            with contextlib.suppress(FileNotFoundError):
                data = store.read(entry.path)
            # Gone, or a late seal in a slot that was free again: the entry was committed and deleted.
            if not data:
                continue
            try:
                record = records.parsed(entry.path, data)
            except UnreadableRecordError as error:
                # If the file were deleted, a holder that was cut off would find the slot free and publish.
                raise StoreError(
                    f"{store.url(entry.path)}: this file of a lease is damaged. Make it empty, but leave it in place; "
                    "then its step runs again."
                ) from error
            records.commit(record)


def epoch_path(digest: str, number: int, what: str) -> str:
    return f"{LEASES}/{digest}/{number:08d}.{what}"


def slot(index: int) -> str:
    """Return the name of a slot. A slot with a record is a commit; an empty slot is the seal."""
    return f"{index:04d}"


def parts(path: str) -> tuple[str, int, str]:
    """Return digest, number of the epoch and name of an object in it; raise StoreError for another path."""
    found = PATH.fullmatch(path)
    if found is None:
        raise StoreError(f"{path}, below the prefix: not an object of a lease. Move it away; then run again.")
    return found["digest"], int(found["number"]), found["what"]


def is_seal(entry: Entry) -> bool:
    return _is_slot(entry) and not entry.size_in_bytes


def states(entries: list[Entry]) -> dict[str, EpochState]:
    """Return the newest epoch of each digest in a listing."""
    found: dict[str, EpochState] = {}
    for entry in entries:
        digest, number, what = parts(entry.path)
        state = found.get(digest)
        if state is None or number > state.number:
            state = EpochState(number, False, 0, False, 0.0)
        elif number < state.number:
            continue
        found[digest] = EpochState(
            number,
            state.is_sealed or is_seal(entry),
            max(state.next_slot, int(what) + 1) if _is_slot(entry) else state.next_slot,
            state.has_entries or (_is_slot(entry) and entry.size_in_bytes > 0),
            max(state.updated, entry.updated),
        )
    return found


def _is_slot(entry: Entry) -> bool:
    return parts(entry.path)[2].isdigit()
