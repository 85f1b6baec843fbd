"""Progress mark: whether an attempt got further than the one before it; without progress it is a crash loop."""

import hashlib
from collections.abc import Sequence
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.ledger.records import Failure, Records
from marin_dag.store.store import Entry, Store


def progress_mark(step: Step[Any], store: Store) -> str:
    """Return a mark that changes when an attempt leaves more to resume from: shards, checkpoints, milestones.

    Raises:
        StoreError: the store does not answer.
    """
    kept = store.list("work", f"{step.digest}/") + store.list("commits", f"{step.digest}@")
    return hashlib.sha256(repr(_resumable(step, kept)).encode()).hexdigest()[:16]


def standing_failures(step: Step[Any], records: Records) -> list[Failure]:
    """Return the failed attempts, oldest first; none if a stopped or killed attempt got further since the newest."""
    failures = records.failures(step.key)
    is_outdated = failures and failures[-1].progress not in ("", progress_mark(step, records.store))
    return [] if is_outdated else failures


def _resumable(step: Step[Any], kept: Sequence[Entry]) -> list[str]:
    """Return names of what the next attempt need not do again, without the attempt that left it.

    A file that is written again, or one more log, is no progress.
    """
    work, found = f"work/{step.digest}/", set()
    for entry in kept:
        path = entry.path.removeprefix(work)
        if path == entry.path:
            found.add(path)  # a milestone
        elif path.startswith("shards/"):
            found.add(path.split(".")[0])  # the epoch follows the dot
        elif step.kind.resumes_at is None:
            found.add(f"{path} {entry.size_in_bytes}")
        else:
            found |= {f"step {at}" for at in step.kind.resumes_at([path])}
    return sorted(found)
