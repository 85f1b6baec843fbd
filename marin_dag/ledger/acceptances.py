"""Acceptances: the user's statements that changed code makes the same output.

Each is an entry of a log below `accepted/<digest>/`, created once and never changed; a revocation is another entry. An
acceptance makes two code fingerprints equivalent for one identity and leaves the record of the output as it is.
"""

from typing import Literal

from pydantic import BaseModel, ValidationError

from marin_dag.errors import UserError
from marin_dag.identity.diff import CodeChanged
from marin_dag.ledger.checked_json import ChecksumError, checked_body, checked_json
from marin_dag.ledger.provenance import now, user_name
from marin_dag.store.store import Store, StoreError

ACCEPTED = "accepted"


class Acceptance(BaseModel, frozen=True, extra="forbid"):
    """An entry of the log of `digest`: two code fingerprints are equivalent, or are so no longer."""

    event: Literal["accepted", "revoked"]
    digest: str
    name: str
    old_code: str
    new_code: str
    definitions: tuple[str, ...]
    """Definitions that differ between the two."""
    author: str
    because: str
    created: str


class Acceptances:
    """The acceptances of one prefix, listed once when first needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._paths: dict[str, list[str]] | None = None

    def digests(self) -> tuple[str, ...]:
        return tuple(self._listed)

    def log(self, digest: str) -> list[Acceptance]:
        return [self.read(path) for path in self._listed.get(digest, ())]

    @property
    def _listed(self) -> dict[str, list[str]]:
        if self._paths is None:
            self._paths = {}
            for entry in self._store.list(ACCEPTED):
                self._paths.setdefault(entry.path.split("/")[1], []).append(entry.path)
        return self._paths

    def in_force(self, digest: str) -> list[Acceptance]:
        found: dict[frozenset[str], Acceptance] = {}
        for entry in self.log(digest):
            found.pop(_pair(entry), None)
            if entry.event == "accepted":
                found[_pair(entry)] = entry
        return list(found.values())

    def path(self, digest: str, old_code: str, new_code: str) -> tuple[Acceptance, ...]:
        """Return acceptances that lead from one fingerprint to the other; none if the two are not equivalent."""
        return self._ways(digest, old_code).get(new_code, ())

    def equivalent(self, digest: str, code: str) -> tuple[str, ...]:
        """Return the other fingerprints that are equivalent to this one."""
        return tuple(other for other in self._ways(digest, code) if other != code)

    def _ways(self, digest: str, old_code: str) -> dict[str, tuple[Acceptance, ...]]:
        in_force = self.in_force(digest)
        ways: dict[str, tuple[Acceptance, ...]] = {old_code: ()}
        pending = [old_code]
        for code in pending:
            for entry in in_force:
                if code in (entry.old_code, entry.new_code):
                    other = entry.new_code if code == entry.old_code else entry.old_code
                    if other not in ways:
                        ways[other] = (*ways[code], entry)
                        pending.append(other)
        return ways

    def accept(self, digest: str, name: str, difference: CodeChanged, because: str) -> Acceptance:
        acceptance = Acceptance(
            event="accepted",
            digest=digest,
            name=name,
            old_code=difference.old_fingerprint,
            new_code=difference.new_fingerprint,
            definitions=(*difference.changed, *difference.added, *difference.removed),
            author=user_name(),
            because=because,
            created=now(),
        )
        return self._append(acceptance)

    def revoke(self, acceptance: Acceptance, because: str) -> Acceptance:
        changes = {"event": "revoked", "author": user_name(), "because": because, "created": now()}
        return self._append(acceptance.model_copy(update=changes))

    def _append(self, entry: Acceptance) -> Acceptance:
        data = checked_json(entry)
        number = len(self._store.list(ACCEPTED, f"{entry.digest}/"))
        # Entries are never deleted, so the next free number is never below their count.
        while not self._store.create(f"{ACCEPTED}/{entry.digest}/{number:06d}.json", data):
            number += 1
        self._paths = None
        return entry

    def read(self, path: str) -> Acceptance:
        """Return the entry at `path`; raise StoreError if the file is not an entry."""
        try:
            return Acceptance.model_validate_json(checked_body(self._store.read(path)))
        except (ChecksumError, ValidationError) as error:
            reason = error if isinstance(error, ChecksumError) else f"{error.error_count()} errors"
            raise StoreError(
                f"{self._store.url(path)}: not an acceptance as it was written ({reason}). Move the file away, and "
                "accept again where that is right."
            ) from None


def require_reason(command: str, because: str) -> None:
    if not because.strip():
        raise UserError(f'{command}: give the reason, for later readers: --because "…".')


def _pair(entry: Acceptance) -> frozenset[str]:
    return frozenset((entry.old_code, entry.new_code))
