"""Files of attempts: whose an entry below `outputs/` is, by its path alone."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from marin_dag.ledger.records import Record
from marin_dag.store.store import Entry

ATTEMPT = re.compile(
    r"outputs/(?P<name>.+)-(?P<short>[0-9a-f]{8})/(?P<attempt>\d{8}-\d{6}-[0-9a-f]{8})(?P<rest>[./].*)"
)


class Attempt(NamedTuple):
    """At an output: the beginning of its digest, and the attempt's own name."""

    short: str
    attempt: str


def attempt_at(output_path: str) -> Attempt | None:
    """The attempt that this output is of; None where it lies elsewhere, as what was adopted does."""
    match = ATTEMPT.fullmatch(f"{output_path}/")
    return None if match is None else Attempt(match["short"], match["attempt"])


def name_in(entries: Sequence[Entry]) -> str:
    """The name that the step had which left these files of an attempt."""
    match = ATTEMPT.fullmatch(entries[0].path)
    assert match is not None
    return match["name"]


def by_attempt(entries: Iterable[Entry]) -> dict[Attempt, list[Entry]]:
    """The files of each attempt."""
    found: dict[Attempt, list[Entry]] = {}
    for entry in entries:
        match = ATTEMPT.fullmatch(entry.path)
        if match is not None:
            found.setdefault(Attempt(match["short"], match["attempt"]), []).append(entry)
    return found


def beside_attempts(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """By the folder of all attempts at an output: what a pipeline has written there, beside them."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if ATTEMPT.fullmatch(entry.path) is None:
            found.setdefault(folder_of(entry.path), []).append(entry)
    return found


def folder_of(path: str) -> str:
    """The folder of all attempts at an output, of what is in one, milestones too; of anything else what that is in."""
    match = ATTEMPT.fullmatch(f"{path}/")
    return path.rpartition("/")[0] if match is None else path[: match.start("attempt") - 1]


def files_of(record: Record, files: Mapping[Attempt, list[Entry]]) -> list[Entry]:
    """Those of the attempt that made it; by the folder, which has the digest that the step had then."""
    attempt = attempt_at(record.output_path)
    return [] if attempt is None else files.get(attempt, [])
