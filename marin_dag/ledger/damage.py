"""Damage: files of an output that differ from its record, and their repair from equal bytes."""

import json
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from pydantic import BaseModel

from marin_dag.errors import UserError, listed
from marin_dag.identity.identity import digest_of_document
from marin_dag.ledger.records import CHECKSUM_THREADS, FileEntry, Record, Records
from marin_dag.record_key import digest_of
from marin_dag.store.redact import HIDDEN
from marin_dag.store.retry import patiently
from marin_dag.store.store import Store
from marin_dag.values.walk import references_in

SHOWN_FILES = 5
MAX_FINDINGS = 20
EXTRA = "is not in the manifest"
HIDDEN_SECRET = re.compile(rf"{re.escape(HIDDEN)}(?![0-9a-f]{{12}})")
"""A secret of the environment; one that the identity itself hides leaves a fingerprint."""


class Finding(NamedTuple):
    """A file that differs from its record."""

    path: str
    """Relative to the output."""
    what: str


def findings_of(store: Store, record: Record, others: Iterable[Record] = ()) -> list[Finding]:
    """Return every file of an output that is missing, extra, or has other bytes.

    The outputs of `others`, such as milestones, may lie inside this one.
    """
    inner = tuple(f"{other.output_path}/" for other in others if other.output_path.startswith(f"{record.output_path}/"))
    there = {
        entry.path.removeprefix(f"{record.output_path}/")
        for entry in store.list(record.output_path)
        if not entry.path.startswith(inner)
    }
    wanted = {entry.path: entry for entry in record.manifest}

    def compared(path: str) -> Finding | None:
        return compare(wanted[path], *patiently(lambda: store.settle(f"{record.output_path}/{path}")))

    with ThreadPoolExecutor(CHECKSUM_THREADS) as pool:
        found = [finding for finding in pool.map(compared, wanted.keys() & there) if finding is not None]
    found += [Finding(path, "is missing") for path in wanted.keys() - there]
    found += [Finding(path, EXTRA) for path in there - wanted.keys()]
    return sorted(found)


def finding_lines(findings: Sequence[Finding]) -> str:
    """Return a line for each of the first `MAX_FINDINGS`, and their number if there are more."""
    lines = [f"  {finding.path} {finding.what}" for finding in sorted(findings)[:MAX_FINDINGS]]
    if len(findings) > MAX_FINDINGS:
        lines.append(f"  and {len(findings) - MAX_FINDINGS} more")
    return "\n".join(lines)


def identity_finding(record: Record, key: str) -> str:
    """Return how the identity in a record differs from the key that the record was found under; "" if it does not."""
    digest = digest_of_document(record.identity)
    if record.key == key and digest == record.digest == digest_of(key):
        return ""
    if record.key == key and HIDDEN_SECRET.search(json.dumps(record.identity)):
        return ""  # hidden in the record and not in the digest: a config had the value of a secret of the environment
    return f"holds an identity with digest {digest[:12]}, key {record.key[:12]}, and lies under the key {key[:12]}"


def compare(entry: FileEntry, size: int, checksum: str) -> Finding | None:
    """Return how a file differs from its manifest entry, or None."""
    if size != entry.size_in_bytes:
        return Finding(entry.path, f"has {size} bytes, recorded {entry.size_in_bytes}")
    if checksum != entry.crc32c:
        return Finding(entry.path, f"has CRC32C {checksum}, recorded {entry.crc32c}")
    return None


class DamagedInputError(UserError):
    """Committed inputs of a step are damaged; running `steps_to_force` with --force repairs them."""

    def __init__(self, message: str, steps_to_force: Sequence[str]) -> None:
        super().__init__(message)
        self.steps_to_force = tuple(steps_to_force)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.steps_to_force)


def check_input_files(records: Records, config: BaseModel) -> None:
    """Raise DamagedInputError if files of the inputs in `config` are missing or have another size.

    Their contents are checked by the steps that read them, and by `verify`.
    """
    inputs = {item.key: item.name for _, item in references_in(config) if not item.is_growing}
    if len(inputs) < 2:
        losses = [_loss(records, *item) for item in inputs.items()]
    else:
        with ThreadPoolExecutor(CHECKSUM_THREADS) as pool:
            losses = list(pool.map(lambda item: _loss(records, *item), inputs.items()))
    if any(losses):
        names = [name for name, loss in zip(inputs.values(), losses, strict=True) if loss]
        raise DamagedInputError("\n".join(filter(None, losses)), steps_to_force=names)


def _loss(records: Records, key: str, name: str) -> str:
    """Return a line about the missing files of an input, with the command that makes them again."""
    record = records.find(key)
    if record is None:
        return ""
    listed = patiently(lambda: records.store.list(record.output_path))
    there = {entry.path: entry.size_in_bytes for entry in listed}
    wanted = {f"{record.output_path}/{entry.path}": entry.size_in_bytes for entry in record.manifest}
    lost = [path for path, size in wanted.items() if there.get(path) != size]
    if not lost:
        return ""
    return (
        f"the input {name}: {len(lost)} of its {len(wanted)} files are missing or cut short, such as "
        f"{records.store.url(lost[0])}. To make them again, run the same command with  --force {name} --until {name}"
    )


class NotReproducedError(UserError):
    """A forced step made another output than the first time."""


def repair_first_output(
    store: Store, first: Record, folder: str, manifest: tuple[FileEntry, ...], result: Any, others: Iterable[Record]
) -> tuple[str, ...]:
    """Compare a new output in `folder` with the first one, which stays, and replace damaged files of the first one.

    Extra files stay. A kill meanwhile leaves a file missing, which the next repair finds. `others` are the records of
    the run's milestones, which may lie in the first output.

    Returns:
        The replaced files, relative to the output.

    Raises:
        NotReproducedError: the outputs differ.
    """
    where = "" if first.milestone is None else f" at {first.milestone}"
    differing = sorted({entry.path for entry in set(manifest) ^ set(first.manifest)})
    found = []
    if differing:
        found.append(f"other files{where}: {listed(differing, SHOWN_FILES)}")
    if first.result != result:
        found.append(f"another result{where}: recorded {first.result}, now {result}")
    if found:
        raise NotReproducedError(
            f"the forced step made {'; and '.join(found)}. It is not deterministic: something that shapes its output "
            f"is not in its identity. Make that a field or an input. The first output stays: "
            f"{store.url(first.output_path)} (the new one is {store.url(folder)})."
        )
    damaged = [found.path for found in findings_of(store, first, others) if found.what != EXTRA]
    for path in damaged:
        target = f"{first.output_path}/{path}"
        store.delete(target)
        store.copy(f"{folder}/{path}", target)
        store.settle(target)
    return tuple(damaged)
