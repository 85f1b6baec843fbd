"""Work files: what lies below `work/<digest>/`, the state that an unfinished step resumes from.

A step may mark a folder there as one to keep, by a file named `KEEP_MARKER` in it. Such a folder is kept as long as the
output of its step. A folder whose name ends in `-epoch-N` belongs to the attempt with lease epoch N.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from marin_dag.ledger.records import Failure, Records
from marin_dag.record_key import digest_of
from marin_dag.store.store import Entry, Store, StoreError

WORK = "work"
EVENTS = "events"
"""Folder of event logs: how the output was made, on which hardware, and what went wrong."""
KEEP_MARKER = "good.json"
SEALS = (KEEP_MARKER, "manifest.json")
"""Files that declare the files beside them complete. `gc` deletes them first and a copy writes them last, so a kill
leaves nothing that looks complete and is not."""
CODE = "code"
"""Folder of marks: which code wrote the state. The code of a versioned step is not in its identity, so that an attempt
may find a state that other code has written; a plan compares the marks with the code at hand."""
ResumesAt = Callable[[Sequence[str]], Iterable[int]]
"""Milestone numbers that the files of a work folder can resume at."""


def kept_folders(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the files of each marked folder; `entries` are files below the work folders of steps."""
    entries = list(entries)
    marked = (entry.path.removesuffix(f"/{KEEP_MARKER}") for entry in entries if entry.path.endswith(f"/{KEEP_MARKER}"))
    marks = {folder for folder in marked if folder.count("/") >= 2}  # below work/<digest>, never all of it
    found: dict[str, list[Entry]] = {folder: [] for folder in sorted(marks)}
    for entry in entries:
        folders = entry.path.split("/")
        inside = next((f for n in range(len(folders)) if (f := "/".join(folders[:n])) in marks), None)
        if inside is not None:
            found[inside].append(entry)
    return found


def seal_rank(path: str) -> int:
    """Return the place of a file among `SEALS`; other files come after them."""
    name = path.rpartition("/")[2]
    return SEALS.index(name) if name in SEALS else len(SEALS)


def num_finished_shards(paths: Iterable[str]) -> int:
    return len({(path.rpartition("/")[0], key_and_epoch(path)[0]) for path in paths if path.startswith("shards/")})


def key_and_epoch(path: str) -> tuple[str, int]:
    """Return the key of a finished shard and the lease epoch in which it was finished."""
    key, _, epoch = path.rpartition("/")[2].removesuffix(".json").partition(".")
    return key, int(epoch or 0)


class _Code(BaseModel, frozen=True, extra="allow"):
    fingerprint: str
    definitions: dict[str, str]


class _Mark(BaseModel, frozen=True, extra="ignore"):
    code: _Code


def write_work_code(store: Store, work: str, identity: dict[str, Any], resumes_at: ResumesAt | None) -> None:
    """Mark the folder `work` with the code of this attempt, before the attempt saves anything there.

    The marks of other code are deleted if there is no state to resume from: such attempts ended before they saved,
    often by the error for which the code was then changed.
    """
    path = f"{work}/{CODE}/{identity['code']['fingerprint']}.json"
    files = [entry.path.removeprefix(f"{work}/") for entry in store.list(work)]
    if resumes_at is not None and not list(resumes_at(files)):
        for other in files:
            if other.startswith(f"{CODE}/") and f"{work}/{other}" != path:
                store.delete(f"{work}/{other}")
    if not store.exists(path):
        store.write(path, json.dumps({"code": identity["code"]}, sort_keys=True).encode())


def work_codes(store: Store, digest: str, paths: Iterable[str]) -> list[dict[str, Any]]:
    """Return the code part of the identity of each attempt that left a mark; `paths` are those of the work folder."""
    marks = sorted(path for path in paths if path.startswith(f"{CODE}/"))
    found = []
    for path in marks:
        try:
            found.append(_Mark.model_validate_json(store.read(f"work/{digest}/{path}")).model_dump())
        except FileNotFoundError:  # an attempt has started since the listing and deleted the mark
            continue
        except ValidationError as error:
            raise StoreError(
                f"{store.url(f'work/{digest}/{path}')}: not readable ({error.error_count()} errors), so it is not "
                f"known which code wrote the state beside it. If it was today's code, delete the file; otherwise "
                f"delete the folder {digest}."
            ) from None
    return found


def progress_mark(store: Store, digest: str, resumes_at: ResumesAt | None) -> str:
    """Return a text that changes when an attempt leaves more to resume from: shards, checkpoints, milestones."""
    kept = store.list("work", f"{digest}/") + store.list("commits", f"{digest}@")
    return hashlib.sha256(repr(_resumable(digest, resumes_at, kept)).encode()).hexdigest()[:16]


def standing_failures(records: Records, key: str, resumes_at: ResumesAt | None) -> list[Failure]:
    """Return the failed attempts of a record key, oldest first; none if a later attempt got further."""
    failures = records.failures(key)
    mark = failures[-1].progress if failures else ""
    return [] if mark and mark != progress_mark(records.store, digest_of(key), resumes_at) else failures


def _resumable(digest: str, resumes_at: ResumesAt | None, kept: Sequence[Entry]) -> list[str]:
    """Return what the next attempt need not repeat, under names without the attempt or the epoch that wrote it: to
    write the same again is no progress."""
    work, found = f"work/{digest}/", set()
    for entry in kept:
        path = entry.path.removeprefix(work)
        if path == entry.path:
            found.add(path)  # a milestone
        elif path.startswith("shards/"):
            found.add(path.split(".")[0])  # the epoch follows the dot
        elif resumes_at is None:
            found.add(f"{path} {entry.size_in_bytes}")
        else:
            found |= {f"step {at}" for at in resumes_at([path])}
    return sorted(found)
