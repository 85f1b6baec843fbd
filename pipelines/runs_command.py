"""runs: one table of all phases, forks and earlier versions under one or more prefixes."""

import argparse
import datetime
import fnmatch
import json
import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.quantities import counted
from pipelines.output import aligned, check_writable, write_page
from pipelines.runs import Run, read_runs

SCHEMA = "marin_dag.runs/1"
SINCE = re.compile(r"(\d+)([dhm])")
UNITS = {"d": "days", "h": "hours", "m": "minutes"}
SORTED_BY = ("finished", "tokens", "loss", "bits_per_byte", "hours", "name")
MOST_CHANGES, WIDTH_OF_A_CHANGE = 3, 90
NONE = "-"


def _runs(session: Session) -> int:
    parsed = session.parsed
    check_writable("--page", parsed.page)
    runs = [
        run
        for run in read_runs([session.store.prefix, *parsed.also], since=parsed.since)
        if not parsed.names or any(fnmatch.fnmatchcase(run.name, pattern) for pattern in parsed.names)
    ]
    runs = _sorted(runs, parsed.sort)
    if parsed.json:
        print(json.dumps({"schema": SCHEMA, "runs": [run._asdict() for run in runs]}, indent=1))
        return NOTHING_WOULD_RUN
    print(rendered(runs, with_scores=parsed.scores))
    if parsed.page is not None:
        write_page("--page", parsed.page, page(f"Runs of {session.pipeline}", runs))
    return NOTHING_WOULD_RUN


def _sorted(runs: Sequence[Run], by: str) -> list[Run]:
    if by == "finished":
        return list(runs)  # as they are read
    if by == "name":
        return sorted(runs, key=lambda run: run.name)
    unknown = math.inf if by in ("loss", "bits_per_byte") else -math.inf

    def value(run: Run) -> float:
        found = getattr(run, by)
        return unknown if found is None else float(found)

    return sorted(runs, key=value, reverse=by in ("tokens", "hours"))


def rendered(runs: Sequence[Run], *, with_scores: bool = False) -> str:
    """Return the table for a terminal: two lines a run where it changed something."""
    if not runs:
        return "no runs"
    tasks = _tasks(runs) if with_scores else []
    headings = ["run", "state", "tokens", "loss", "bits/byte", *tasks, "hours", "finished", "recipe"]
    heading, *rows = aligned([headings, *(_row(run, tasks) for run in runs)])
    lines = [heading]
    for run, row in zip(runs, rows, strict=True):
        changes = _changes(run)
        lines += [row, f"  {changes}"] if changes else [row]
    return "\n".join([*lines, counted(len(runs), "run")])


def _row(run: Run, tasks: Sequence[str]) -> list[str]:
    return [
        run.name,
        run.state,
        NONE if run.tokens is None else f"{run.tokens:,}",
        NONE if run.loss is None else f"{run.loss:.4f}",
        NONE if run.bits_per_byte is None else f"{run.bits_per_byte:.4f}",
        *(_score(run, task) for task in tasks),
        NONE if run.hours is None else f"{run.hours:.2f}",
        run.finished[:16].replace("T", " ") or NONE,
        run.recipe or NONE,
    ]


def _score(run: Run, task: str) -> str:
    if task not in run.scores:
        return NONE
    value, error = run.scores[task]
    return f"{value:.3f}" if error is None else f"{value:.3f} ±{error:.3f}"


def _changes(run: Run) -> str:
    if not run.changed:
        return ""
    shown = ", ".join(textwrap.shorten(change, WIDTH_OF_A_CHANGE) for change in run.changed[:MOST_CHANGES])
    more = f", and {len(run.changed) - MOST_CHANGES} more" if len(run.changed) > MOST_CHANGES else ""
    return f"against {run.base}: {shown}{more}"


def _tasks(runs: Sequence[Run]) -> list[str]:
    return sorted({task for run in runs for task in run.scores})


def page(title: str, runs: Sequence[Run]) -> str:
    """Return the table as a page."""
    from runtime.report.document import document
    from runtime.report.markup import table

    tasks = _tasks(runs)
    numbers = ("#tokens", "#loss", "#bits a byte", *(f"#{task}" for task in tasks), "#hours")
    headings = ["run", "state", *numbers, "finished", "recipe", "device", "commit", "prefix", "changed"]
    rows = [[*_row(run, tasks), run.device, run.commit, run.prefix, _changes(run)] for run in runs]
    lead = f"{counted(len(runs), 'run')}, read from the records of the prefixes."
    return document(title, lead, table(headings, rows, "Runs"), scripts=())


def _since(text: str) -> datetime.datetime:
    found = SINCE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; use a number of days, hours or minutes: 30d, 12h, 90m")
    try:
        return datetime.datetime.now(datetime.UTC) - datetime.timedelta(**{UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is before the year 1; use a shorter time") from None


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--also", metavar="PREFIX", action="append", default=[], help="(runs) read this prefix too")
    parser.add_argument("--since", metavar="30d", type=_since, help="(runs) only what finished in this time")
    parser.add_argument("--sort", choices=SORTED_BY, default="finished", help="(runs) what to sort by")
    parser.add_argument("--scores", action="store_true", help="(runs) show the scores of lm-eval too")
    parser.add_argument("--page", metavar="FILE.html", help="(runs) draw the table too")


COMMAND = Command(
    "runs",
    "[GLOB ...]",
    "every phase, fork and earlier version: what it changed, and what it reached",
    _runs,
    0,
    100,
    _add_arguments,
    ("--json",),
)
