"""Collect: what nothing leads to any more, and its deletion under the lease of each step.

An output is kept if a given pipeline, a pin, an acceptance, a fork (which is part of its pipeline) or a running step
leads to it, or if it is young: whoever made it may be about to use it. What attempts left that committed nothing, and
what steps resume from, is kept for as long.

Deletion needs no luck. Whoever deletes holds the lease of the step, so that its older attempts are sealed and cannot
commit what is gone. And a record is deleted before it is asked who is running with it, while a step says what it reads
before it looks for the record: one of the two sees the other.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

from marin_dag.acceptances import ACCEPTED
from marin_dag.epoch import LEASES, parts
from marin_dag.lease import CLOCK_SKEW_SECONDS, STALE_SECONDS, Held, Leases
from marin_dag.pins import Pins
from marin_dag.records import CODES, LABELS, Record, Records, record_path
from marin_dag.store import Entry, Store
from marin_dag.verify import VERIFICATIONS

OUTPUTS, WORK = "outputs", "work"
READ_THREADS = 16
ATTEMPT = re.compile(
    r"outputs/(?P<name>.+)-(?P<short>[0-9a-f]{8})/(?P<attempt>\d{8}-\d{6}-[0-9a-f]{8})(?P<rest>[./].*)"
)

Kind = Literal["output", "attempt", "work", "verification"]


class Garbage(NamedTuple):
    """Something that can go, all at once."""

    kind: Kind
    name: str
    """Label of the step, or the folder."""
    digest: str
    key: str
    """Of the record, for an output."""
    files: tuple[Entry, ...]
    needed_by: tuple[str, ...] = ()
    """Names of committed outputs that were made from it; they stay, and can no longer be made again from it."""

    @property
    def size_in_bytes(self) -> int:
        """What deleting it frees, at most: files on a disk may be linked."""
        return sum(entry.size_in_bytes for entry in self.files)


class Roots(NamedTuple):
    """What is reachable by name: keys, and the labels that these pipelines speak for."""

    keys: frozenset[str]
    names: frozenset[str]


class Collector:
    """Finds garbage in one prefix, and deletes it.

    Args:
        store: where.
        roots: what the given pipelines lead to. Outputs under names that they do not know are left alone.
        older_than_seconds: what is younger stays.
        clock: the time in seconds since 1970.
    """

    def __init__(
        self, store: Store, roots: Roots, *, older_than_seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._records = Records(store)
        self._roots = roots
        self._older_than_seconds = older_than_seconds
        self._clock = clock

    def find(self) -> list[Garbage]:
        """All that can go, outputs first; reads every record, writes nothing."""
        committed = {entry.path: entry for entry in self._store.list("commits")}
        with ThreadPoolExecutor(READ_THREADS) as pool:
            read = pool.map(lambda path: self._records.find(_key(path)), committed)
            records = {record.key: record for record in read if record is not None}
        running = self._running()
        kept = self._kept(records, running, committed)
        files = _by_attempt(self._store.list(OUTPUTS))
        found = [self._output(record, files, records.values()) for record in records.values() if record.key not in kept]
        found += self._attempts(files, records.values(), running)
        found += self._work(running)
        return found + self._verifications()

    def _kept(self, records: dict[str, Record], running: "_Running", committed: dict[str, Entry]) -> frozenset[str]:
        digests = {key.partition("@")[0] for key in self._roots.keys} | running.digests
        digests |= {entry.path.split("/")[1] for entry in self._store.list(ACCEPTED)}
        keys = Pins(self._store).pinned() | running.needs
        labels = _names_of(self._store)
        return frozenset(
            key
            for key, record in records.items()
            if record.digest in digests
            or key in keys
            or self._is_young(committed[record_path(key)])
            or not ({record.name} | labels.get(key, set())) <= self._roots.names
        )

    def _running(self) -> "_Running":
        held = Leases(self._store).unsealed(max(self._older_than_seconds, STALE_SECONDS + CLOCK_SKEW_SECONDS))
        return _Running(frozenset(held), frozenset(key for holder in held.values() for key in holder.needs))

    def _is_young(self, entry: Entry) -> bool:
        return self._clock() - entry.updated < self._older_than_seconds

    def _output(self, record: Record, files: dict[tuple[str, str], list[Entry]], records: Iterable[Record]) -> Garbage:
        theirs = files.get((record.digest[:8], record.attempt), [])
        if any(other.attempt == record.attempt and other.key != record.key for other in records):
            # Another milestone of its attempt: what lies beside, such as the log, goes with the last of them.
            own = {f"{record.output_path}/{entry.path}" for entry in record.manifest}
            theirs = [entry for entry in theirs if entry.path in own]
        needed_by = sorted({other.name for other in records if _was_made_from(other, record)})
        return Garbage("output", record.name, record.digest, record.key, tuple(theirs), tuple(needed_by))

    def _attempts(
        self, files: dict[tuple[str, str], list[Entry]], records: Iterable[Record], running: "_Running"
    ) -> list[Garbage]:
        committed = {(record.digest[:8], record.attempt) for record in records}
        held = {digest[:8] for digest in running.digests}
        youngest: dict[str, float] = {}
        for (short, _), entries in files.items():
            youngest[short] = max(youngest.get(short, 0.0), *(entry.updated for entry in entries))
        digests = _digests_by_short(self._store)
        found = []
        for (short, attempt), entries in files.items():
            is_old = self._clock() - youngest[short] >= self._older_than_seconds
            # Of two digests that begin alike neither is told from the other: both are left alone.
            if is_old and (short, attempt) not in committed and short not in held and len(digests.get(short, ())) == 1:
                (digest,) = digests[short]
                match = ATTEMPT.fullmatch(entries[0].path)
                assert match is not None
                found.append(Garbage("attempt", f"{match['name']} ({attempt})", digest, "", tuple(entries)))
        return found

    def _work(self, running: "_Running") -> list[Garbage]:
        by_digest: dict[str, list[Entry]] = {}
        for entry in self._store.list(WORK):
            by_digest.setdefault(entry.path.split("/")[1], []).append(entry)
        return [
            Garbage("work", f"{WORK}/{digest[:8]}", digest, "", tuple(entries))
            for digest, entries in by_digest.items()
            if digest not in running.digests and not any(self._is_young(entry) for entry in entries)
        ]

    def _verifications(self) -> list[Garbage]:
        by_run: dict[str, list[Entry]] = {}
        for entry in self._store.list(VERIFICATIONS):
            by_run.setdefault(entry.path.split("/")[1], []).append(entry)
        return [
            Garbage("verification", f"{VERIFICATIONS}/{name}", "", "", tuple(entries))
            for name, entries in by_run.items()
            if not any(self._is_young(entry) for entry in entries)
        ]

    def delete(self, garbage: Garbage) -> str:
        """Deletes it; returns "" or, where that is not safe any more, why it was left."""
        if garbage.kind == "verification":
            for entry in garbage.files:
                self._store.delete(entry.path)
            return ""
        leases = Leases(self._store)
        lease = leases.acquire(garbage.digest, f"gc of {garbage.name}", lambda: None)
        if isinstance(lease, Held):
            return f"{lease.holder.host} pid {lease.holder.pid} is running it"
        try:
            return self._delete_output(garbage) if garbage.kind == "output" else self._delete_files(garbage)
        finally:
            lease.release()
            leases.close()

    def _delete_output(self, garbage: Garbage) -> str:
        path = record_path(garbage.key)
        with contextlib.suppress(FileNotFoundError):
            record = self._store.read(path)
            self._store.delete(path)
            if garbage.key in self._running().needs or garbage.key in Pins(self._store).pinned():
                self._store.create(path, record)
                return "a step that has just begun reads it, or it was pinned"
            self._store.delete(f"{LABELS}/{garbage.name}/{garbage.key}")
            for entry in self._store.list(CODES, f"{garbage.key}/"):
                self._store.delete(entry.path)
        for entry in garbage.files:
            self._store.delete(entry.path)
        return ""

    def _delete_files(self, garbage: Garbage) -> str:
        # Under the lease nothing of this digest is committed any more, but it may have been since it was found.
        keys = [_key(entry.path) for entry in self._store.list("commits", garbage.digest)]
        kept = {f"{r.output_path}/{e.path}" for r in map(self._records.find, keys) if r for e in r.manifest}
        if any(entry.path in kept for entry in garbage.files):
            return "it has been committed since"
        for entry in garbage.files:
            self._store.delete(entry.path)
        return ""


class _Running(NamedTuple):
    digests: frozenset[str]
    """Steps that somebody works on, as far as can be told."""
    needs: frozenset[str]
    """Records that they read."""


def _names_of(store: Store) -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for entry in store.list(LABELS):
        name, _, key = entry.path.removeprefix(f"{LABELS}/").rpartition("/")
        names.setdefault(key, set()).add(name)
    return names


def _by_attempt(entries: list[Entry]) -> dict[tuple[str, str], list[Entry]]:
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        match = ATTEMPT.fullmatch(entry.path)
        if match is not None:
            found.setdefault((match["short"], match["attempt"]), []).append(entry)
    return found


def _digests_by_short(store: Store) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for entry in store.list(LEASES):
        digest = parts(entry.path)[0]
        found.setdefault(digest[:8], set()).add(digest)
    return found


def _was_made_from(record: Record, other: Record) -> bool:
    return record.key != other.key and other.digest in repr(record.identity)


def _key(path: str) -> str:
    return path.removeprefix("commits/").removesuffix(".json")
