"""Attempt files: the attempt of each entry below `outputs/`, by its path alone."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from marin_dag.ledger.records import Record
from marin_dag.store.store import Entry

ATTEMPT = re.compile(
    r"(?P<folder>outputs/(?P<name>.+)-(?P<short>[0-9a-f]{8}))/(?P<attempt>\d{8}-\d{6}-[0-9a-f]{8})[./].*"
)


class Attempt(NamedTuple):
    """An attempt: the folder of its step's attempts, name and beginning of the digest of the step, and its own name."""

    folder: str
    name: str
    short: str
    attempt: str


def attempt_of(path: str) -> Attempt | None:
    """Return the attempt whose output `path` is or lies in, or whose log it is."""
    match = ATTEMPT.fullmatch(f"{path}/")
    return None if match is None else Attempt(**match.groupdict())


def by_attempt(entries: Iterable[Entry]) -> tuple[dict[Attempt, list[Entry]], dict[str, list[Entry]]]:
    """Return the files of each attempt, and by their folder the files that a pipeline has written beside attempts."""
    files: dict[Attempt, list[Entry]] = {}
    beside: dict[str, list[Entry]] = {}
    for entry in entries:
        attempt = attempt_of(entry.path)
        if attempt is None:
            beside.setdefault(entry.path.rpartition("/")[0], []).append(entry)
        else:
            files.setdefault(attempt, []).append(entry)
    return files, beside


def logs_of(record: Record) -> tuple[str, str]:
    """Return where the logs of the attempt are, one per host: a folder, and the beginning of their paths in it."""
    beside, _, _ = record.output_path.partition(record.attempt)
    folder, _, inside = beside.partition("/")
    return folder, f"{inside}{record.attempt}."
