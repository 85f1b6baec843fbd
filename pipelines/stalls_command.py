"""stalls: how long each phase waited for data, and for what; `--page FILE.html` draws it."""

from collections.abc import Mapping, Sequence
from typing import Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.store.store import Store
from pipelines.attempts import attempt_events, phases_by_digest, shared_note
from pipelines.page_file import check_writable, write_page
from runtime.tracking.stalls import DataStalls, sum_stalls


def _stalls(session: Session) -> int:
    path = session.parsed.page
    if path is not None:
        check_writable("--page", path)
    phases = phases_by_digest(session.graph().steps)
    if not phases:
        raise UserError(f"stalls: the pipeline {session.pipeline!r} trains nothing.")
    found, notes = read_stalls(session.store, phases)
    if not found:
        print(f"no phase has trained under {session.store.prefix} as the recipe is now, so there are no stalls to show")
        return NOTHING_WOULD_RUN if path is None else FAILED
    print("\n".join([rendered(found), *notes]))
    if path is not None:
        from runtime.report.stalls_page import page  # needs NumPy, which the table does not

        write_page("--page", path, page(f"Data stalls of {session.pipeline}", found, notes))
        print(f"drawn: {path}")
    return NOTHING_WOULD_RUN


def read_stalls(store: Store, phases: Mapping[str, Sequence[str]]) -> tuple[list[DataStalls], list[str]]:
    """Return the stalls of each digest that has an attempt, and notes about phases that share them."""
    found, notes = [], []
    for digest, names in phases.items():
        stalls = sum_stalls(names[0], attempt_events(store, digest))
        if stalls.num_attempts:
            found.append(stalls)
            notes += [shared_note(names)] if len(names) > 1 else []
    return found, notes


def rendered(phases: Sequence[DataStalls]) -> str:
    """Return a table, and below it the stalls by cause."""
    rows = [["phase", "attempts", "in the loop", "waited", "share", "stalls"]]
    causes = ["for"]
    for each in phases:
        row = [each.phase, str(each.num_attempts), f"{each.seconds:,.1f} s", f"{each.waited_seconds:.2f} s"]
        rows.append([*row, f"{each.share:.2%}", str(len(each.stalls))])
        by_cause = sorted(each.by_cause.items(), key=lambda item: -item[1])
        causes.append(", ".join(f"{cause} {seconds:.2f} s" for cause, seconds in by_cause))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row, cause in zip(rows, causes, strict=True):
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells, cause]).rstrip())
    for each in phases:
        for cause, (number, seconds) in sorted(each.stalls_by_cause.items()):
            lines.append(f"stalled  {each.phase}: {number} × {cause}, {seconds:.1f} s")
    return "\n".join(lines)


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--page", metavar="FILE.html", help="(stalls) draw it too")


COMMAND = Command(
    "stalls",
    "",
    "how long each phase waited for data, and for what",
    _stalls,
    0,
    0,
    _add_arguments,
    ("--set",),
)
