"""Temporary checkpoints of a phase: what a killed attempt resumes from, fenced by lease epoch.

The newest two are kept, and every good one (saving.py). The end of a phase deletes the two, since the run can resume
from its milestone. The good ones stay, because no step has proven the milestone yet.

A folder is named by step and lease epoch. An attempt that has lost its lease unknowingly can neither overwrite nor
delete what its successor writes; before it writes it finds the newer epoch, and stops.
"""

import functools
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from runtime.tables.column import BlockedTable
from runtime.training import checkpoint
from runtime.training.checkpoint_files import CheckpointFiles, canonical_json, recorded

FOLDER = re.compile(r"step-(\d{10})-epoch-(\d{6})")
GOOD_MARK = "good.json"
"""Default name of the file that marks a good checkpoint; garbage collection keeps its folder as long as the output."""
KEPT = 2
"""Resume from the first; the second serves if the first is damaged."""
CONCURRENT_REQUESTS = 16
SEGMENTS = "segments"
"""Name of the segments' folder, beside those of the checkpoints."""


class SupersededError(RuntimeError):
    """Another attempt holds the lease now."""


class Temporary(NamedTuple):
    """A temporary checkpoint; `run_state` describes the layout of `folder`."""

    step: int
    lease_epoch: int
    is_complete: bool
    is_good: bool
    folder: str


class TemporaryCheckpoints:
    """The temporary checkpoints in `folder`, as seen by the attempt with `lease_epoch`."""

    def __init__(self, folder: str, lease_epoch: int, good_mark: str = GOOD_MARK) -> None:
        self.folder = folder.rstrip("/")
        self.lease_epoch = lease_epoch
        self._good_mark = good_mark
        self.segments = Segments(f"{self.folder}/{SEGMENTS}")
        self._good: set[str] = set()
        """Folders known to have a mark: a long run has hundreds, and marks are never removed."""

    def folder_of(self, step: int, lease_epoch: int | None = None) -> str:
        """Return where this attempt, or that with `lease_epoch`, saves at `step`."""
        epoch = self.lease_epoch if lease_epoch is None else lease_epoch
        return f"{self.folder}/step-{step:010d}-epoch-{epoch:06d}"

    def all(self) -> list[Temporary]:
        """Return all of them, complete or not, in order of steps."""
        files = CheckpointFiles(self.folder)

        def look(named: tuple[str, int, int]) -> Temporary:
            name, step, lease_epoch = named
            is_complete = files.has(f"{name}/checkpoint/manifest.json")
            is_good = is_complete and (name in self._good or files.has(f"{name}/{self._good_mark}"))
            return Temporary(step, lease_epoch, is_complete, is_good, f"{self.folder}/{name}")

        with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
            found = list(pool.map(look, self._named()))
        self._good.update(each.folder.rpartition("/")[2] for each in found if each.is_good)
        return found

    @functools.cached_property
    def found(self) -> list[Temporary]:
        """The result of `all` when this attempt first called it; a start reads it several times."""
        return self.all()

    def newest(self, until_step: int) -> Temporary | None:
        """Return the newest complete one of `found` that is not past `until_step`."""
        self._check_epochs([each.lease_epoch for each in self.found])
        usable = [each for each in self.found if each.is_complete and each.step <= until_step]
        return usable[-1] if usable else None

    def check_not_superseded(self) -> None:
        """Raise SupersededError if a newer attempt saves here; lists the names of folders once."""
        self._check_epochs([lease_epoch for _, _, lease_epoch in self._named()])

    def _named(self) -> list[tuple[str, int, int]]:
        """Return name, step and lease epoch of every folder, in order of steps."""
        matches = map(FOLDER.fullmatch, sorted(CheckpointFiles(self.folder).folders()))
        return [(match[0], int(match[1]), int(match[2])) for match in matches if match]

    def _check_epochs(self, lease_epochs: list[int]) -> None:
        newer = [lease_epoch for lease_epoch in lease_epochs if lease_epoch > self.lease_epoch]
        if newer:
            raise SupersededError(
                f"{self.folder}: this attempt has lease epoch {self.lease_epoch} and has lost the lease to an attempt "
                f"with epoch {max(newer)}, which continues the run. There is nothing to do."
            )

    def mark_good(self, step: int, *, good_steps: int) -> bool:
        """Mark the checkpoint of `step`, also of an earlier attempt, as good after so many steps; False: there is none.

        Only the engine's `gc` deletes a good checkpoint.
        """
        named = self._named()
        self._check_epochs([lease_epoch for _, _, lease_epoch in named])
        for folder in reversed([f"{self.folder}/{name}" for name, found, _ in named if found == step]):
            if checkpoint.is_complete(f"{folder}/checkpoint"):
                mark = canonical_json({"good_steps": good_steps}, self._good_mark)
                CheckpointFiles(folder).write(self._good_mark, mark)
                return True
        return False

    def drop_segments(self) -> None:
        """Delete the segments at the end of the run: each checkpoint has its own links to them."""
        CheckpointFiles(f"{self.folder}/{SEGMENTS}").delete_folder()

    def prune(self, step: int, *, keep: int = KEPT, candidates: Collection[int] = ()) -> list[Temporary]:
        """Delete incomplete checkpoints up to `step`, and complete ones but for three kinds.

        The newest `keep` stay, every good one, and the oldest of `candidates`, the steps that may become good. A
        checkpoint that a superseded attempt marks meanwhile stays too.
        """
        every = self.all()
        self._check_epochs([each.lease_epoch for each in every])
        past = [found for found in every if found.step <= step]
        complete = [found for found in past if found.is_complete]
        kept = {found.folder for found in complete[max(len(complete) - keep, 0) :]}
        kept |= {found.folder for found in complete if found.is_good}
        oldest = min((found.step for found in complete if found.step in candidates), default=None)
        kept |= {found.folder for found in complete if found.step == oldest}
        dropped = []
        for found in past:
            files = CheckpointFiles(found.folder)
            if found.folder in kept or (found.is_complete and files.has(self._good_mark)):
                continue
            checkpoint.remove(f"{found.folder}/checkpoint")
            files.delete_folder()
            dropped.append(found)
        return dropped


