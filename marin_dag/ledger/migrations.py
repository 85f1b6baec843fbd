"""Migrations: when the scheme of digests changes, what was made under the old one stays reachable under the new.

A new scheme gives every step another digest, though nothing about the step changed. Whoever raises
`identity.SCHEMA_VERSION` keeps the encoder of the scheme before; `migrate` asks it for the digest that each step of a
graph had, and gives the outputs found there a second record, under the digest that the step has now. The old records
stay, outputs are not touched, and what was made says where it came from. Along go the names that led to it, pins,
acceptances, and the finished shards of what is not done. Forks need nothing: they hold names and text. What else is in
progress begins again from its last milestone: checkpoints and leases are fenced by the old digest.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

from marin_dag.graph.step import Step
from marin_dag.identity.canonical import Identity, digest_of_document
from marin_dag.identity.diff import code_difference
from marin_dag.ledger.acceptances import ACCEPTED, Acceptance, Acceptances
from marin_dag.ledger.lease import MIGRATES, Held, Lease, Leases
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.provenance import now, user_name
from marin_dag.ledger.records import Record, Records
from marin_dag.ledger.shard_records import carried_shards

MIGRATIONS = "migrations"

Encoder = Callable[[Step[Any]], Identity]
"""The identity that a step has under an earlier scheme, its inputs' digests included."""


class Migration(BaseModel, frozen=True, extra="forbid"):
    """That two digests of two schemes mean one thing. Kept as `migrations/<new digest>/<old digest>.json`."""

    old_digest: str
    new_digest: str
    old_schema: int
    new_schema: int
    name: str
    """Label of the step when it was migrated, for people."""
    author: str
    created: str


@dataclasses.dataclass(frozen=True)
class Migrated:
    """What one migration did."""

    migrations: tuple[Migration, ...]
    keys: tuple[str, ...]
    """Records that exist now and did not before."""
    refused: tuple[str, ...]
    """Steps that were left alone, each with the reason and the cure."""


def migrate(records: Records, steps: Iterable[Step[Any]], *previous: Encoder) -> Migrated:
    """Makes the outputs of `steps` reachable under the digests that the steps have now.

    Doing it again does nothing, and what a kill left undone.

    Args:
        records: of the prefix.
        steps: of the graph as it stands; only what they would have found under the old scheme is carried over.
        previous: encoders of earlier schemes. Where two know an output, the first that is given wins.

    Raises:
        ValueError: an encoder that is not of an earlier scheme, or whose digest is not that of its document.
    """
    move = _Move(records)
    with contextlib.closing(move):
        for step in steps:
            for encoder in previous:
                old = _earlier(step, encoder)
                if old.digest not in move.seen and move.has_something(old.digest):
                    # Nobody makes more of it meanwhile, and `gc` does not take it away.
                    name = f"migration of {step.name}"
                    lease = move.leases.acquire(old.digest, name, lambda: None, does=MIGRATES)
                    if isinstance(lease, Held):
                        said = f"{lease.holder.said}; migrate when that is over"
                        move.refused.append(f"{step.name} ({old.digest[:8]}): {said}.")
                        continue
                    move.held.append(lease)
                move.seen.add(old.digest)
                move.step(step, old)
    return Migrated(tuple(move.migrations.values()), tuple(move.keys), tuple(dict.fromkeys(move.refused)))


