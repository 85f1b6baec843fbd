"""runs: one table of all phases, forks and earlier versions under one or more prefixes."""

import argparse
import datetime
import fnmatch
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.quantities import counted
from pipelines.comparison_table import comparison_content, rendered_comparison
from pipelines.output import Shown, aligned, command, flag, repeated, value
from pipelines.run_comparison import Comparison, compare
from pipelines.runs import Run, read_runs

SCHEMA = "marin_dag.runs/1"
SINCE = re.compile(r"(\d+)([dhm])")
UNITS = {"d": "days", "h": "hours", "m": "minutes"}
SORTED_BY = ("finished", "tokens", "loss", "bits_per_byte", "hours", "name")
MOST_CHANGES, WIDTH_OF_A_VALUE = 3, 80
NONE = "-"
BITS_NOTE = "bits/byte: the mean over the held-out domains of ema_eval, of EMA weights where a run keeps them"


def _price(text: str) -> tuple[str, float]:
    machine, _, price = text.rpartition("=")
    try:
        found = float(price)
    except ValueError:
        found = math.nan
    if not machine or not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no price; use MACHINE=PRICE_AN_HOUR, such as v4-2048=3300")
    return machine, found


def _since(text: str) -> datetime.datetime:
    found = SINCE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; use a number of days, hours or minutes: 30d, 12h, 90m")
    try:
        return datetime.datetime.now(datetime.UTC) - datetime.timedelta(**{UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is before the year 1; use a shorter time") from None


@command(
    "runs [GLOB...]",
    "every phase, fork and earlier version: what it changed, and what it reached",
    "--json",
    page="draw the table too: sort, filter, compare",
    own={
        "--also": repeated("PREFIX", "read this prefix too"),
        "--since": value("30d", "only what finished in this time", type=_since),
        "--sort": {"choices": SORTED_BY, "default": "finished", "help": "what to sort by"},
        "--scores": flag("show the scores of lm-eval too"),
        "--price": repeated("MACHINE=N", "show costs, at this price of an hour of a machine; repeatable", type=_price),
        "--compare": flag(
            "compare the finished runs with the first: settings, figures, scores; --page lets you choose"
        ),
    },
)
def runs(session: Session) -> Shown:
    parsed = session.parsed
    forks = {fork.name: fork.base for fork in session.forks.all()}
    every = read_runs([session.store.prefix, *parsed.also], forks=forks, since=parsed.since)
    patterns = parsed.names or ["*"]
    named = [run for run in every if any(fnmatch.fnmatchcase(run.name, pattern) for pattern in patterns)]
    found, prices = _sorted(named, parsed.sort), _prices(parsed.price, every)
    comparison = _comparison(parsed.names, found, every) if parsed.compare else None

    def document() -> dict[str, Any]:
        compared = {} if comparison is None else {"comparison": comparison_content(comparison)}
        return {"schema": SCHEMA, "runs": [run._asdict() | {"cost": _cost(run, prices)} for run in found], **compared}

    def page() -> str:
        chosen = () if comparison is None else comparison.runs
        return _page(f"Runs of {session.pipeline}", found, every, prices, chosen)

    table = (
        rendered(found, prices, with_scores=parsed.scores) if comparison is None else rendered_comparison(comparison)
    )
    return Shown([table], document=document, page=page)


def _page(
    title: str, runs: Sequence[Run], every: Sequence[Run], prices: Mapping[str, float], chosen: Sequence[Run]
) -> str:
    from pipelines.runs_page import page  # needs Bokeh, which the table does not

    tasks = _tasks(runs)
    headings = [*_headings(tasks, prices), "#attempts", "device", "commit", "prefix", "changed"]
    rows = [
        [*_row(run, tasks, prices), str(run.attempts), run.device, run.commit, run.prefix, _changes(run)]
        for run in runs
    ]
    return page(title, BITS_NOTE, runs, every, headings, rows, chosen)


def _prices(given: Sequence[tuple[str, float]], runs: Sequence[Run]) -> dict[str, float]:
    machines = {run.machine for run in runs if run.machine}
    for machine, _ in given:
        if machine not in machines:
            known = ", ".join(sorted(machines)) or "unknown"
            raise UserError(f"--price: no run used the machine {machine!r}; the machines of the runs are: {known}.")
    return dict(given)


def _comparison(names: Sequence[str], runs: Sequence[Run], every: Sequence[Run]) -> Comparison:
    """Compare the finished runs of the table, in the user's order."""
    order = {
        run.key: index for run in runs for index, name in enumerate(names[::-1]) if fnmatch.fnmatchcase(run.name, name)
    }
    done = [run for run in runs if run.state == "done"]
    if len(done) < 2:
        raise UserError("--compare: fewer than two finished runs match. `runs` lists all; name two or more of them.")
    return compare(sorted(done, key=lambda run: -order.get(run.key, 0)), every)


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


def rendered(runs: Sequence[Run], prices: Mapping[str, float], *, with_scores: bool = False) -> str:
    """Return the table for a terminal: two lines a run where it changed something."""
    if not runs:
        return "no runs"
    tasks = _tasks(runs) if with_scores else []
    headings = [heading.removeprefix("#") for heading in _headings(tasks, prices)]
    heading, *rows = aligned([headings, *(_row(run, tasks, prices) for run in runs)])
    lines = [heading]
    for run, row in zip(runs, rows, strict=True):
        changes = _changes(run)
        lines += [row, f"  {changes}"] if changes else [row]
    return "\n".join([*lines, counted(len(runs), "run"), BITS_NOTE])


def _headings(tasks: Sequence[str], prices: Mapping[str, float]) -> list[str]:
    """Return the columns of `_row`; a "#" marks numbers."""
    scores = [f"#{task}" for task in tasks]
    cost = ["#cost"] if prices else []
    return ["run", "state", "#tokens", "#loss", "#bits/byte", *scores, "#time", *cost, "by", "finished", "recipe"]


def _row(run: Run, tasks: Sequence[str], prices: Mapping[str, float]) -> list[str]:
    cost = _cost(run, prices)
    return [
        run.name,
        run.state,
        NONE if run.tokens is None else f"{run.tokens:,}",
        NONE if run.loss is None else f"{run.loss:.4f}",
        NONE if run.bits_per_byte is None else f"{run.bits_per_byte:.4f}",
        *(_score(run, task) for task in tasks),
        NONE if run.hours is None else _time(run.hours),
        *([NONE if cost is None else f"{cost:,.2f}"] if prices else []),
        run.user or NONE,
        run.finished[:16].replace("T", " ") or NONE,
        run.recipe or NONE,
    ]


def _time(hours: float) -> str:
    """Return `0.7 s`, `12.5 min` or `1.50 h`; runs.js sorts by these units."""
    seconds = hours * 3600
    return f"{seconds:.1f} s" if seconds < 59.95 else f"{seconds / 60:.1f} min" if seconds < 3597 else f"{hours:,.2f} h"


def _cost(run: Run, prices: Mapping[str, float]) -> float | None:
    """Return hours times the price of the machine, if both are known."""
    return None if run.hours is None or run.machine not in prices else run.hours * prices[run.machine]


def _score(run: Run, task: str) -> str:
    if task not in run.scores:
        return NONE
    value, error = run.scores[task]
    return f"{value:.3f}" if error is None else f"{value:.3f} ±{error:.3f}"


def _changes(run: Run) -> str:
    if not run.changed:
        return ""
    # Shorten old and new value separately, so that both remain visible.
    shown = ", ".join(
        " -> ".join(textwrap.shorten(value, WIDTH_OF_A_VALUE) for value in change.split(" -> "))
        for change in run.changed[:MOST_CHANGES]
    )
    more = f", and {len(run.changed) - MOST_CHANGES} more" if len(run.changed) > MOST_CHANGES else ""
    return f"against {run.base}: {shown}{more}"


def _tasks(runs: Sequence[Run]) -> list[str]:
    return sorted({task for run in runs for task in run.scores})
