"""Temporary checkpoints of one trajectory: what a killed run resumes from, fenced by lease epoch.

The newest two are kept, and each that is certified: good updates have followed it, and it lies some way past the one
before (`saving.py`). What goes wrong slowly is seen thousands of updates late. The end of a phase deletes the two, for
its milestone is as good to resume from. It leaves the certified ones: nothing has followed the milestone yet, and what
a run goes back to must have been followed by something good.

A folder is named by step and lease epoch, so an attempt that lost its lease and does not know it yet can
neither overwrite nor delete what its successor writes; it finds the newer epoch before it writes, and stops.
"""

import functools
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from runtime.training import checkpoint
from runtime.training.checkpoint_files import CheckpointFiles, canonical_json

FOLDER = re.compile(r"step-(\d{10})-epoch-(\d{6})")
CERTIFIED = "certified.json"
"""File beside a good checkpoint. Garbage collection keeps a folder that holds it as long as the output of its step."""
KEPT = 2
"""One to resume from, and one in case that one's disk block turns out to be damaged."""
CONCURRENT_REQUESTS = 16


class SupersededError(RuntimeError):
    """Another attempt holds the lease now."""


class Temporary(NamedTuple):
    """One temporary checkpoint; `folder` is laid out as `run_state` says."""

    step: int
    lease_epoch: int
    is_complete: bool
    is_certified: bool
    folder: str


class TemporaryCheckpoints:
    """The temporary checkpoints in `folder`, as seen by the attempt with `lease_epoch`."""

    def __init__(self, folder: str, lease_epoch: int) -> None:
        self.folder = folder.rstrip("/")
        self.lease_epoch = lease_epoch
        self._certified: set[str] = set()
        """Names of folders whose mark was seen: of a long run there are hundreds, and no mark is ever taken away."""

    def folder_of(self, step: int, lease_epoch: int | None = None) -> str:
        """Where this attempt, or that with `lease_epoch`, saves at `step`."""
        epoch = self.lease_epoch if lease_epoch is None else lease_epoch
        return f"{self.folder}/step-{step:010d}-epoch-{epoch:06d}"

    def all(self) -> list[Temporary]:
        """Every one, complete or not, in order of steps."""
        files = CheckpointFiles(self.folder)

        def look(named: tuple[str, int, int]) -> Temporary:
            name, step, lease_epoch = named
            is_complete = files.has(f"{name}/checkpoint/manifest.json")
            is_certified = is_complete and (name in self._certified or files.has(f"{name}/{CERTIFIED}"))
            return Temporary(step, lease_epoch, is_complete, is_certified, f"{self.folder}/{name}")

        with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
            found = list(pool.map(look, self._named()))
        self._certified.update(each.folder.rpartition("/")[2] for each in found if each.is_certified)
        return found

    @functools.cached_property
    def found(self) -> list[Temporary]:
        """As `all`, when this attempt first looked: a start needs to know it several times, and lists it once."""
        return self.all()

    def newest(self, until_step: int) -> Temporary | None:
        """The newest complete one not past `until_step`, of those that were `found`."""
        self._refuse_newer([each.lease_epoch for each in self.found])
        usable = [each for each in self.found if each.is_complete and each.step <= until_step]
        return usable[-1] if usable else None

    def refuse_if_superseded(self) -> None:
        """Raises if a newer attempt has begun to save here; asks the store once, for the names of folders."""
        self._refuse_newer([lease_epoch for _, _, lease_epoch in self._named()])

    def _named(self) -> list[tuple[str, int, int]]:
        """Name, step and lease epoch of every folder, in order of steps."""
        matches = map(FOLDER.fullmatch, sorted(CheckpointFiles(self.folder).folders()))
        return [(match[0], int(match[1]), int(match[2])) for match in matches if match]

    def _refuse_newer(self, lease_epochs: list[int]) -> None:
        newer = [lease_epoch for lease_epoch in lease_epochs if lease_epoch > self.lease_epoch]
        if newer:
            raise SupersededError(
                f"{self.folder}: an attempt with lease epoch {max(newer)} saves here, this one has {self.lease_epoch}; "
                "the lease was lost, and the newer attempt carries on. Nothing is to be done."
            )

    def certify(self, step: int, *, good_steps: int) -> bool:
        """Marks the checkpoint of `step`, which so many good updates followed; False if there is none.

        It may be that of an attempt before this one, which this one has gone on from: their updates are the same. From
        then on it stays: only a person deletes it, with the engine's `gc`.
        """
        named = self._named()
        self._refuse_newer([lease_epoch for _, _, lease_epoch in named])
        for folder in reversed([f"{self.folder}/{name}" for name, found, _ in named if found == step]):
            if checkpoint.is_complete(f"{folder}/checkpoint"):
                CheckpointFiles(folder).write(CERTIFIED, canonical_json({"good_steps": good_steps}, CERTIFIED))
                return True
        return False

    def prune(self, step: int, *, keep: int = KEPT, candidates: Collection[int] = ()) -> list[Temporary]:
        """Deletes what earlier attempts left half-written up to `step`, and the complete ones.

        All but the newest `keep`, every certified one, and of `candidates`, the steps that may be certified yet, the
        oldest. There is no way to delete a certified one here, nor one that an attempt marks meanwhile which does not
        know yet that it lost its lease.
        """
        every = self.all()
        self._refuse_newer([each.lease_epoch for each in every])
        past = [found for found in every if found.step <= step]
        complete = [found for found in past if found.is_complete]
        kept = {found.folder for found in complete[max(len(complete) - keep, 0) :]}
        kept |= {found.folder for found in complete if found.is_certified}
        oldest = min((found.step for found in complete if found.step in candidates), default=None)
        kept |= {found.folder for found in complete if found.step == oldest}
        dropped = []
        for found in past:
            files = CheckpointFiles(found.folder)
            if found.folder in kept or (found.is_complete and files.has(CERTIFIED)):
                continue
            checkpoint.remove(f"{found.folder}/checkpoint")
            files.delete_folder()
            dropped.append(found)
        return dropped
