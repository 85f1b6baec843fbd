"""Failures of some files among many: counted in the store, so that the next attempt asks for those files again.

The engine keeps a worker's result, a failure as well as a file. The number of failed tries is therefore part of a
file's work item: one more failure makes a new item, which the next attempt runs.
"""

import hashlib
import textwrap
from collections import Counter
from collections.abc import Sequence

import fsspec

from runtime.text.fetch.errors import Failure, FetchError, UnreachableError

MAX_STREAK = 16
"""A download stops after this many failures in a row: the publisher is down, or refuses every file."""
MAX_NAMED = 20
"""How many failed files an error names; a file lists the others."""


class IncompleteDownloadError(FetchError):
    """Some files could not be fetched; the others are kept."""


class RefusedError(FetchError):
    """The publisher refuses every file."""


def file_key(url: str) -> str:
    """Return a short name for an address."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def failed_tries(folder: str) -> Counter[str]:
    """Return the number of failed tries by `file_key`, from the notes in a folder."""
    filesystem, path = fsspec.core.url_to_fs(folder)
    filesystem.invalidate_cache()
    return Counter(note.rsplit("/", 1)[-1].partition(".")[0] for note in filesystem.find(path))


def note_failure(folder: str, url: str, num_tries: int, problem: str) -> None:
    """Count one more failed try of a file that had failed `num_tries` times."""
    with fsspec.open(f"{folder}/{file_key(url)}.{num_tries}", "wb", auto_mkdir=True) as file:
        file.write(problem.encode(errors="replace"))


class FailureStreak:
    """Failures in a row; `max_missing` more are allowed where files may be missing."""

    def __init__(self, max_missing: int = 0) -> None:
        self._max_missing = max_missing
        self._num_unreachable = self._num_failed = 0
        self._has_arrived = False

    def count(self, failure: Failure | None) -> None:
        """Count the next file; None for one that arrived.

        Raise UnreachableError if too many in a row got no answer, and RefusedError if the first ones were all refused.
        """
        if failure is None:
            self._has_arrived, self._num_unreachable = True, 0
            return
        self._num_failed += 1
        self._num_unreachable = self._num_unreachable + 1 if failure.is_unreachable else 0
        if self._num_unreachable == MAX_STREAK:
            raise UnreachableError(
                f"{failure.problem}\n{MAX_STREAK} files in a row failed this way, so the download stopped. Files that "
                "arrived are kept; run the same command again when the publisher answers."
            )
        allowed = self._max_missing if failure.missing_status is not None else 0
        if not self._has_arrived and not failure.is_unreachable and self._num_failed >= MAX_STREAK + allowed:
            raise RefusedError(
                f"{failure.problem}\nThe first {self._num_failed:,} files failed and none arrived, so the download "
                "stopped. Fix the cause and run the same command again."
            )


def check_complete(
    name: str, failures: Sequence[Failure], num_files: int, *, max_missing_share: float, list_path: str
) -> None:
    """Raise unless all failed files are missing at the publisher, and no more than this share of all.

    Raise IncompleteDownloadError, which names the first failed files; `list_path` lists them if they are many.
    """
    missing = [failure for failure in failures if failure.missing_status is not None]
    others = [failure for failure in failures if failure.missing_status is None]
    too_many = len(missing) > max_missing_share * num_files
    named = others + (missing if too_many else [])
    if not named:
        return
    lines = [textwrap.indent(f"{failure.problem}\n", "  ") for failure in named[:MAX_NAMED]]
    if len(named) > MAX_NAMED:
        with fsspec.open(list_path, "wb", auto_mkdir=True) as file:
            file.writelines(f"{failure.problem}\n".encode(errors="replace") for failure in named)
        lines.append(f"  and {len(named) - MAX_NAMED:,} more; {list_path} lists all\n")
    cures = ["Run the same command again: it asks for these files only."] if others else []
    if too_many:
        counts = Counter(failure.missing_status for failure in missing)
        statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(counts.items(), key=str))
        cures.append(
            f"The publisher no longer has {len(missing):,} of the files ({statuses}). Correct the recipe, or raise the "
            f"source's max_missing_share (now {max_missing_share:g})."
        )
    raise IncompleteDownloadError(
        f"{name}: {len(named):,} of {num_files:,} files could not be fetched; the {num_files - len(failures):,} that "
        f"arrived are kept.\n{''.join(lines)}{' '.join(cures)}"
    )
