"""Scope of a copy: the outputs of steps, their newest good checkpoints, and the small objects that belong to outputs.

Leases, failures and other state of unfinished work are not copied: the leases of their own prefix fence them.
"""

import functools
import itertools
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from marin_dag.graph.step import Step
from marin_dag.keep.copy.copier import Copied, Copier
from marin_dag.ledger.acceptances import ACCEPTED
from marin_dag.ledger.pins import PINS
from marin_dag.ledger.records import CHECKSUM_THREADS, LABELS, FileEntry
from marin_dag.ledger.requests import REQUESTS
from marin_dag.ledger.work_files import CODE, WORK, kept_folders, seal_rank, without_lease_epoch
from marin_dag.store.retry import patiently
from marin_dag.store.store import Entry, Store


def outputs_of(steps: Iterable[Step[Any]], committed: Iterable[str]) -> dict[str, str]:
    """Return the names of the committed outputs of `steps` by key, inputs first; every milestone counts.

    Parts of a growing output are not listed, since the whole output contains them.
    """
    milestones: dict[str, list[int]] = {}
    keys = set(committed)
    for key in keys:
        digest, at, milestone = key.partition("@")
        if at:
            milestones.setdefault(digest, []).append(int(milestone))
    steps = tuple(steps)
    phases: dict[str, list[Step[Any]]] = {}
    for step in sorted((step for step in steps if step.until is not None), key=lambda step: step.until or 0):
        phases.setdefault(step.digest, []).append(step)
    found: dict[str, str] = {}
    for step in steps:
        if step.until is None:
            if step.key in keys:
                found.setdefault(step.key, step.name)
            continue
        for at_step in sorted(milestones.pop(step.digest, ())):
            found[f"{step.digest}@{at_step}"] = f"{_phase_at(phases[step.digest], at_step).name}@{at_step}"
    return found


def _phase_at(phases: Sequence[Step[Any]], at: int) -> Step[Any]:
    """Return the first of `phases`, which are sorted, that contains step `at`."""
    return next((phase for phase in phases if (phase.until or 0) >= at), phases[-1])


class GoodCheckpoint(NamedTuple):
    """A good checkpoint that the target lacks."""

    digest: str
    name: str
    """Name for the user, such as `phoenix@1100`."""
    folder: str
    """Folder at the source, relative to the prefix."""
    files: tuple[Entry, ...]


def good_checkpoints(source: Store, target: Store, steps: Iterable[Step[Any]], *, check: bool) -> list[GoodCheckpoint]:
    """Return the newest good checkpoint of each run of `steps` that the target lacks, or all of them to be checked.

    A run that has saved states at the target has none: its own count there.

    Raises:
        StoreError: a store failed.
    """
    phases: dict[str, list[Step[Any]]] = {}
    for step in steps:
        if step.until is not None and step.kind.resumes_at is not None:
            phases.setdefault(step.digest, []).append(step)
    found = (_newest(source, target, digest, of_run, check=check) for digest, of_run in phases.items())
    return [checkpoint for checkpoint in found if checkpoint is not None]


def _newest(
    source: Store, target: Store, digest: str, phases: Sequence[Step[Any]], *, check: bool
) -> GoodCheckpoint | None:
    folder = f"{WORK}/{digest}/"
    resumes_at = phases[0].kind.resumes_at
    assert resumes_at is not None

    def steps_in(paths: Iterable[str]) -> list[int]:
        return list(resumes_at([path.removeprefix(folder) for path in paths]))

    good = kept_folders(patiently(lambda: source.list(WORK, f"{digest}/")))
    complete = {at: place for place, files in good.items() for at in steps_in(file.path for file in files)}
    if not complete:
        return None
    there = {entry.path: entry.size_in_bytes for entry in patiently(lambda: target.list(WORK, f"{digest}/"))}
    if steps_in(path for path in there if path != without_lease_epoch(path)):
        return None
    at = max(complete)
    files = good[complete[at]]
    if not check and all(there.get(without_lease_epoch(file.path)) == file.size_in_bytes for file in files):
        return None
    phase = _phase_at(sorted(phases, key=lambda phase: phase.until or 0), at)
    return GoodCheckpoint(digest, f"{phase.name}@{at}", complete[at], tuple(files))


