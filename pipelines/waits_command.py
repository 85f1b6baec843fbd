"""waits: how long each phase waited for data, and for what; `--page FILE.html` draws it."""

from typing import Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.store.store import Store
from pipelines.picture_file import PAGE, check_writable, write_picture
from pipelines.trainings import attempts_of, names_of_trainings, shared
from runtime.tracking.waits import Waits, waits_of


def _waits(session: Session) -> int:
    if session.parsed.page is not None:
        check_writable("--page", session.parsed.page, (PAGE,))
    phases = names_of_trainings(session.graph().steps)
    if not phases:
        raise UserError(f"waits: the pipeline {session.pipeline!r} trains nothing.")
    found = [waits for digest, names in phases.items() if (waits := read_waits(session.store, digest, names[0]))]
    if not found:
        where = session.store.prefix
        print(f"no phase has trained under {where} as the recipe stands now, so there are no waits to show")
        return NOTHING_WOULD_RUN if session.parsed.page is None else FAILED
    shown = {waits.phase for waits in found}
    notes = [shared(names) for names in phases.values() if len(names) > 1 and names[0] in shown]
    print("\n".join([rendered(found), *notes]))
    if session.parsed.page is not None:
        from runtime.report.waits_page import page  # the words alone need no NumPy

        write_picture("--page", session.parsed.page, page(f"Waits for data of {session.pipeline}", found, notes))
        print(f"drawn: {session.parsed.page}")
    return NOTHING_WOULD_RUN


def read_waits(store: Store, digest: str, name: str) -> Waits | None:
    """Of all attempts of one training; None if none has begun. Hosts wait together, so the first one's log is read."""
    waits = waits_of(name, attempts_of(store, digest))
    return waits if waits.num_attempts else None


def rendered(phases: list[Waits]) -> str:
    """A table, and below it every kind of stall."""
    rows = [["phase", "attempts", "in the loop", "waited", "share", "stalls", "for"]]
    for waits in phases:
        causes = sorted(waits.by_cause.items(), key=lambda item: -item[1])
        rows.append(
            [
                waits.phase, str(waits.num_attempts), f"{waits.seconds:,.1f} s", f"{waits.waited_seconds:.2f} s",
                f"{waits.share:.2%}", str(len(waits.stalls)),
                ", ".join(f"{cause} {seconds:.2f} s" for cause, seconds in causes),
            ]
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=True)),
                row[-1],
            ]
        ).rstrip()
        for row in rows
    ]
    stalls = [
        f"stalled  {waits.phase}: {number} × {cause}, {seconds:.1f} s"
        for waits in phases
        for cause, (number, seconds) in sorted(waits.stalls_by_cause.items())
    ]
    return "\n".join([*lines, *stalls])


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--page", metavar="FILE.html", help="(waits) draw it too")


COMMAND = Command(
    "waits",
    "",
    "how long each phase waited for data, and for what",
    _waits,
    0,
    0,
    _add_arguments,
    ("--set",),
)
