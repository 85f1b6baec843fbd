"""Record: the one immutable object that makes an output exist.

An output is there if and only if `commits/<key>.json` is. The record is created last, create-only, when every file of
its manifest is durable; so nobody ever reads half an output, the first of two racing attempts wins, and what a killed
attempt left is garbage that nothing refers to.
"""

import datetime
import re
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from marin_dag.ledger.provenance import Provenance
from marin_dag.store.redact import redact
from marin_dag.store.retry import patiently
from marin_dag.store.store import Entry, Store, StoreError

SCHEMA_VERSION = 1
COMMITS, LABELS, FAILURES = "commits", "labels", "failures"
CODES = "codes"
"""Below it `<key>/<fingerprint>`: with which code a versioned output was made, for a plan that reads no record."""
ERROR_LINES = 12
ERROR_LINE = 2_000
"""Characters."""
ERROR_CHARACTERS = 200_000
"""More than `ERROR_LINES` of `ERROR_LINE`, so that nothing that is shown was cut before it was redacted."""
CHECKSUM_THREADS = 8
ROOM_OF_A_FILE_IN_BYTES = 256
"""Kept for the path of a file inside an output; the longest are of arrays in checkpoints."""


class FileEntry(BaseModel, frozen=True, extra="forbid"):
    """One file of an output; `path` is relative to the output, `crc32c` eight hex digits."""

    path: str
    size_in_bytes: int
    crc32c: str


class Record(BaseModel, frozen=True, extra="forbid"):
    """A finished step, or one milestone of it. `key` is the digest, and `@milestone` for a trajectory."""

    schema_version: int = SCHEMA_VERSION
    key: str
    digest: str
    milestone: int | None = None
    name: str
    kind: str
    identity: dict[str, Any]
    result: Any
    output_path: str
    """Relative to the prefix, so that a whole prefix can move."""
    attempt: str
    manifest: tuple[FileEntry, ...]
    provenance: Provenance
    migrated_from: str | None = None
    """Key of the record of an earlier digest scheme that this one carries on; the output is that one's."""


class Failure(BaseModel, frozen=True, extra="forbid"):
    """How an attempt ended that committed nothing. `error` is its first lines, without secrets."""

    key: str
    name: str
    attempt: str
    error_type: str
    error: str
    log_path: str
    is_transient: bool
    finished: str
    progress: str = ""
    """What the attempt left to resume from; two failures with the same mark got nowhere between them."""
    steps_to_force: tuple[str, ...] = Field(default=(), exclude=True)
    """Steps whose outputs are to be made again first: without that the same command fails in the same way. Not of the
    record: what a person is to do may be done by the time it is read."""


class OutputChangedError(Exception):
    """An output was still being written when its step had returned, or no longer holds what a shard wrote."""


class UnreadableRecordError(StoreError):
    """What lies where a record does is none."""


