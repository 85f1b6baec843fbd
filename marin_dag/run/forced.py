"""Forced attempts: a committed step runs again, its output is compared with the first one and repairs it."""

import logging
from collections.abc import Iterable
from typing import Any

from marin_dag.errors import UserError, listed
from marin_dag.ledger.damage import repair
from marin_dag.ledger.records import FileEntry, Record
from marin_dag.store.store import Store

SHOWN_FILES = 5


class NotReproducedError(UserError):
    """A forced step made another output than the first time."""


def repair_first_output(
    store: Store,
    first: Record,
    folder: str,
    manifest: tuple[FileEntry, ...],
    result: Any,
    others: Iterable[Record],
    log: logging.Logger,
) -> tuple[str, ...]:
    """Compare a new output in `folder` with the first one, which stays, and replace damaged files of the first one.

    Returns the replaced files, relative to the output. `others` are the records of the run's milestones, which may lie
    in the first output.

    Raises:
        NotReproducedError: the outputs differ.
    """
    where = "" if first.milestone is None else f" at {first.milestone}"
    differing = sorted({entry.path for entry in set(manifest) ^ set(first.manifest)})
    found = []
    if differing:
        found.append(f"other files{where}: {listed(differing, SHOWN_FILES)}")
    if first.result != result:
        found.append(f"another result{where}: recorded {first.result}, now {result}")
    if found:
        raise NotReproducedError(
            f"the forced step made {'; and '.join(found)}. It is not deterministic: something that shapes its output "
            f"is not in its identity. The first output stays: {store.url(first.output_path)} (the new one is "
            f"{store.url(folder)})."
        )
    repaired = repair(store, first, folder, others)
    for path in repaired:
        log.warning("%s: differed from its record, replaced", store.url(f"{first.output_path}/{path}"))
    return repaired
