"""CertifiedStates: of each trajectory the newest state that it has certified, copied beside its outputs.

Who has lost the first prefix goes on from there, and not from a milestone of a day before. A folder that ends in
`-epoch-N` was left by the attempt that held the lease then, which tells nothing at another prefix: an attempt there
would take itself for one whose lease is lost. So the copy has epoch 0, which is nobody's.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from pydantic import ValidationError

from marin_dag.graph.step import Step
from marin_dag.keep.collect import SEALS, WORK, certified_in
from marin_dag.keep.copy.copy_errors import AtWorkThereError, CopyCancelledError, DamagedSourceError, is_full
from marin_dag.keep.copy.copying import Copier
from marin_dag.ledger.epoch import LeaseLostError
from marin_dag.ledger.records import CHECKSUM_THREADS, FileEntry
from marin_dag.ledger.work_code import FOLDER as CODE
from marin_dag.quantities import counted, in_bytes
from marin_dag.store.retry import is_transient, patiently
from marin_dag.store.store import Entry, Store, StoreError

LEASE_EPOCH = re.compile(r"(?<=-epoch-)\d+(?=/|$)")


class State(NamedTuple):
    """One that is to be copied."""

    digest: str
    name: str
    """What a person calls it, such as `phoenix@1100`."""
    folder: str
    """At the source, relative to the prefix."""
    files: tuple[Entry, ...]


class CertifiedStates:
    """Those of `steps` at `source`, and which of them `target` lacks."""

    def __init__(self, source: Store, target: Store, steps: Iterable[Step[Any]]) -> None:
        self._source, self._target = source, target
        self._legs: dict[str, list[Step[Any]]] = {}
        for step in steps:
            if step.until is not None and step.kind.resumes_at is not None:
                self._legs.setdefault(step.digest, []).append(step)

    def left(self, *, check: bool = False) -> list[State]:
        """The newest of each trajectory, where it is not at the target; there all the same if it is to be checked.

        None of one that an attempt at the target has saved states of: those are its own.

        Raises:
            StoreError: either store.
        """
        found = (self._left_of(digest, legs, check=check) for digest, legs in self._legs.items())
        return [state for state in found if state is not None]

    def _left_of(self, digest: str, legs: Sequence[Step[Any]], *, check: bool) -> State | None:
        folder = f"{WORK}/{digest}/"
        resumes_at = legs[0].kind.resumes_at
        assert resumes_at is not None

        def steps_in(paths: Iterable[str]) -> list[int]:
            return list(resumes_at([path.removeprefix(folder) for path in paths]))

        certified = certified_in(patiently(lambda: self._source.list(WORK, f"{digest}/")))
        complete = {at: place for place, files in certified.items() for at in steps_in(file.path for file in files)}
        if not complete:
            return None
        there = {entry.path: entry.size_in_bytes for entry in patiently(lambda: self._target.list(WORK, f"{digest}/"))}
        if steps_in(path for path in there if path != place_of(path)):
            return None
        at, files = max(complete), certified[complete[max(complete)]]
        if not check and all(there.get(place_of(file.path)) == file.size_in_bytes for file in files):
            return None
        leg = next((leg for leg in sorted(legs, key=lambda leg: leg.until or 0) if (leg.until or 0) >= at), legs[-1])
        return State(digest, f"{leg.name}@{at}", complete[at], tuple(files))

    def copy(self, copier: Copier, say: Callable[[str], None]) -> list[str]:
        """Copies those that are left. Who cancels the copier ends it early.

        Args:
            copier: of the same two stores.
            say: takes a line for the user.

        Returns:
            What could not be copied, a line each.

        Raises:
            StoreError: either store, while it is listed.
        """
        problems = []
        for state in self.left(check=copier.check):
            try:
                num_files, size = self._copy(copier, state)
            except CopyCancelledError:
                break
            except (StoreError, LeaseLostError, ValidationError) as error:  # the last of a claim that is none
                problems.append(f"{state.name}, certified, was not copied: {copier.said(error)}")
                if is_full(error) or is_transient(error):  # so would the next
                    break
                continue
            except (AtWorkThereError, DamagedSourceError, FileNotFoundError):
                continue  # an attempt there saves its own; or it was let go here meanwhile
            if num_files:
                say(f"{state.name}, certified: {counted(num_files, 'file')}, {in_bytes(size)}, copied")
        return problems

    def _copy(self, copier: Copier, state: State) -> tuple[int, int]:
        """Number and size of the files that had to be written."""
        num_files, size = 0, 0
        with copier.leased(state.digest, state.name) as lease:
            for mark in patiently(lambda: self._source.list(WORK, f"{state.digest}/{CODE}/")):
                copier.loose.create(mark.path)
            # Last what says of the others that they are there, and of that the mark: half a state looks like none.
            for _, group in itertools.groupby(sorted((entry.path for entry in state.files), key=_seal), _seal):
                with ThreadPoolExecutor(CHECKSUM_THREADS) as pool:
                    files = list(pool.map(functools.partial(self._entry, state.folder), group))
                written = copier.copy_files(state.folder, place_of(state.folder), files, lease)
                num_files, size = num_files + written[0], size + written[1]
        return num_files, size

    def _entry(self, folder: str, path: str) -> FileEntry:
        size, checksum = patiently(lambda: self._source.settle(path))
        return FileEntry(path=path.removeprefix(f"{folder}/"), size_in_bytes=size, crc32c=checksum)


def place_of(path: str) -> str:
    """Where the copy of a state, or of a file of it, lies."""
    return LEASE_EPOCH.sub(lambda epoch: "0" * len(epoch[0]), path)


def _seal(path: str) -> int:
    """0 of a file that is no seal; of the others, those that are written later have more."""
    name = path.rpartition("/")[2]
    return len(SEALS) - SEALS.index(name) if name in SEALS else 0
