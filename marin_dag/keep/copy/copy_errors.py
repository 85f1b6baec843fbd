"""Copy errors: what keeps an output from a second prefix, and how it is said to whoever named that prefix."""

import errno
from collections.abc import Iterable

from marin_dag.errors import UserError
from marin_dag.ledger.damage import Finding
from marin_dag.ledger.records import first_lines
from marin_dag.store.store import Store

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class DamagedSourceError(UserError):
    """Files at the source are not as their record says; nothing of them is at the target."""

    def __init__(self, folder: str, findings: Iterable[Finding]) -> None:
        self.folder = folder
        self.findings = tuple(sorted(findings))
        super().__init__(f"{len(self.findings)} of its files are not as recorded")


class AtWorkThereError(UserError):
    """Somebody makes the output at the target, or deletes it there."""


class CopyCancelledError(Exception):
    """The copier was told to leave."""


def is_full(error: BaseException) -> bool:
    """Whether it was raised from that of a disk, or a quota, with no room left."""
    current, seen = error, set[int]()
    while not (isinstance(current, OSError) and current.errno in FULL):
        seen.add(id(current))
        if current.__cause__ is None or id(current.__cause__) in seen:  # `raise error from error`
            return False
        current = current.__cause__
    return True


def said_of(error: Exception, source: Store, option: str, told: set[str] | None = None) -> str:
    """First lines of an error; where its cure is another target, that is by the name of its option.

    Args:
        error: what was raised.
        source: whose own errors name `--prefix`.
        option: by which the user gave the target.
        told: cures that were told before: a disk has the same one for each file, and it is told once.
    """
    text = first_lines(error)
    if not text.startswith((f"{source.prefix}/", f"{source.prefix}:")):
        text = text.replace("--prefix", option)
    if told is None or not isinstance(error.__cause__, OSError):
        return text
    what, _, cure = text.partition(f": {error.__cause__.strerror}: ")
    is_told = bool(cure) and cure in told
    told.add(cure)
    return f"{what}: {error.__cause__.strerror}" if is_told else text
