"""Failures of some files among many: noted on disk, so that the next attempt asks for those again, and told together.

What a worker returns of a file is kept by the engine as finished, a failure as well as a file. The number of tries that
failed is therefore part of what the file's work is: one more, and the same file is work that nobody has done yet.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import fsspec

from runtime.text.fetch.errors import FetchError, UnreachableError

UNREACHABLE_IN_A_ROW = 16
"""So many files one after the other to which nobody answers, and the rest is not asked for: the publisher is down."""


class IncompleteDownloadError(FetchError):
    """Some of the files could not be had; the others are kept."""


class Failed(NamedTuple):
    """One file that could not be had."""

    name: str
    problem: str
    """What happened and what to do, with the address."""
    missing_status: int | None
    """404 or 410, where the publisher says that there is no such file; None for everything else."""


class FailureNotes:
    """How often each file has failed, in one folder; a try that fails is noted before it is reported."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def tries(self) -> Counter[str]:
        """Failed tries by address."""
        filesystem, folder = fsspec.core.url_to_fs(self._folder)
        filesystem.invalidate_cache()
        names = [path.rsplit("/", 1)[-1] for path in filesystem.find(folder)]
        return Counter(name.partition(".")[0] for name in names)

    def note(self, url: str, num_tries: int, problem: str) -> None:
        """One more failed try of a file that had failed `num_tries` times."""
        with fsspec.open(f"{self._folder}/{file_key(url)}.{num_tries}", "wb", auto_mkdir=True) as file:
            file.write(problem.encode(errors="replace"))


def file_key(url: str) -> str:
    """What the notes call a file."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


class Unreachable:
    """Counts the files in a row to which nobody answered."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def count(self, problem: str | None, *, is_unreachable: bool) -> None:
        """The next file that ended.

        Raises:
            UnreachableError: too many in a row.
        """
        self._in_a_row = self._in_a_row + 1 if is_unreachable else 0
        if self._in_a_row == UNREACHABLE_IN_A_ROW:
            raise UnreachableError(
                f"{problem}\n{UNREACHABLE_IN_A_ROW} files in a row went this way, so the rest was not asked for. What "
                "came before is kept; run the same command again when the publisher answers."
            )


def refuse_incomplete(name: str, failed: Sequence[Failed], num_files: int, *, max_missing_share: float) -> None:
    """Raises if a file failed, unless all that failed are missing for good and no more than this share of all.

    Raises:
        IncompleteDownloadError: names every file with what to do about it.
    """
    missing = [failure for failure in failed if failure.missing_status is not None]
    too_many = len(missing) > max_missing_share * num_files
    told = [*(failure for failure in failed if failure.missing_status is None), *(missing if too_many else ())]
    if not told:
        return
    cures = []
    if len(told) > (len(missing) if too_many else 0):
        cures.append("Run the same command again: it asks for these files alone.")
    if too_many:
        cures.append(
            f"The publisher has {len(missing):,} of the files no more ({_statuses(missing)}): correct the recipe, or, "
            f"if the source may go without them, raise its max_missing_share (now {max_missing_share:g})."
        )
    num_kept = num_files - len(failed)
    raise IncompleteDownloadError(
        f"{name}: {len(told):,} of {num_files:,} files could not be fetched; the {num_kept:,} that came are kept.\n"
        + "".join(f"  {failure.problem}\n".replace("\n  ", "\n    ") for failure in told)
        + " ".join(cures)
    )


def _statuses(missing: Sequence[Failed]) -> str:
    counts: Mapping[int | None, int] = Counter(failure.missing_status for failure in missing)
    return ", ".join(f"{status}: {count:,}" for status, count in sorted(counts.items(), key=str))
