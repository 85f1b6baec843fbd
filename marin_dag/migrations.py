"""Migrations: when the scheme of digests changes, what was made under the old one stays reachable under the new.

A new scheme gives every step another digest, though nothing about the step changed. Whoever raises
`identity.SCHEMA_VERSION` keeps the encoder of the scheme before; `migrate` asks it for the digest that each step of a
graph had, and gives the outputs found there a second record, under the digest that the step has now. The old records
stay, outputs are not touched, and what was made says where it came from. What is in progress begins again from its last
milestone: work and leases are fenced by the old digest.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

from marin_dag.acceptances import Acceptances
from marin_dag.diff import code_difference
from marin_dag.identity import Identity, digest_of_document
from marin_dag.provenance import now, user_name
from marin_dag.records import Record, Records
from marin_dag.step import Step

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
    committed = set(records.committed_keys())
    migrations: dict[tuple[str, str], Migration] = {}
    keys: list[str] = []
    refused: list[str] = []
    for step in steps:
        for encoder in previous:
            old = _earlier(step, encoder)
            for old_key in sorted(key for key in committed if key.partition("@")[0] == old.digest):
                _, at, milestone = old_key.partition("@")
                new_key = f"{step.digest}{at}{milestone}"
                if new_key in committed:
                    continue
                record = records.get(old_key)
                if _is_drifted(records, record, old):
                    where = f"{step.name} ({old_key[:8]}{at}{milestone})"
                    refused.append(
                        f"{where}: its code changed since under one declared version; `accept` or `bump` it under the "
                        "old scheme, then migrate."
                    )
                    continue
                migration = _migration(step, old)
                # Before the records that it explains: a kill between the two leaves a mapping that is true.
                records.store.create(_path(migration), migration.model_dump_json(indent=1).encode())
                records.commit(_carried_over(record, step, new_key))
                migrations[old.digest, step.digest] = migration
                keys.append(new_key)
                committed.add(new_key)
    return Migrated(tuple(migrations.values()), tuple(keys), tuple(dict.fromkeys(refused)))


def migrations_of(records: Records, digest: str) -> list[Migration]:
    """The digests of earlier schemes whose outputs `digest` took over."""
    entries = records.store.list(MIGRATIONS, f"{digest}/")
    return [Migration.model_validate_json(records.store.read(entry.path)) for entry in entries]


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
