"""Errors of a fetch; each message says what to do about it."""

import fnmatch
from collections.abc import Sequence
from typing import NamedTuple


class FetchError(Exception):
    """A file that cannot be fetched as the recipe names it; another attempt would not help."""

    # The fetch has retried already: a step that retried once more would only hide the message.
    is_transient = False


class ChecksumError(FetchError):
    """A file whose checksum or size is not the expected one."""


class ChangedFileError(FetchError):
    """A file that its publisher replaced during the fetch."""


class UnreachableError(FetchError, ConnectionError):
    """A server that does not answer, or not now; a later attempt may help."""


class MissingFileError(FetchError):
    """A file that the server no longer has; `status` is 404 or 410."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


def matching(where: str, names: Sequence[str], patterns: Sequence[str], what: str) -> set[str]:
    """Return the names in a publisher's list that match a shell pattern; raise FetchError if none does."""
    found = {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    if not found:
        raise FetchError(
            f"{where}: none of {len(names)} {what} matches {list(patterns)} (first: {', '.join(names[:3])}). Correct "
            "`files` in the recipe."
        )
    return found


class Failure(NamedTuple):
    """A file that could not be fetched."""

    name: str
    problem: str
    """The message, which begins with the address."""
    missing_status: int | None
    """404 or 410 if the publisher has no such file."""
    is_unreachable: bool
