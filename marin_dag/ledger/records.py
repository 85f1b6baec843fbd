"""Record: the one immutable object that makes an output exist.

An output exists if and only if `commits/<key>.json` exists. The record is created last, create-only, when every file of
its manifest is durable. So no reader sees half an output, the first of two racing attempts wins, and the files of a
killed attempt are garbage that nothing refers to.
"""

import datetime
import re
import uuid
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from marin_dag.ledger.checked_json import ChecksumError, checked_body, checked_json
from marin_dag.ledger.marks import add_mark
from marin_dag.ledger.output_warning import OutputWarning
from marin_dag.ledger.provenance import Provenance
from marin_dag.record_key import key_of, milestone_of
from marin_dag.store.redact import redact
from marin_dag.store.retry import patiently
from marin_dag.store.store import Entry, Store, StoreError

SCHEMA_VERSION = 1
COMMITS, LABELS, FAILURES = "commits", "labels", "failures"
CODES = "codes"
"""Folder of empty objects `<key>/<fingerprint>`: the code of versioned outputs, for plans, which read no records."""
ERROR_LINES = 12
ERROR_LINE_CHARACTERS = 2_000
ERROR_CHARACTERS = 200_000
"""More than is shown, so that a secret is not cut in two before redaction."""
CHECKSUM_THREADS = READ_THREADS = 8
MAX_DAMAGED_SHOWN = 5
NOTHING_UNCOVERED = b'"uncovered": []'
FILE_PATH_IN_BYTES = 256
"""Longest path of a file inside an output that a step name must leave room for."""


class FileEntry(BaseModel, frozen=True, extra="forbid"):
    """A file of an output; `path` is relative to the output, `crc32c` eight hex digits."""

    path: str
    size_in_bytes: int
    crc32c: str


class Record(BaseModel, frozen=True, extra="forbid"):
    """A finished step, or one milestone of it. `key` is the digest, followed by `@milestone` for a milestone."""

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
    warnings: tuple[OutputWarning, ...] = ()
    """Arguments of `context.warn_about_output` in the step."""
    provenance: Provenance


class Failure(BaseModel, frozen=True, extra="forbid"):
    """The end of an attempt that committed nothing; `error` is its first lines, without secrets."""

    key: str
    name: str
    attempt: str
    error_type: str
    error: str
    log_path: str
    is_transient: bool
    finished: str
    progress: str = ""
    """Mark of the state that the attempt left to resume from; equal marks mean no progress between two failures."""
    steps_to_force: tuple[str, ...] = Field(default=(), exclude=True)
    """Steps to run again with --force before this one can succeed. Not stored: it may be outdated when it is read."""


class OutputChangedError(Exception):
    """An output was written to after its step had returned, or a finished shard was changed."""


class UnreadableRecordError(StoreError):
    """A file at the path of a record is not the record that was written there."""


