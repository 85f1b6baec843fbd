"""Collect: garbage, which is what nothing leads to any more, and its deletion under the lease of each step.

docs/how-to/free-space.md says what is kept. Leases are kept for ever: a zombie must meet its seal, however late.

Deletion is safe beside runs. The collector holds the lease of each step, so older attempts are sealed and cannot commit
files that are gone. It deletes records and then asks which steps run, while a step publishes the keys it needs and then
looks for the records: one of the two sees the other. One question serves many records, as it lists all leases.
"""

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from marin_dag.ledger.acceptances import ACCEPTED
from marin_dag.ledger.attempt_files import Attempt, attempt_of, by_attempt
from marin_dag.ledger.epoch import LEASES, parts
from marin_dag.ledger.lease import COLLECTS, DEAD_SECONDS, Held, Lease, Leases
from marin_dag.ledger.marks import MARKS
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.records import CODES, COMMITS, FAILURES, LABELS, Record, Records, key_at, record_path
from marin_dag.ledger.requests import REQUESTS
from marin_dag.ledger.work_files import CODE, EVENTS, WORK, kept_folders, seal_rank
from marin_dag.record_key import digest_of
from marin_dag.store.store import Entry, Store

OUTPUTS = "outputs"
BATCH = 100
"""Records that are deleted before the collector asks which steps run; a step that starts meanwhile and needs one fails
and says so."""

Kind = Literal["output", "attempt", "work", "good", "request", "failure"]


class Garbage(NamedTuple):
    """Files that can be deleted together."""

    kind: Kind
    name: str
    """Label of the step, or the folder."""
    digest: str
    key: str
    files: tuple[Entry, ...]
    labels: tuple[str, ...] = ()
    """Names that lead to the record."""

    @property
    def size_in_bytes(self) -> int:
        """Bytes that deleting frees, at most: files on a disk may be linked."""
        return sum(entry.size_in_bytes for entry in self.files)


class Roots(NamedTuple):
    """Keys that the given pipelines lead to, and names that they decide about."""

    keys: frozenset[str]
    names: frozenset[str]
    wanted: frozenset[str] = frozenset()
    """Keys of saved but unpublished states that steps start from; the whole state of their steps is kept."""