class Records:
    """The records of one prefix."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def committed_keys(self) -> frozenset[str]:
        """Every key with a record, by one listing."""
        return frozenset(key_at(entry.path) for entry in self.store.list(COMMITS))

    def find(self, key: str) -> Record | None:
        """The record of `key`, or None."""
        try:
            data = self.store.read(record_path(key))
        except FileNotFoundError:
            return None
        return self.parsed(record_path(key), data)

    def parsed(self, path: str, data: bytes) -> Record:
        """The record that `path` holds.

        Raises:
            UnreadableRecordError: it holds none.
        """
        try:
            return Record.model_validate_json(data)
        except ValidationError as error:
            raise UnreadableRecordError(
                f"{self.store.url(path)}: not a record of this program ({error.error_count()} errors, "
                f"first: {error.errors()[0]['msg']}); it was written by another version, edited or damaged. Use the "
                "version that wrote it, or another --prefix; or delete the file, and its step is run again."
            ) from error

    def get(self, key: str) -> Record:
        """The record of `key`; raises StoreError where there is none."""
        record = self.find(key)
        if record is None:
            raise StoreError(f"{self.store.url(record_path(key))}: no such record; run the step that makes it.")
        return record

    def commit(self, record: Record) -> Record:
        """Makes the output exist; returns the record that does, which another attempt may have created first."""
        # The label first: a kill between the two leaves a label to nothing, which readers skip. The other way round
        # it would leave a finished step that no later plan finds by its name.
        self.label(record.name, record.key)
        code = record.identity.get("code", {})
        if code.get("policy") == "versioned":
            patiently(lambda: self.store.create(f"{CODES}/{record.key}/{code['fingerprint']}", b""))
        data = record.model_dump_json(indent=1).encode()
        return record if decide(self.store, record_path(record.key), data) == data else self.get(record.key)

    def codes(self) -> dict[str, str]:
        """Keys of versioned outputs to the fingerprint of the code that made them, by one listing.

        A key is left out where two attempts with different code tried: only the record says which of them won.
        """
        found: dict[str, str] = {}
        ambiguous = set()
        for entry in self.store.list(CODES):
            key, _, fingerprint = entry.path.removeprefix(f"{CODES}/").partition("/")
            if key in found:
                ambiguous.add(key)
            found[key] = fingerprint
        return {key: fingerprint for key, fingerprint in found.items() if key not in ambiguous}

    def label(self, name: str, key: str) -> None:
        """Lets `name` lead to `key`."""
        patiently(lambda: self.store.create(f"{LABELS}/{name}/{key}", b""))

    def labels(self) -> dict[str, list[str]]:
        """Names to the keys that were made under them, oldest first, by one listing. May hold keys without record."""
        found: dict[str, list[str]] = {}
        for entry in sorted(self.store.list(LABELS), key=lambda entry: entry.updated):
            name, _, key = entry.path.removeprefix(f"{LABELS}/").rpartition("/")
            found.setdefault(name, []).append(key)
        return found

    def names(self) -> dict[str, set[str]]:
        """Keys to the names that lead to them, by one listing."""
        found: dict[str, set[str]] = {}
        for name, keys in self.labels().items():
            for key in keys:
                found.setdefault(key, set()).add(name)
        return found

    def milestone_steps(self, digest: str) -> list[int]:
        """Where a trajectory has committed milestones, in order, by one listing."""
        return sorted(int(key_at(entry.path).rpartition("@")[2]) for entry in self.store.list(COMMITS, f"{digest}@"))

    def milestones(self, digest: str) -> dict[int, Record]:
        """Committed milestones of a trajectory, by step."""
        return {at: self.get(f"{digest}@{at}") for at in self.milestone_steps(digest)}

    def record_failure(self, failure: Failure) -> None:
        """Keeps how an attempt ended."""
        path = f"{FAILURES}/{failure.key}/{failure.attempt}.json"
        self.store.create(path, failure.model_dump_json(indent=1).encode())

    def failed_keys(self) -> frozenset[str]:
        """Keys with at least one failed attempt, by one listing; a key may have been committed since."""
        return frozenset(entry.path.split("/")[1] for entry in self.store.list(FAILURES))

    def failures(self, key: str) -> list[Failure]:
        """Failed attempts of `key`, oldest first; one that cannot be read says so in place of its error."""
        entries = sorted(self.store.list(FAILURES, f"{key}/"), key=lambda entry: (entry.updated, entry.path))
        found = (self._failure(key, entry) for entry in entries)
        return [failure for failure in found if failure is not None]

    def _failure(self, key: str, entry: Entry) -> Failure | None:
        try:
            return Failure.model_validate_json(self.store.read(entry.path))
        except FileNotFoundError:  # `gc` has taken it away since the listing
            return None
        except ValidationError as error:
            return Failure(
                key=key,
                name="",
                attempt=entry.path.rpartition("/")[2].removesuffix(".json"),
                error_type=UnreadableRecordError.__name__,
                error=f"how it failed cannot be read ({error.error_count()} errors): {self.store.url(entry.path)} was "
                "edited, damaged, or written by another version. No step needs it: delete it.",
                log_path=entry.path,
                is_transient=False,
                finished=datetime.datetime.fromtimestamp(entry.updated, datetime.UTC).isoformat(timespec="seconds"),
            )


def decide(store: Store, path: str, proposal: bytes) -> bytes:
    """What `path` holds from now on: `proposal`, or what somebody wrote before. A lost reply does no harm, if no other
    proposes the same bytes.

    Raises:
        FileNotFoundError: somebody wrote it before and it has been deleted since.
    """

    def propose() -> bytes:
        return proposal if store.create(path, proposal) else store.read(path)

    return patiently(propose)


def record_path(key: str) -> str:
    """Where the record of `key` lies."""
    return f"{COMMITS}/{key}.json"


def key_at(path: str) -> str:
    """The inverse of `record_path`."""
    return path.removeprefix(f"{COMMITS}/").removesuffix(".json")


def new_attempt() -> str:
    """A name for an attempt: sorts by time for people, and never repeats."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"


