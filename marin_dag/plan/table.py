"""Table: a plan as text of 100 columns, for a terminal or a pipe."""

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from marin_dag.errors import listed
from marin_dag.graph.cost import Cost
from marin_dag.plan.plan import Plan
from marin_dag.plan.planned import PlannedStep, Verdict
from marin_dag.plan.reasons import render_all, render_changed
from marin_dag.plan.remainder import whole_cost
from marin_dag.quantities import counted, in_bytes, in_short

GROUP_FROM = 3
PIPE_WIDTH = 100
"""The position of the cost column in a pipe; a longer reason moves the cost to the right and is not cut."""
MAX_NAME_WIDTH = 36
MAX_ROOTS = 12
MAX_UNCOVERED = 4
COLORS = {
    Verdict.DONE: "32",
    Verdict.MISSING: "36",
    Verdict.BEGUN: "36",
    Verdict.STALE: "33",
    Verdict.DRIFTED: "35",
    Verdict.RUNNING: "34",
    Verdict.QUEUED: "34",
    Verdict.FAILED: "31",
    Verdict.BLOCKED: "31",
}


class _Row(NamedTuple):
    """A line of the table: a step, or several that differ only in their names."""

    name: str
    verdict: Verdict
    reasons: tuple[str, ...]
    cost: Cost


def _rows(plan: Plan, *, every_step: bool) -> Iterator[_Row]:
    """Yield the rows in the order of the plan; steps of one folder with the same verdict and reasons share a row."""
    groups: dict[object, list[PlannedStep]] = {}
    for planned in plan.steps:
        if not planned.is_selected:
            continue
        family = planned.name.rpartition("/")[0]
        is_alone = every_step or not family
        reasons = render_all(planned.reasons)
        key = planned.name if is_alone else (family, planned.verdict, planned.will_run, reasons)
        groups.setdefault(key, []).append(planned)
    shared = [members for members in groups.values() if len(members) >= GROUP_FROM]
    single = [[planned] for members in groups.values() if len(members) < GROUP_FROM for planned in members]
    # A shared row stands where its last step does, below everything that its steps need.
    position = {planned.name: index for index, planned in enumerate(plan.steps)}
    for members in sorted([*shared, *single], key=lambda members: position[members[-1].name]):
        family = members[0].name.rpartition("/")[0]
        name = f"{family}/* ({len(members)} steps)" if len(members) > 1 else members[0].name
        cost = sum((planned.cost for planned in members), Cost())
        yield _Row(name, members[0].verdict, render_all(members[0].reasons), cost)


def render_plan(plan: Plan, *, width: int | None = None, color: bool = False, every_step: bool = False) -> str:
    """Return the table, the root causes of stale steps, the totals, and warnings.

    Args:
        width: of the terminal, where long reasons are wrapped; None for a pipe, where a reason is one line.
        color: whether to color the verdicts.
        every_step: whether each step has a line of its own.
    """
    table = list(_rows(plan, every_step=every_step))
    names = max((len(row.name) for row in table), default=4)
    names = names if width is None else min(MAX_NAME_WIDTH, names)
    costs = max((len(_cost(row.cost)) for row in table), default=0)
    rest = max((width or PIPE_WIDTH) - names - costs - 13 - (2 if costs else 0), 20)
    lines = []
    for row in table:
        reasons = [line for reason in row.reasons for line in _wrapped(reason, None if width is None else rest)] or [""]
        verdict = f"{row.verdict:<8}"
        painted = f"\033[{COLORS[row.verdict]}m{verdict}\033[0m" if color else verdict
        cost = f"  {_cost(row.cost):>{costs}}" if costs else ""
        lines.append(f"{row.name:<{names}}  {painted}  {reasons[0]:<{rest if cost.strip() else 0}}{cost}".rstrip())
        lines.extend(f"{'':<{names + 12}}{text}" for text in reasons[1:])
    below = (*_totals(plan), *_open_questions(plan), *_opaque(plan), *uncovered_lines(plan))
    return "\n".join([*lines, *_roots(plan), "", *below])


def _wrapped(reason: str, width: int | None) -> list[str]:
    line = " ".join(reason.split())
    return [line] if width is None else textwrap.wrap(line, width, subsequent_indent="  ") or [""]


def _roots(plan: Plan) -> Iterator[str]:
    """Yield each change that makes several steps stale, with their number."""
    roots = [root for root in plan.roots if len(root.follow) > 1]
    if roots:
        yield from ("", "Because of:")
    for root in roots[:MAX_ROOTS]:
        yield f"  {render_changed(root.made_at, root.difference)}  ({counted(len(root.follow), 'step')})"
    if len(roots) > MAX_ROOTS:
        yield f"  and {len(roots) - MAX_ROOTS} more; `plan --json` lists them"


def _totals(plan: Plan) -> Iterator[str]:
    selected = [planned for planned in plan.steps if planned.is_selected]
    counts = {verdict: sum(planned.verdict is verdict for planned in selected) for verdict in Verdict}
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    left = len(plan.steps) - len(selected)
    others = f" ({left} more not selected)" if left else ""
    shared = f"; {plan.num_shared} would share the output of another" if plan.num_shared else ""
    steps, would_run = counted(len(selected), "step"), len(plan.will_run) or "Nothing"
    yield f"{steps}{others}: {verdicts or 'none'}. {would_run} would run{shared}."
    cost = plan.cost
    num_sized, num_all = sum(whole_cost(each.step).bytes_written > 0 for each in plan.will_run), len(plan.will_run)
    # 3 MB could otherwise stand for terabytes.
    covered = "" if num_sized == num_all else f" in {num_sized} of the {num_all} steps"
    parts = [
        *((amount, f"{in_short(amount)} {unit}") for unit, amount in cost.work.items()),
        (cost.bytes_read, f"{in_bytes(cost.bytes_read)} read"),
        (cost.bytes_written, f"{in_bytes(cost.bytes_written)} written{covered}"),
    ]
    if any(value for value, _ in parts):
        yield "Estimated: " + ", ".join(text for value, text in parts if value) + "."
    if saved := _cost(plan.saved):
        yield f"Not repeated: {saved} of runs that continue from where they are."


def _open_questions(plan: Plan) -> Iterator[str]:
    if plan.open_questions:
        yield from ("", "No run starts before these settings are decided:")
    for name, question in plan.open_questions.items():
        first, *others = question.splitlines()
        yield f"  {name}: {first}"
        yield from (f"    {line}" for line in others)


def _opaque(plan: Plan) -> Iterator[str]:
    """Yield the code that a fingerprint does not cover: the plan would miss a change behind it."""
    lines = dict.fromkeys(line for planned in plan.steps for line in planned.step.identity["code"]["opaque"])
    if lines:
        yield ""
        yield "The code fingerprint cannot see through these; a change behind them is not noticed:"
        yield from (f"  {line}" for line in lines)


def uncovered_lines(plan: Plan) -> Iterator[str]:
    """Yield what finished steps used and their digests do not cover."""
    if plan.uncovered:
        yield ""
        yield "These steps used what their digests do not cover; a change of it is not noticed:"
        yield from (f"  {name}: {listed(lines, MAX_UNCOVERED)}" for name, lines in plan.uncovered.items())


def _cost(cost: Cost) -> str:
    """Return the first amount of work; the totals have all. Empty for an estimate of bytes alone."""
    return next((f"{in_short(amount)} {unit}" for unit, amount in cost.work.items() if amount), "")
