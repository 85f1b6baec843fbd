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
REFUSED_IN_A_ROW = 16
"""So many files one after the other that are refused in the same words before any has come, and the rest is not asked
for: the token or the address is wrong for all of them."""
TOLD = 20
"""So many of the files that could not be had stand in the error; all of them in a file."""


class IncompleteDownloadError(FetchError):
    """Some of the files could not be had; the others are kept."""


class RefusedError(FetchError):
    """The publisher refuses file after file for one reason."""


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
    """Counts the files in a row to which nobody answered, and those that were refused in the same words.

    Of files that are missing so many may be, so their row is longer by that.
    """

    def __init__(self, max_missing: int = 0) -> None:
        self._in_a_row = 0
        self._max_missing = max_missing
        self._has_come = False
        self._refusal = ""
        self._refused_in_a_row = 0

    def count(self, problem: str | None, *, is_unreachable: bool, is_missing: bool = False) -> None:
        """The next file that ended; its problem begins with its address, if it had one.

        Raises:
            UnreachableError: too many in a row to which nobody answered.
            RefusedError: too many in a row that were refused, and none has come.
        """
        self._in_a_row = self._in_a_row + 1 if is_unreachable else 0
        if self._in_a_row == UNREACHABLE_IN_A_ROW:
            raise UnreachableError(
                f"{problem}\n{UNREACHABLE_IN_A_ROW} files in a row went this way, so the rest was not asked for. What "
                "came before is kept; run the same command again when the publisher answers."
            )
        if problem is None:
            self._has_come = True
        if problem is None or is_unreachable:
            self._refusal = ""
            return
        refusal = problem.partition(": ")[2]
        self._refused_in_a_row = self._refused_in_a_row + 1 if refusal == self._refusal else 1
        self._refusal = refusal
        allowed = self._max_missing if is_missing else 0
        if not self._has_come and self._refused_in_a_row == REFUSED_IN_A_ROW + allowed:
            raise RefusedError(
                f"{problem}\n{self._refused_in_a_row:,} files in a row were refused in these words and none has come, "
                "so the rest was not asked for: what is wrong is so for all. Mend it and run the same command again."
            )


def refuse_incomplete(
    name: str, failed: Sequence[Failed], num_files: int, *, max_missing_share: float, list_path: str
) -> None:
    """Raises if a file failed, unless all that failed are missing for good and no more than this share of all.

    Raises:
        IncompleteDownloadError: names the files with what to do about them; where they are many it names the first and
            `list_path`, a file that is written then and names all.
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
    lines = [f"  {failure.problem}\n".replace("\n  ", "\n    ") for failure in told[:TOLD]]
    if len(told) > TOLD:
        with fsspec.open(list_path, "wb", auto_mkdir=True) as file:
            file.writelines(f"{failure.problem}\n".encode(errors="replace") for failure in told)
        lines.append(f"  and {len(told) - TOLD:,} more; all of them: {list_path}\n")
    raise IncompleteDownloadError(
        f"{name}: {len(told):,} of {num_files:,} files could not be fetched; the {num_kept:,} that came are kept.\n"
        + "".join(lines)
        + " ".join(cures)
    )


def _statuses(missing: Sequence[Failed]) -> str:
    counts: Mapping[int | None, int] = Counter(failure.missing_status for failure in missing)
    return ", ".join(f"{status}: {count:,}" for status, count in sorted(counts.items(), key=str))