def attempt_path(name: str, digest: str, attempt: str) -> str:
    """Folder of an attempt, relative to the prefix; its log is this path with `.log`."""
    return f"outputs/{name}-{digest[:8]}/{attempt}"


def max_name_length(store: Store) -> int:
    """Of a step: with more characters, `store` would refuse paths of its output."""
    return store.max_path_in_bytes - len(attempt_path("", "d" * 64, new_attempt())) - ROOM_OF_A_FILE_IN_BYTES


def make_manifest(
    store: Store, folder: str, expected: Sequence[FileEntry] = (), *, excluded: frozenset[str] = frozenset()
) -> tuple[FileEntry, ...]:
    """Every file below `folder`, made durable and checksummed as the store holds it.

    Args:
        store: where.
        folder: relative to the prefix.
        expected: files whose size and checksum are known already; they must be there unchanged.
        excluded: folders inside it that are outputs of their own.

    Raises:
        OutputChangedError: a file changed meanwhile, or is not what was expected.
    """
    beginnings = tuple(f"{folder}/{inner}/" for inner in excluded)
    before = [entry for entry in store.list(folder) if not entry.path.startswith(beginnings)]
    with ThreadPoolExecutor(CHECKSUM_THREADS) as pool:
        settled = list(pool.map(store.settle, [entry.path for entry in before]))
    manifest = tuple(
        FileEntry(path=entry.path.removeprefix(f"{folder}/"), size_in_bytes=size, crc32c=checksum)
        for entry, (size, checksum) in zip(before, settled, strict=True)
    )
    after = {entry for entry in store.list(folder) if not entry.path.startswith(beginnings)}
    changed = set(before) ^ after
    changed |= {entry for entry, (size, _) in zip(before, settled, strict=True) if size != entry.size_in_bytes}
    if changed:
        raise OutputChangedError(
            f"{store.url(min(changed).path)}: written after the step function had returned; close every file and join "
            "every thread before returning."
        )
    found = {entry.path: entry for entry in manifest}
    for entry in expected:
        if found.get(entry.path) != entry:
            raise OutputChangedError(
                f"{store.url(folder)}/{entry.path}: changed after its shard was finished (then {entry.size_in_bytes} "
                f"bytes, now {found.get(entry.path) or 'gone'}); a step may add files to a shard's folder's siblings, "
                "never change a finished shard."
            )
    return manifest


def first_lines(error: BaseException) -> str:
    """The part of an error that a person reads first, without secrets."""
    text = (str(error).strip() or type(error).__name__)[:ERROR_CHARACTERS]
    lines = redact(re.sub(r"\x1b\[[0-9;]*m", "", text)).splitlines()
    lines = [line if len(line) <= ERROR_LINE else f"{line[:ERROR_LINE]} ..." for line in lines]
    if len(lines) > ERROR_LINES:
        lines = [*lines[:ERROR_LINES], f"... ({len(lines) - ERROR_LINES} more lines in the log)"]
    return "\n".join(lines)