class _Move:
    """What is carried over in one migration."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.store = records.store
        self.leases = Leases(records.store)
        self.held: list[Lease] = []
        self.seen: set[str] = set()
        self.migrations: dict[tuple[str, str], Migration] = {}
        self.keys: list[str] = []
        self.refused: list[str] = []
        self._committed = set(records.committed_keys())
        self._old: dict[str, list[str]] = {}
        for key in sorted(self._committed):
            self._old.setdefault(key.partition("@")[0], []).append(key)
        self._working = {entry.path.split("/")[1] for entry in self.store.list("work")}
        self._pins = {pin.key: pin for pin in Pins(self.store).all()}
        self._names = records.names()

    def has_something(self, old_digest: str) -> bool:
        """Whether there is anything under the digest of the scheme before."""
        return old_digest in self._old or old_digest in self._working

    def step(self, step: Step[Any], old: Identity) -> None:
        """Carries over all that there is of one step."""
        self._acceptances(old.digest, step.digest)
        for old_key in self._old.get(old.digest, ()):
            _, at, milestone = old_key.partition("@")
            new_key = f"{step.digest}{at}{milestone}"
            record = self.records.get(old_key)
            if new_key not in self._committed and _is_drifted(self.records, record, old):
                self.refused.append(
                    f"{step.name} ({old_key[:8]}{at}{milestone}): its code changed since under one declared version; "
                    "`accept` or `bump` it under the old scheme, then migrate."
                )
                continue
            self._also(old_key, new_key)
            if new_key not in self._committed:
                self._record(_migration(step, old), _carried_over(record, step, new_key))
        if step.key not in self._committed and old.digest in self._working:
            carried_shards(self.store, old.digest, step.digest)

    def _record(self, migration: Migration, record: Record) -> None:
        # Before the records that it explains: a kill between the two leaves a mapping that is true.
        self.store.create(_path(migration), migration.model_dump_json(indent=1).encode())
        self.records.commit(record)
        self.migrations[migration.old_digest, migration.new_digest] = migration
        self.keys.append(record.key)
        self._committed.add(record.key)

    def _also(self, old_key: str, new_key: str) -> None:
        """Names and pins: a label to a record that is not there yet is read by nobody."""
        for name in sorted(self._names.get(old_key, set()) - self._names.get(new_key, set())):
            self.records.label(name, new_key)
        pin = self._pins.get(old_key)
        if pin is not None and new_key not in self._pins:
            Pins(self.store).carry(pin, new_key)

    def _acceptances(self, old_digest: str, new_digest: str) -> None:
        there = {_said(entry) for entry in Acceptances(self.store).log(new_digest)}
        for number, entry in enumerate(Acceptances(self.store).log(old_digest)):
            carried = entry.model_copy(update={"digest": new_digest})
            if _said(carried) not in there:
                path = f"{ACCEPTED}/{new_digest}/{number:06d}.json"
                if not self.store.create(path, carried.model_dump_json(indent=1).encode()):
                    self.refused.append(
                        f"{entry.name} ({new_digest[:8]}): something else was accepted under the new scheme already; "
                        f"accept it again as far as it still holds: {entry.because}"
                    )

    def close(self) -> None:
        """Lets go of what was held."""
        try:
            for lease in self.held:
                lease.release()
        finally:
            self.leases.close()


def _said(entry: Acceptance) -> str:
    return entry.model_dump_json()


def _earlier(step: Step[Any], encoder: Encoder) -> Identity:
    old = encoder(step)
    earlier, present = old.document["schema"], step.identity["schema"]
    if earlier >= present:
        raise ValueError(
            f"{step.name}: the encoder makes schema {earlier}, and the step has {present}; a migration goes from an "
            "earlier scheme to a later one."
        )
    if digest_of_document(old.document) != old.digest:
        raise ValueError(f"{step.name}: the encoder's digest {old.digest} is not that of its document.")
    return old


def _is_drifted(records: Records, record: Record, old: Identity) -> bool:
    """Whether the record was made by other code than the step has, and nobody said that it is as good."""
    if code_difference(record.identity, old.document) is None:
        return False
    fingerprints = record.identity["code"]["fingerprint"], old.document["code"]["fingerprint"]
    return not Acceptances(records.store).path(old.digest, *fingerprints)


def _migration(step: Step[Any], old: Identity) -> Migration:
    return Migration(
        old_digest=old.digest,
        new_digest=step.digest,
        old_schema=old.document["schema"],
        new_schema=step.identity["schema"],
        name=step.name,
        author=user_name(),
        created=now(),
    )


def _path(migration: Migration) -> str:
    return f"{MIGRATIONS}/{migration.new_digest}/{migration.old_digest}.json"


def _carried_over(record: Record, step: Step[Any], key: str) -> Record:
    """The same output, result and provenance, under the identity that the step has now."""
    return record.model_copy(
        update={"key": key, "digest": step.digest, "identity": step.identity, "migrated_from": record.key}
    )