@dataclasses.dataclass(eq=False)
class Collector:
    """Finds garbage in one prefix, and deletes it."""

    store: Store
    roots: Roots
    """Keys that the given pipelines lead to. All files of steps under other names are kept."""
    older_than_seconds: float
    good_of: frozenset[str] = frozenset()
    """Digests of finished steps whose good checkpoints are garbage at any age."""
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._records = Records(self.store)
        self.kept_good: tuple[Garbage, ...] = ()
        """Good checkpoints of finished steps that are kept; set by `find`."""
        self.names_in_prefix: frozenset[str] = frozenset()
        """Names of all steps that have files in the prefix; set by `find`."""

    def find(self) -> list[Garbage]:
        """Return all garbage, outputs first; read every record, write nothing."""
        committed = {entry.path: entry for entry in self.store.list(COMMITS)}
        records = self._records.find_all([key_at(path) for path in committed])
        running, needs = self._running()
        files, beside = by_attempt(self.store.list(OUTPUTS))
        step_names = {made.short: made.name for made in files}
        busy = running | {digest_of(key) for key in self.roots.keys - records.keys()}
        leased = {parts(entry.path)[0] for entry in self.store.list(LEASES)}
        known = {"", *self.roots.names}
        busy |= {digest for digest in leased if step_names.get(digest[:8], "") not in known}
        labels = self._records.names()
        self.names_in_prefix = frozenset().union(step_names.values(), *labels.values())
        kept = self._kept(records, running | needs, committed, labels)
        found = list(self._outputs(records, kept, files, labels, beside))
        found += self._attempts(files, records.values(), busy, beside, leased)
        names = {records[key].digest: records[key].name for key in sorted(kept)}
        found += self._work(busy, names, step_names, records.keys())
        found += self._folders("request", REQUESTS, busy | names.keys())
        return found + self._folders("failure", FAILURES, busy | names.keys())

    def _kept(
        self, records: dict[str, Record], in_use: frozenset[str], committed: dict[str, Entry], labels: "_Labels"
    ) -> frozenset[str]:
        digests = {digest_of(key) for key in self.roots.keys} | in_use
        digests |= {entry.path.split("/")[1] for entry in self.store.list(ACCEPTED)}
        keys = Pins(self.store).pinned()
        return frozenset(
            key
            for key, record in records.items()
            if record.digest in digests
            or key in keys
            or self._is_young(committed[record_path(key)])
            or not ({record.name} | labels.get(key, set())) <= self.roots.names
        )

    def _running(self, *, writes: bool = False) -> tuple[frozenset[str], frozenset[str]]:
        """Return digests of steps that may be running, and digests of their inputs.

        A running step may still read later milestones of an input.
        """
        oldest = max(self.older_than_seconds, DEAD_SECONDS)
        held = Leases(self.store).unsealed(oldest, writes=writes, must_know_needs=True)
        needs = (digest_of(key) for each in held.values() for key in each.holder.needs)
        return frozenset(held), frozenset(needs)

    def _is_young(self, entry: Entry) -> bool:
        return self.clock() - entry.updated < self.older_than_seconds

    def _outputs(
        self,
        records: dict[str, Record],
        kept: frozenset[str],
        files: dict[Attempt, list[Entry]],
        labels: "_Labels",
        beside: Mapping[str, list[Entry]],
    ) -> Iterator[Garbage]:
        num_records = Counter(record.attempt for record in records.values())
        kept_outputs = {_folder_of(records[key]) for key in kept}
        for record in sorted(records.values(), key=lambda each: (each.name, each.key)):
            if record.key in kept:
                continue
            made = attempt_of(record.output_path)
            own_files = files.get(made, []) if made is not None else []
            if num_records[record.attempt] > 1:
                # Other milestones of this attempt exist; files beside them, such as the log, go with the last one.
                own = {f"{record.output_path}/{entry.path}" for entry in record.manifest}
                own_files = [entry for entry in own_files if entry.path in own]
            elif _folder_of(record) not in kept_outputs:
                own_files = [*own_files, *beside.get(_folder_of(record), ())]
            names = tuple(sorted({record.name} | labels.get(record.key, set())))
            yield Garbage("output", record.name, record.digest, record.key, tuple(own_files), names)

    def _attempts(
        self,
        files: dict[Attempt, list[Entry]],
        records: Collection[Record],
        busy: frozenset[str],
        beside: Mapping[str, list[Entry]],
        leased: Collection[str],
    ) -> Iterator[Garbage]:
        # Files beside attempts none of which committed go with the first of them.
        rest = {folder: beside[folder] for folder in beside.keys() - set(map(_folder_of, records))}
        committed = {attempt_of(record.output_path) for record in records}
        busy_shorts = {digest[:8] for digest in busy}
        youngest: dict[str, float] = {}
        for made, entries in files.items():
            youngest[made.short] = max(youngest.get(made.short, 0.0), *(entry.updated for entry in entries))
        digests: dict[str, set[str]] = {}
        for digest in leased:
            digests.setdefault(digest[:8], set()).add(digest)
        for made, entries in files.items():
            short = made.short
            is_old = self.clock() - youngest[short] >= self.older_than_seconds
            # Two digests that begin alike cannot be distinguished here; both are kept.
            if is_old and made not in committed and short not in busy_shorts and len(digests.get(short, ())) == 1:
                (digest,) = digests[short]
                own_files = (*entries, *rest.pop(made.folder, ()))
                yield Garbage("attempt", f"{made.name} ({made.attempt})", digest, "", own_files)

    def _work(
        self, busy: frozenset[str], kept: Mapping[str, str], names: Mapping[str, str], committed: Collection[str]
    ) -> list[Garbage]:
        """Return garbage below `work/`, and set `kept_good`.

        All work of the digests `busy` is kept, and of those in `kept` (with their names) events and good checkpoints.
        """
        wanted = {digest_of(key) for key in self.roots.wanted - set(committed)}
        by_digest: dict[str, list[Entry]] = {}
        for entry in self.store.list(WORK):
            digest, _, rest = entry.path.removeprefix(f"{WORK}/").partition("/")
            if rest and digest not in busy and (digest not in kept or not rest.startswith((f"{EVENTS}/", f"{CODE}/"))):
                by_digest.setdefault(digest, []).append(entry)
        found, kept_good = [], []
        for digest, entries in by_digest.items():
            good, short = kept_folders(entries), digest[:8]
            others = set(entries).difference(*good.values())
            is_young = any(self._is_young(entry) for entry in entries)
            name = kept.get(digest) or names.get(short)
            if others and not is_young and digest not in wanted:
                label = f"{name} ({short})" if name else short
                found.append(Garbage("work", label, digest, "", tuple(sorted(others))))
            for folder, files in good.items():
                garbage = Garbage("good", f"{name or short}: {folder.split('/', 2)[2]}", digest, "", tuple(files))
                if digest in kept and digest not in self.good_of - wanted:
                    kept_good.append(garbage)
                elif digest in kept or not is_young:
                    found.append(garbage)
        self.kept_good = tuple(kept_good)
        return found

    def _folders(self, kind: Kind, top: str, kept: Collection[str]) -> list[Garbage]:
        """Return the folders in `top` without a young file whose name or digest is not in `kept`."""
        by_name: dict[str, list[Entry]] = {}
        for entry in self.store.list(top):
            by_name.setdefault(entry.path.split("/")[1], []).append(entry)
        return [
            Garbage(kind, f"{top}/{name}", "", "", tuple(entries))
            for name, entries in by_name.items()
            if digest_of(name) not in kept and not any(self._is_young(entry) for entry in entries)
        ]

    def delete(self, garbage: Sequence[Garbage]) -> list[str]:
        """Delete all of it; return for each "", or the reason why it was left."""
        reasons: list[str] = []
        for start in range(0, len(garbage), BATCH):
            reasons += self._delete_batch(garbage[start : start + BATCH])
        return reasons

    def _delete_batch(self, batch: Sequence[Garbage]) -> list[str]:
        leases = Leases(self.store)
        held: dict[str, Lease | Held] = {}
        try:
            for garbage in batch:
                if garbage.digest and garbage.digest not in held:
                    got = leases.acquire(garbage.digest, f"gc of {garbage.name}", lambda: None, does=COLLECTS)
                    held[garbage.digest] = got
            reasons = {number: _holder_of(held.get(garbage.digest)) for number, garbage in enumerate(batch)}
            free = {number: garbage for number, garbage in enumerate(batch) if not reasons[number]}
            outputs = {number: garbage for number, garbage in free.items() if garbage.kind == "output"}
            reasons |= self._delete_outputs(outputs, held)
            for number, garbage in free.items():
                if garbage.kind != "output":
                    reasons[number] = _lost(held.get(garbage.digest)) or self._delete_files(garbage)
            return [reasons[number] for number in range(len(batch))]
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
                deleted[number] = self.store.read(record_path(garbage.key))
                self.store.delete(record_path(garbage.key))
        needs, pinned = frozenset[str](), frozenset[str]()
        if deleted:
            needs, pinned = self._running(writes=True)[1], Pins(self.store).pinned()
        return lost | {n: self._finish(garbage, deleted.get(n), needs, pinned) for n, garbage in outputs.items()}

    def _finish(self, garbage: Garbage, record: bytes | None, needs: frozenset[str], pinned: frozenset[str]) -> str:
        if record is not None and (garbage.digest in needs or garbage.key in pinned):
            self.store.create(record_path(garbage.key), record)
            return "a step that has just started reads it, or it was pinned"
        labels = (f"{LABELS}/{name}/{garbage.key}" for name in garbage.labels)
        codes = (entry.path for entry in self.store.list(CODES, f"{garbage.key}/"))
        marks = (entry.path for entry in self.store.list(MARKS, f"{garbage.key}/"))
        self._delete_all((*labels, *codes, *marks, *(entry.path for entry in garbage.files)))
        return ""

    def _delete_files(self, garbage: Garbage) -> str:
        # Under the lease this digest commits nothing any more, but it may have since the garbage was found.
        commits = self.store.list(COMMITS, garbage.digest) if garbage.digest else []
        keys = [key_at(entry.path) for entry in commits]
        if garbage.kind == "good" and keys:
            if garbage.digest in {digest_of(key) for key in Pins(self.store).pinned()}:
                return "its step is pinned"
            if garbage.digest not in self.good_of:
                return "its step has an output"
        kept = {f"{r.output_path}/{e.path}" for r in map(self._records.find, keys) if r for e in r.manifest}
        if any(entry.path in kept for entry in garbage.files):
            return "it has been committed since"
        self._delete_all(sorted((entry.path for entry in garbage.files), key=seal_rank))
        return ""

    def _delete_all(self, paths: Sequence[str]) -> None:
        for action in (self.store.delete, self.store.tidy):
            for path in paths:
                action(path)


_Labels = Mapping[str, set[str]]
"""Names by key."""


def _folder_of(record: Record) -> str:
    """Return the folder of all attempts at an output."""
    made = attempt_of(record.output_path)
    return record.output_path.rpartition("/")[0] if made is None else made.folder


def _lost(lease: Lease | Held | None) -> str:
    is_lost = isinstance(lease, Lease) and lease.is_lost
    return "its lease was lost while other garbage was deleted" if is_lost else ""


def _holder_of(lease: Lease | Held | None) -> str:
    return lease.holder.description if isinstance(lease, Held) else ""