def part_key(table: str, index: int) -> str:
    """Return the key of a part of a table, beside a checkpoint."""
    return f"{table}/{index:06d}.parquet"


class Segments:
    """The segments that one attempt at a phase writes: full blocks of its tables, which its checkpoints link.

    The tables take hundreds of megabytes after a million steps. A save writes only the rows after the newest full
    block, and every checkpoint is whole by itself. Tables given to `link` only grow.
    """

    def __init__(self, folder: str) -> None:
        self._files = CheckpointFiles(folder)
        self._written: dict[str, list[tuple[str, dict[str, int]]]] = {}

    def link(self, tables: Mapping[str, BlockedTable], files: CheckpointFiles) -> dict[str, dict[str, int]]:
        """Write the full blocks that are not written yet, and link all of them into `files`.

        The name of a segment has its checksum: an attempt elsewhere, whose figures round differently, overwrites none.

        Returns:
            Size and CRC32C of each linked file, by its key.
        """
        sources, found = {}, {}
        for name, table in tables.items():
            blocks = self._written.setdefault(name, [])
            for index in range(len(blocks), table.num_blocks):
                data = table.block_to_parquet(index)
                entry = recorded(data)
                segment = f"{name.removesuffix('.parquet')}-{index:06d}-{entry['crc32c']:08x}.parquet"
                self._files.write(segment, data)  # a block counts as written once it is
                blocks.append((segment, entry))
            for index, (segment, entry) in enumerate(blocks[: table.num_blocks]):
                key = part_key(name, index)
                sources[key], found[key] = segment, entry
        files.link(sources, self._files)
        return found
