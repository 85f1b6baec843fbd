"""Attempt files: the attempt of each entry below `outputs/`, by its path alone."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from marin_dag.ledger.records import Record
from marin_dag.store.store import Entry

ATTEMPT = re.compile(
    r"outputs/(?P<name>.+)-(?P<short>[0-9a-f]{8})/(?P<attempt>\d{8}-\d{6}-[0-9a-f]{8})(?P<rest>[./].*)"
)


class Attempt(NamedTuple):
    """An attempt: the beginning of its step's digest, and its own name."""

    short: str
    attempt: str


def attempt_at(output_path: str) -> Attempt | None:
    """Return the attempt of an output, or None if the path is not that of an attempt."""
    match = ATTEMPT.fullmatch(f"{output_path}/")
    return None if match is None else Attempt(match["short"], match["attempt"])


def step_name_in(entries: Sequence[Entry]) -> str:
    """Return the name that the step of these files of an attempt had."""
    match = ATTEMPT.fullmatch(entries[0].path)
    assert match is not None
    return match["name"]


def by_attempt(entries: Iterable[Entry]) -> dict[Attempt, list[Entry]]:
    found: dict[Attempt, list[Entry]] = {}
    for entry in entries:
        match = ATTEMPT.fullmatch(entry.path)
        if match is not None:
            found.setdefault(Attempt(match["short"], match["attempt"]), []).append(entry)
    return found


def beside_attempts(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the files that a pipeline has written beside attempts, by the folder of the attempts."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if ATTEMPT.fullmatch(entry.path) is None:
            found.setdefault(folder_of(entry.path), []).append(entry)
    return found


def folder_of(path: str) -> str:
    """Return the folder of all attempts at the output that `path` is or lies in; otherwise the parent of `path`."""
    match = ATTEMPT.fullmatch(f"{path}/")
    return path.rpartition("/")[0] if match is None else path[: match.start("attempt") - 1]


def files_of(record: Record, files: Mapping[Attempt, list[Entry]]) -> list[Entry]:
    """Return the files of the attempt that made an output."""
    attempt = attempt_at(record.output_path)
    return [] if attempt is None else files.get(attempt, [])


def logs_of(record: Record) -> tuple[str, str]:
    """Return where the logs of the attempt are, one a host: a folder, and the beginning of their paths in it."""
    beside, _, _ = record.output_path.partition(record.attempt)
    folder, _, inside = beside.partition("/")
    return folder, f"{inside}{record.attempt}."