def copy_good_checkpoint(copier: Copier, checkpoint: GoodCheckpoint) -> Copied:
    """Copy a good checkpoint under lease epoch 0; raise as `Copier.copy`."""

    def entry_of(path: str) -> FileEntry:
        size, checksum = patiently(lambda: copier.source.settle(path))
        return FileEntry(path=path.removeprefix(f"{checkpoint.folder}/"), size_in_bytes=size, crc32c=checksum)

    num_files, size = 0, 0
    folder = without_lease_epoch(checkpoint.folder)
    with copier.leased(checkpoint.digest, checkpoint.name) as lease:
        for mark in patiently(lambda: copier.source.list(WORK, f"{checkpoint.digest}/{CODE}/")):
            copier.create(mark.path)
        # Seals last, the marker after all others: half a copy then looks incomplete.
        paths = sorted((entry.path for entry in checkpoint.files), key=seal_rank, reverse=True)
        for _, group in itertools.groupby(paths, seal_rank):
            with ThreadPoolExecutor(CHECKSUM_THREADS) as pool:
                manifest = list(pool.map(entry_of, group))
            written = copier.copy_files(checkpoint.folder, folder, manifest, lease)
            num_files, size = num_files + written[0], size + written[1]
    return Copied("copied" if num_files else "there", num_files, size)


def copy_attachments(source: Store, target: Store, keys: Collection[str], forks_folder: str) -> list[str]:
    """Copy names, pins, requests, acceptances and forks; existing objects at the target stay as they are.

    Args:
        source: the store to read.
        target: the store of the copies.
        keys: keys of the outputs at the target.
        forks_folder: folder of the forks; all of them are copied.

    Returns:
        Conflicts, a line each: objects of the target that differ.

    Raises:
        StoreError: a store failed.
    """
    keys = frozenset(keys)
    digests = frozenset(key.partition("@")[0] for key in keys)
    labels = (path for path in _paths(source, LABELS) if path.rpartition("/")[2] in keys)
    pins = (path for path in _paths(source, PINS) if path.removeprefix(f"{PINS}/").removesuffix(".json") in keys)
    requests = (path for path in _paths(source, REQUESTS) if path.split("/")[1] in digests)
    there = {path for folder in (LABELS, PINS, REQUESTS) for path in _paths(target, folder)}
    for path in itertools.chain(labels, pins, requests):
        if path not in there:
            _create(source, target, path)
    problems = []
    acceptances = [path for path in _paths(source, ACCEPTED) if path.split("/")[1] in digests]
    # In order and up to the first difference: a revocation must stay behind the acceptance that it revokes.
    for digest, paths in itertools.groupby(acceptances, lambda path: path.split("/")[1]):
        if not all(_create(source, target, path) for path in paths):
            problems.append(
                f"{target.url(f'{ACCEPTED}/{digest}')}: the acceptances there differ from those here, and stay. To "
                f"change them, run `accept` with --prefix {target.prefix}."
            )
    for path in _paths(source, forks_folder):
        if not _create(source, target, path):
            name = path.removeprefix(f"{forks_folder}/").removesuffix(".json")
            problems.append(
                f"the fork {name} differs at the target, and stays. To delete it, run `drop {name}` with --prefix "
                f"{target.prefix}."
            )
    return problems


def _paths(store: Store, folder: str) -> list[str]:
    return [entry.path for entry in patiently(functools.partial(store.list, folder))]


def _create(source: Store, target: Store, path: str) -> bool:
    """Copy a small object; return False if the target has another one at its path."""
    try:
        data = patiently(lambda: source.read(path))
        return patiently(lambda: target.create(path, data) or target.read(path) == data)
    except FileNotFoundError:  # deleted since it was listed
        return True
