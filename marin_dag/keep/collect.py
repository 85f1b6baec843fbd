"""Collect: what nothing leads to any more, and its deletion under the lease of each step.

An output is kept if a given pipeline, a pin, an acceptance, a fork (which is part of its pipeline) or a running step
leads to it, or if it is young: whoever made it may be about to use it. What attempts left that committed nothing, what
steps resume from, and how attempts failed and what people told them where the output is not kept, is kept for as long.
Leases stay: their seals are what a zombie meets, however late it wakes up, that would commit what is left of its files.

What an unfinished step of these pipelines resumes from is kept however old it is, and of a finished one the event logs
and what it has certified, to go back to, as long as its output. What a finished step has certified goes by itself only
where somebody names the step, and of a pinned one never.

Deletion needs no luck. Whoever deletes holds the lease of the step, so that its older attempts are sealed and cannot
commit what is gone. And a record is deleted before it is asked who is running with it, while a step says what it reads
before it looks for the record: one of the two sees the other. It is asked once for many records, since each answer
takes a listing of all leases.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

from marin_dag.identity.diff import input_keys
from marin_dag.keep.verify import VERIFICATIONS
from marin_dag.ledger.acceptances import ACCEPTED
from marin_dag.ledger.attempt_files import (
    Attempt,
    attempt_at,
    beside_attempts,
    by_attempt,
    files_of,
    folder_of,
    name_in,
)
from marin_dag.ledger.epoch import LEASES, parts
from marin_dag.ledger.lease import COLLECTS, DEAD_SECONDS, Held, Lease, Leases
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.records import CODES, COMMITS, FAILURES, LABELS, Record, Records, key_at, record_path
from marin_dag.ledger.requests import REQUESTS
from marin_dag.ledger.work_code import FOLDER as CODE
from marin_dag.store.store import Entry, Store

OUTPUTS, WORK = "outputs", "work"
EVENTS = "events"
"""Folder below a step's work that tells how its output came about: on what it ran, how, and what went wrong."""
CERTIFIED = "certified.json"
"""Marks a folder below a step's work as one to go back to; the step writes it (runtime/training/temporary.py)."""
SEALS = (CERTIFIED, "manifest.json")
"""What says of the files around it that they are all there, such as the manifest of a checkpoint: deleted first, so
that a kill leaves nothing behind that looks complete and is not."""
READ_THREADS = 16
BATCH = 100
"""Records that are gone while it is asked who runs; a step that begins meanwhile and needs one says so and ends."""

Kind = Literal["output", "attempt", "work", "certified", "request", "failure", "verification"]


class Garbage(NamedTuple):
    """Something that can go, all at once."""

    kind: Kind
    name: str
    """Label of the step, or the folder."""
    digest: str
    key: str
    """Of the record, for an output."""
    files: tuple[Entry, ...]
    labels: tuple[str, ...] = ()
    """Names that lead to the record."""
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
    wanted: frozenset[str] = frozenset()
    """Keys that steps start from and that were saved and not published: what their trajectories have saved stays."""