class Records:
    """The records of one prefix."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def committed_keys(self) -> frozenset[str]:
        """Return every key with a record, by one listing."""
        return frozenset(key_at(entry.path) for entry in self.store.list(COMMITS))

    def find(self, key: str) -> Record | None:
        try:
            data = self.store.read(record_path(key))
        except FileNotFoundError:
            return None
        return self.parsed(record_path(key), data)

    def parsed(self, path: str, data: bytes) -> Record:
        """Return the record in `data`, which was read from `path`; raise UnreadableRecordError if it is none."""
        try:
            return Record.model_validate_json(checked_body(data))
        except ChecksumError as error:
            raise UnreadableRecordError(self._damaged(path, error)) from error
        except ValidationError as error:
            raise UnreadableRecordError(
                f"{self.store.url(path)}: not a record of this version ({error.error_count()} errors, first: "
                f"{error.errors()[0]['msg']}). Use the version that wrote it or another --prefix, or delete the file "
                f"({self.store.delete_command(path)}), and its step runs again."
            ) from error

    def check(self, keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return what the attempts of these records used and their digests do not cover, by key.

        Raises:
            UnreadableRecordError: records are truncated or altered.
        """
        damaged, uncovered = [], {}
        for path, data in self.store.read_all([record_path(key) for key in keys]):
            try:
                checked_body(data)
            except ChecksumError as error:
                damaged.append(self._damaged(path, error))
            # Nothing is parsed for most records: a plan of 10,000 steps would take seconds.
            if b'"uncovered"' in data and NOTHING_UNCOVERED not in data:
                uncovered[key_at(path)] = self.parsed(path, data).provenance.uncovered
        if damaged:
            more = [f"and {len(damaged) - MAX_DAMAGED_SHOWN} more records"] if len(damaged) > MAX_DAMAGED_SHOWN else []
            raise UnreadableRecordError("\n".join([*damaged[:MAX_DAMAGED_SHOWN], *more]))
        return uncovered

    def _damaged(self, path: str, error: ChecksumError) -> str:
        return (
            f"{self.store.url(path)}: not the record that was written: {error}. Delete the file "
            f"({self.store.delete_command(path)}), and its step runs again."
        )

    def get(self, key: str) -> Record:
        """Return the record of `key`; raise StoreError if there is none."""
        record = self.find(key)
        if record is None:
            raise StoreError(f"{self.store.url(record_path(key))}: no such record. Run the step that makes it.")
        return record

    def commit(self, record: Record) -> Record:
        """Create the record; return the record in force, which another attempt may have created first."""
        # The label first: a kill between the two then leaves a label without a record, which readers skip, and not a
        # finished step that no plan finds by its name.
        self.label(record.name, record.key)
        code = record.identity.get("code", {})
        if code.get("policy") == "versioned":
            patiently(lambda: self.store.create(f"{CODES}/{record.key}/{code['fingerprint']}", b""))
        if record.warnings:
            add_mark(self.store, record.key, "warned")
        data = checked_json(record)
        return record if decide(self.store, record_path(record.key), data) == data else self.get(record.key)

    def find_all(self, keys: Collection[str]) -> dict[str, Record]:
        """Return the record of each key that has one."""
        with ThreadPoolExecutor(max(1, min(READ_THREADS, len(keys)))) as pool:
            found = list(pool.map(self.find, sorted(keys)))
        return {record.key: record for record in found if record is not None}

    def codes(self) -> dict[str, str]:
        """Return the code fingerprint of each versioned output by key, by one listing.

        Keys with attempts of different code are absent: only the record says which of them won.
        """
        found: dict[str, list[str]] = {}
        for entry in self.store.list(CODES):
            key, _, fingerprint = entry.path.removeprefix(f"{CODES}/").partition("/")
            found.setdefault(key, []).append(fingerprint)
        return {key: fingerprints[0] for key, fingerprints in found.items() if len(fingerprints) == 1}

    def label(self, name: str, key: str) -> None:
        patiently(lambda: self.store.create(f"{LABELS}/{name}/{key}", b""))

    def labels(self) -> dict[str, list[str]]:
        """Return the keys of each name, oldest first, by one listing; some may have no record."""
        found: dict[str, list[str]] = {}
        for entry in sorted(self.store.list(LABELS), key=lambda entry: entry.updated):
            name, _, key = entry.path.removeprefix(f"{LABELS}/").rpartition("/")
            found.setdefault(name, []).append(key)
        return found

    def names(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, keys in self.labels().items():
            for key in keys:
                found.setdefault(key, set()).add(name)
        return found

    def milestone_steps(self, digest: str) -> list[int]:
        """Return the steps of the committed milestones of a digest, in order, by one listing."""
        keys = (key_at(entry.path) for entry in self.store.list(COMMITS, f"{digest}@"))
        return sorted(milestone for key in keys if (milestone := milestone_of(key)) is not None)

    def milestones(self, digest: str) -> dict[int, Record]:
        return {at: self.get(key_of(digest, at)) for at in self.milestone_steps(digest)}

    def record_failure(self, failure: Failure) -> None:
        path = f"{FAILURES}/{failure.key}/{failure.attempt}.json"
        self.store.create(path, failure.model_dump_json(indent=1).encode())

    def failed_keys(self) -> frozenset[str]:
        """Return the keys with a failed attempt, by one listing; they may have been committed since."""
        return frozenset(entry.path.split("/")[1] for entry in self.store.list(FAILURES))

    def failures(self, key: str) -> list[Failure]:
        """Return the failures of `key`, oldest first; an unreadable one says so in place of its error."""
        entries = sorted(self.store.list(FAILURES, f"{key}/"), key=lambda entry: (entry.updated, entry.path))
        found = (self._failure(key, entry) for entry in entries)
        return [failure for failure in found if failure is not None]

    def _failure(self, key: str, entry: Entry) -> Failure | None:
        try:
            return Failure.model_validate_json(self.store.read(entry.path))
        except FileNotFoundError:  # `gc` has deleted it since the listing
            return None
        except ValidationError as error:
            return Failure(
                key=key,
                name="",
                attempt=entry.path.rpartition("/")[2].removesuffix(".json"),
                error_type=UnreadableRecordError.__name__,
                error=f"the failure cannot be read ({error.error_count()} errors): {self.store.url(entry.path)} was "
                "edited, damaged, or written by another version. Delete it; no step needs it.",
                log_path=entry.path,
                is_transient=False,
                finished=datetime.datetime.fromtimestamp(entry.updated, datetime.UTC).isoformat(timespec="seconds"),
            )


def decide(store: Store, path: str, proposal: bytes) -> bytes:
    """Create `path` with `proposal` or read what is there; return the bytes in force.

    A lost reply does no harm as long as no other process proposes the same bytes. Raise FileNotFoundError if another
    process wrote `path` and it has been deleted since.
    """

    def propose() -> bytes:
        return proposal if store.create(path, proposal) else store.read(path)

    return patiently(propose)


def record_path(key: str) -> str:
    return f"{COMMITS}/{key}.json"


def key_at(path: str) -> str:
    return path.removeprefix(f"{COMMITS}/").removesuffix(".json")


def new_attempt() -> str:
    """Return a new name for an attempt; names sort by time."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"


def attempt_path(name: str, digest: str, attempt: str) -> str:
    """Return the folder of an attempt, relative to the prefix; its log is this path with `.log`."""
    return f"outputs/{name}-{digest[:8]}/{attempt}"


def max_name_length(store: Store) -> int:
    """Return the most characters that a step name may have, so that `store` accepts the paths of its output."""
    return store.max_path_in_bytes - len(attempt_path("", "d" * 64, new_attempt())) - FILE_PATH_IN_BYTES


def make_manifest(
    store: Store, folder: str, expected: Sequence[FileEntry] = (), *, excluded: frozenset[str] = frozenset()
) -> tuple[FileEntry, ...]:
    """Make every file below `folder` durable; return each with size and checksum as the store has them.

    Args:
        expected: files that must be there with this size and checksum.
        excluded: folders inside `folder` that are outputs of their own.

    Raises:
        OutputChangedError: a file changed meanwhile, or differs from what was expected.
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
            f"{store.url(min(changed).path)}: written after the step function had returned. Close every file and join "
            "every thread before returning."
        )
    found = {entry.path: entry for entry in manifest}
    for entry in expected:
        if found.get(entry.path) != entry:
            raise OutputChangedError(
                f"{store.url(folder)}/{entry.path}: changed after its shard was finished (then {entry.size_in_bytes} "
                f"bytes, now {found.get(entry.path) or 'missing'}). Write other files beside the folder of the shard, "
                "and leave finished shards as they are."
            )
    return manifest


def first_lines(error: BaseException) -> str:
    """Return the first lines of an error, without secrets."""
    text = (str(error).strip() or type(error).__name__)[:ERROR_CHARACTERS]
    lines = redact(re.sub(r"\x1b\[[0-9;]*m", "", text)).splitlines()
    most = ERROR_LINE_CHARACTERS
    lines = [line if len(line) <= most else f"{line[:most]} ..." for line in lines]
    if len(lines) > ERROR_LINES:
        lines = [*lines[:ERROR_LINES], f"... ({len(lines) - ERROR_LINES} more lines in the log)"]
    return "\n".join(lines)
