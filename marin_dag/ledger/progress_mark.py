"""Progress marks: whether an attempt got further than the one before it, which tells a crash loop from a long step."""

import hashlib
from collections.abc import Callable, Iterable, Sequence

from marin_dag.ledger.records import Failure, Records
from marin_dag.store.store import Entry, Store

ResumesAt = Callable[[Sequence[str]], Iterable[int]]
"""Milestone numbers that the files of a work folder can resume at."""


def progress_mark(store: Store, digest: str, resumes_at: ResumesAt | None) -> str:
    """Return a text that changes when an attempt leaves more to resume from: shards, checkpoints, milestones.

    Raises:
        StoreError: the store does not answer.
    """
    kept = store.list("work", f"{digest}/") + store.list("commits", f"{digest}@")
    return hashlib.sha256(repr(_resumable(digest, resumes_at, kept)).encode()).hexdigest()[:16]


def standing_failures(records: Records, key: str, resumes_at: ResumesAt | None) -> list[Failure]:
    """Return the failed attempts of a record key, oldest first; none if a later attempt got further."""
    failures = records.failures(key)
    digest = key.partition("@")[0]
    mark = failures[-1].progress if failures else ""
    return [] if mark and mark != progress_mark(records.store, digest, resumes_at) else failures


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