class Collector:
    """Finds garbage in one prefix, and deletes it.

    Args:
        store: where.
        roots: what the given pipelines lead to. Outputs under names that they do not know are left alone.
        older_than_seconds: what is younger stays.
        certified_of: digests of finished steps whose certified folders shall go, however young; the output stays.
        clock: the time in seconds since 1970.
    """

    def __init__(
        self,
        store: Store,
        roots: Roots,
        *,
        older_than_seconds: float,
        certified_of: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._records = Records(store)
        self._roots = roots
        self._older_than_seconds = older_than_seconds
        self._certified_of = certified_of
        self._clock = clock
        self.staying: tuple[Garbage, ...] = ()
        """Certified folders of finished steps that stay; known once `find` has looked."""

    def find(self) -> list[Garbage]:
        """All that can go, outputs first; reads every record, writes nothing."""
        committed = {entry.path: entry for entry in self._store.list(COMMITS)}
        with ThreadPoolExecutor(READ_THREADS) as pool:
            read = pool.map(lambda path: self._records.find(key_at(path)), committed)
            records = {record.key: record for record in read if record is not None}
        running = self._running()
        busy = running.digests | {key.partition("@")[0] for key in self._roots.keys - records.keys()}
        labels = self._records.names()
        kept = self._kept(records, running, committed, labels)
        listed = self._store.list(OUTPUTS)
        files = by_attempt(listed)
        staying: list[Garbage] = []
        beside = beside_attempts(listed)
        found = list(self._outputs(records, kept, files, labels, beside))
        found += self._attempts(files, records.values(), busy, beside)
        names = {records[key].digest: records[key].name for key in sorted(kept)}
        of_short = {short: name_in(entries) for (short, _), entries in files.items()}
        wanted = {key.partition("@")[0] for key in self._roots.wanted - records.keys()}
        for garbage in self._work(busy, names, of_short):
            if garbage.kind == "work" and garbage.digest in wanted:
                continue
            stays = garbage.kind == "certified" and garbage.digest in names.keys() - (self._certified_of - wanted)
            (staying if stays else found).append(garbage)
        self.staying = tuple(staying)
        found += self._folders("request", REQUESTS, busy | names.keys())
        found += self._folders("failure", FAILURES, busy | names.keys())
        return found + self._folders("verification", VERIFICATIONS, frozenset())

    def _kept(
        self,
        records: dict[str, Record],
        running: "_Running",
        committed: dict[str, Entry],
        labels: Mapping[str, set[str]],
    ) -> frozenset[str]:
        digests = {key.partition("@")[0] for key in self._roots.keys} | running.digests
        digests |= {entry.path.split("/")[1] for entry in self._store.list(ACCEPTED)} | running.needs
        keys = Pins(self._store).pinned()
        return frozenset(
            key
            for key, record in records.items()
            if record.digest in digests
            or key in keys
            or self._is_young(committed[record_path(key)])
            or not ({record.name} | labels.get(key, set())) <= self._roots.names
        )

    def _running(self, *, writes: bool = False) -> "_Running":
        oldest = max(self._older_than_seconds, DEAD_SECONDS)
        held = Leases(self._store).unsealed(oldest, writes=writes, must_know_needs=True)
        needs = (key.partition("@")[0] for holder, _ in held.values() for key in holder.needs)
        return _Running(frozenset(held), frozenset(needs))

    def _is_young(self, entry: Entry) -> bool:
        return self._clock() - entry.updated < self._older_than_seconds

    def _outputs(
        self,
        records: dict[str, Record],
        kept: frozenset[str],
        files: dict[Attempt, list[Entry]],
        labels: Mapping[str, set[str]],
        beside: Mapping[str, list[Entry]],
    ) -> Iterator[Garbage]:
        milestones = Counter(record.attempt for record in records.values())
        # Two records may share an output: of the scheme of digests before, and of the one now.
        shared = {records[key].output_path for key in kept}
        staying = {folder_of(path) for path in shared}
        made_from: dict[str, set[str]] = {}
        for record in records.values():
            for key in input_keys(record.identity).values():
                made_from.setdefault(key.partition("@")[0], set()).add(record.name)
        for record in records.values():
            if record.key in kept:
                continue
            theirs = files_of(record, files) if record.output_path not in shared else []
            if milestones[record.attempt] > 1:
                # Another milestone of its attempt: what lies beside, such as the log, goes with the last of them.
                own = {f"{record.output_path}/{entry.path}" for entry in record.manifest}
                theirs = [entry for entry in theirs if entry.path in own]
            elif folder_of(record.output_path) not in staying:
                theirs = [*theirs, *beside.get(folder_of(record.output_path), ())]
            names = tuple(sorted({record.name} | labels.get(record.key, set())))
            needed_by = tuple(sorted(made_from.get(record.digest, ())))
            yield Garbage("output", record.name, record.digest, record.key, tuple(theirs), names, needed_by)

    def _attempts(
        self,
        files: dict[Attempt, list[Entry]],
        records: Collection[Record],
        busy: frozenset[str],
        beside: Mapping[str, list[Entry]],
    ) -> list[Garbage]:
        # What lies beside attempts none of which committed goes with the first of them.
        left = {folder: beside[folder] for folder in beside.keys() - {folder_of(made.output_path) for made in records}}
        committed = {attempt_at(record.output_path) for record in records}
        held = {digest[:8] for digest in busy}
        youngest: dict[str, float] = {}
        for (short, _), entries in files.items():
            youngest[short] = max(youngest.get(short, 0.0), *(entry.updated for entry in entries))
        digests = _digests_by_short(self._store)
        found = []
        for made, entries in files.items():
            short = made.short
            is_old = self._clock() - youngest[short] >= self._older_than_seconds
            # Of two digests that begin alike neither is told from the other: both are left alone.
            if is_old and made not in committed and short not in held and len(digests.get(short, ())) == 1:
                (digest,) = digests[short]
                name = name_in(entries)
                theirs = (*entries, *left.pop(f"{OUTPUTS}/{name}-{short}", ()))
                found.append(Garbage("attempt", f"{name} ({made.attempt})", digest, "", theirs))
        return found

    def _work(self, busy: frozenset[str], kept: Mapping[str, str], of_short: Mapping[str, str]) -> Iterator[Garbage]:
        """`kept` names the digests whose output stays, and with it the events of its work and what is certified.

        `of_short` names those that have left an attempt, by the beginning of the digest.
        """
        by_digest: dict[str, list[Entry]] = {}
        for entry in self._store.list(WORK):
            digest, _, rest = entry.path.removeprefix(f"{WORK}/").partition("/")
            if rest and digest not in busy and (digest not in kept or not rest.startswith((f"{EVENTS}/", f"{CODE}/"))):
                by_digest.setdefault(digest, []).append(entry)
        for digest, entries in by_digest.items():
            certified = certified_in(entries)
            others = set(entries).difference(*certified.values())
            is_young = any(self._is_young(entry) for entry in entries)
            short = digest[:8]
            named = kept.get(digest) or of_short.get(short)
            if others and not is_young:
                yield Garbage("work", f"{named} ({short})" if named else short, digest, "", tuple(sorted(others)))
            for folder, theirs in certified.items():
                if digest in kept or not is_young:
                    name = f"{named or short}: {folder.split('/', 2)[2]}"
                    yield Garbage("certified", name, digest, "", tuple(theirs))

    def _folders(self, kind: Kind, top: str, staying: Collection[str]) -> list[Garbage]:
        """The folders in `top` whose name or digest is none of `staying`, and of which no file is young."""
        by_name: dict[str, list[Entry]] = {}
        for entry in self._store.list(top):
            by_name.setdefault(entry.path.split("/")[1], []).append(entry)
        return [
            Garbage(kind, f"{top}/{name}", "", "", tuple(entries))
            for name, entries in by_name.items()
            if name.partition("@")[0] not in staying and not any(self._is_young(entry) for entry in entries)
        ]

    def delete(self, garbage: Sequence[Garbage]) -> list[str]:
        """Deletes all of it; returns for each "" or, where that is not safe any more, why it was left."""
        said: list[str] = []
        for start in range(0, len(garbage), BATCH):
            said += self._delete_batch(garbage[start : start + BATCH])
        return said

    def _delete_batch(self, batch: Sequence[Garbage]) -> list[str]:
        leases = Leases(self._store)
        held: dict[str, Lease | Held] = {}
        try:
            for garbage in batch:
                if garbage.digest and garbage.digest not in held:
                    got = leases.acquire(garbage.digest, f"gc of {garbage.name}", lambda: None, does=COLLECTS)
                    held[garbage.digest] = got
            said = {number: _is_held(held.get(garbage.digest)) for number, garbage in enumerate(batch)}
            free = {number: garbage for number, garbage in enumerate(batch) if not said[number]}
            said |= self._delete_outputs({n: garbage for n, garbage in free.items() if garbage.kind == "output"}, held)
            for number, garbage in free.items():
                if garbage.kind != "output":
                    said[number] = _lost(held.get(garbage.digest)) or self._delete_files(garbage)
            return [said[number] for number in range(len(batch))]
        finally:
            for lease in held.values():
                if isinstance(lease, Lease):
                    lease.release()
            leases.close()

    def _delete_outputs(self, outputs: dict[int, Garbage], held: Mapping[str, Lease | Held]) -> dict[int, str]:
        deleted: dict[int, bytes] = {}
        lost = {number: _lost(held.get(garbage.digest)) for number, garbage in outputs.items()}
        outputs = {number: garbage for number, garbage in outputs.items() if not lost[number]}
        for number, garbage in outputs.items():
            with contextlib.suppress(FileNotFoundError):
                deleted[number] = self._store.read(record_path(garbage.key))
                self._store.delete(record_path(garbage.key))
        needs, pinned = frozenset[str](), frozenset[str]()
        if deleted:
            needs, pinned = self._running(writes=True).needs, Pins(self._store).pinned()
        return lost | {n: self._finish(garbage, deleted.get(n), needs, pinned) for n, garbage in outputs.items()}

    def _finish(self, garbage: Garbage, record: bytes | None, needs: frozenset[str], pinned: frozenset[str]) -> str:
        if record is not None and (garbage.digest in needs or garbage.key in pinned):
            self._store.create(record_path(garbage.key), record)
            return "a step that has just begun reads it, or it was pinned"
        labels = (f"{LABELS}/{name}/{garbage.key}" for name in garbage.labels)
        codes = (entry.path for entry in self._store.list(CODES, f"{garbage.key}/"))
        self._delete_all((*labels, *codes, *(entry.path for entry in garbage.files)))
        return ""

    def _delete_files(self, garbage: Garbage) -> str:
        # Under the lease nothing of this digest is committed any more, but it may have been since it was found.
        commits = self._store.list(COMMITS, garbage.digest) if garbage.digest else []  # of no step
        keys = [key_at(entry.path) for entry in commits]
        if garbage.kind == "certified" and keys:
            if garbage.digest in {key.partition("@")[0] for key in Pins(self._store).pinned()}:
                return "its step is pinned"
            if garbage.digest not in self._certified_of:
                return "its step has an output"
        kept = {f"{r.output_path}/{e.path}" for r in map(self._records.find, keys) if r for e in r.manifest}
        if any(entry.path in kept for entry in garbage.files):
            return "it has been committed since"
        self._delete_all(sorted((entry.path for entry in garbage.files), key=_place))
        return ""

    def _delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._store.delete(path)
        for path in paths:
            self._store.tidy(path)


def _place(path: str) -> int:
    """Among what is deleted together."""
    name = path.rpartition("/")[2]
    return SEALS.index(name) if name in SEALS else len(SEALS)


def _lost(lease: Lease | Held | None) -> str:
    """Why nothing may be deleted under a lease any more, or ""."""
    return "its lease was lost while others were deleted" if isinstance(lease, Lease) and lease.is_lost else ""


def _is_held(lease: Lease | Held | None) -> str:
    return lease.holder.said if isinstance(lease, Held) else ""


class _Running(NamedTuple):
    digests: frozenset[str]
    """Steps that somebody works on, as far as can be told."""
    needs: frozenset[str]
    """Digests of what they read: of a growing output or a trajectory they may read more as they go on."""


def certified_in(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Files of a work folder by the marked folder that they lie in."""
    marked = (entry.path.removesuffix(f"/{CERTIFIED}") for entry in entries if entry.path.endswith(f"/{CERTIFIED}"))
    marks = {folder for folder in marked if folder.count("/") >= 2}  # below work/DIGEST, not all of it
    found: dict[str, list[Entry]] = {folder: [] for folder in sorted(marks)}
    for entry in entries:
        folders = entry.path.split("/")
        inside = next((f for n in range(len(folders)) if (f := "/".join(folders[:n])) in marks), None)
        if inside is not None:
            found[inside].append(entry)
    return found


def _digests_by_short(store: Store) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for entry in store.list(LEASES):
        digest = parts(entry.path)[0]
        found.setdefault(digest[:8], set()).add(digest)
    return found
