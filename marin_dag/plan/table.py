"""Table: a plan as text that reads well in 100 columns, on a terminal and in a pipe."""

import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

from marin_dag.errors import listed
from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import RAYS_GPUS, Gpu
from marin_dag.plan.estimate import whole_cost
from marin_dag.plan.plan import Plan, Root
from marin_dag.plan.planned import PlannedStep, Verdict
from marin_dag.plan.reasons import (
    MAX_CHANGES,
    Changed,
    are_counted,
    are_of_another_recipe,
    render_all,
    render_changed,
    render_many,
)
from marin_dag.quantities import counted, in_bytes, in_short
from marin_dag.values.changes import nearest

GROUP_FROM = 3
PIPE_WIDTH = 100
"""In a pipe, where the column of costs stands; a longer reason pushes it out rather than being cut."""
MAX_NAME_WIDTH = 36
MAX_ROOTS = 12
MAX_NAMED = 3
COUNTED = (
    f"Where more than {MAX_CHANGES} things differ from what was made under a name, not each is told here; "
    "`why STEP` lists them."
)
OTHER_RECIPE = (
    "So much differs that this prefix seems to hold another recipe, or this one at another scale: give each a --prefix "
    "of its own."
)
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


class Row(NamedTuple):
    """One line of the table; of several steps that have everything in common but their names."""

    name: str
    verdict: Verdict
    reasons: tuple[str, ...]
    cost: Cost


def rows(plan: Plan, *, every_step: bool) -> Iterator[Row]:
    """Rows in the order of the plan, a step below what it needs; steps of one folder with one verdict and the same
    reasons share a row."""
    groups: dict[object, list[PlannedStep]] = {}
    is_other = _is_of_another_recipe(plan)
    for planned in plan.steps:
        if not planned.is_selected:
            continue
        reasons = _told(planned, is_other)
        family = planned.name.rpartition("/")[0]
        is_alone = every_step or not family
        key = planned.name if is_alone else (family, planned.verdict, planned.will_run, reasons)
        groups.setdefault(key, []).append(planned)
    shared: list[list[PlannedStep]] = []
    for members in groups.values():
        shared += [members] if len(members) >= GROUP_FROM else [[planned] for planned in members]
    for members in _below_what_they_need(shared):
        family = members[0].name.rpartition("/")[0]
        name = f"{family}/* ({len(members)} steps)" if len(members) > 1 else members[0].name
        yield _row(name, members, is_other)


def _below_what_they_need(shared: list[list[PlannedStep]]) -> list[list[PlannedStep]]:
    """The steps of each row, rows in an order in which each is below those that it needs; as they come where two need
    each other."""
    row_of = {planned.name: row for row, members in enumerate(shared) for planned in members}

    def needed(row: int) -> list[int]:
        names = [item.step.name for planned in shared[row] for _, item in planned.step.inputs]
        return [row_of[name] for name in names if name in row_of]

    # By a stack of our own, as where the graph is put in order.
    order: dict[int, None] = {}
    begun: set[int] = set()
    pending = list(reversed(range(len(shared))))
    while pending:
        row = pending[-1]
        if row in begun:
            order[pending.pop()] = None
        else:
            begun.add(row)
            pending.extend(other for other in reversed(needed(row)) if other not in begun)
    return [shared[row] for row in order]


def _row(name: str, members: list[PlannedStep], is_other: bool) -> Row:
    cost = sum((planned.cost for planned in members), Cost())
    return Row(name, members[0].verdict, _told(members[0], is_other), cost)


def _told(planned: PlannedStep, is_other: bool) -> tuple[str, ...]:
    """The reasons; where the prefix holds another recipe (`is_other`), a mass of differences is just that."""
    if not (is_other and are_counted(planned.reasons)):
        return render_all(planned.reasons)
    others = tuple(reason for reason in planned.reasons if not isinstance(reason, Changed))
    return (f"more than {MAX_CHANGES} differences", *render_all(others))


def _is_of_another_recipe(plan: Plan) -> bool:
    masses = (planned.reasons for planned in plan.steps if planned.is_selected and are_counted(planned.reasons))
    return any(map(are_of_another_recipe, masses))


def render_plan(plan: Plan, *, width: int | None = None, color: bool = False, every_step: bool = False) -> str:
    """The table, what is at the root of it, its totals, and what could not be followed in the code.

    Args:
        plan: what to show.
        width: of the terminal, where long reasons are wrapped; None for a pipe, where a reason is one line.
        color: whether to paint the verdicts.
        every_step: a line for each step, also for steps that have everything in common but their names.
    """
    table = list(rows(plan, every_step=every_step))
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
    is_other = _is_of_another_recipe(plan)
    first = (*textwrap.wrap(OTHER_RECIPE, width or PIPE_WIDTH), "") if is_other else ()
    below = (*_totals(plan), *_odd_machines(plan), *_open_questions(plan), *_opaque(plan))
    return "\n".join([*first, *lines, *(() if is_other else _roots(plan)), *_counted(plan), "", *below])


def _wrapped(reason: str, width: int | None) -> list[str]:
    line = " ".join(reason.split())
    return [line] if width is None else textwrap.wrap(line, width, subsequent_indent="  ") or [""]


def _roots(plan: Plan) -> Iterator[str]:
    """What was changed, and how much follows from it."""
    roots = [root for root in plan.roots if len(root.follow) > 1]
    made_at: dict[tuple[str, ...], list[Root]] = {}
    for root in roots:
        made_at.setdefault(root.made_at, []).append(root)
    lines = []
    for steps, found in made_at.items():
        if len(found) > MAX_CHANGES:
            follow = {name for root in found for name in root.follow}
            lines.append((len(follow), render_many(steps, [root.difference for root in found])))
        else:
            lines += [(len(root.follow), render_changed(steps, root.difference)) for root in found]
    lines.sort(key=lambda line: -line[0])
    if lines:
        yield from ("", "Because of:")
        yield from (f"  {text}  ({counted(num_steps, 'step')})" for num_steps, text in lines[:MAX_ROOTS])
    if len(lines) > MAX_ROOTS:
        yield f"  and {len(lines) - MAX_ROOTS} more; `plan --json` has them all"


def _counted(plan: Plan) -> Iterator[str]:
    if any(planned.is_selected and are_counted(planned.reasons) for planned in plan.steps):
        yield from ("", COUNTED)


def _totals(plan: Plan) -> Iterator[str]:
    selected = [planned for planned in plan.steps if planned.is_selected]
    counts = {verdict: sum(planned.verdict is verdict for planned in selected) for verdict in Verdict}
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    left = len(plan.steps) - len(selected)
    others = f" ({left} more not selected)" if left else ""
    shared = f"; {plan.num_shared} would share the output of another" if plan.num_shared else ""
    steps, would_run = counted(len(selected), "step"), len(plan.will_run) or "Nothing"
    yield f"{steps}{others}: {said or 'none'}. {would_run} would run{shared}."
    cost = plan.cost
    parts = [
        (cost.tokens, f"{in_short(cost.tokens)} tokens"),
        (cost.flops, f"{cost.flops:.2e} FLOPs"),
        (cost.chip_hours, f"{in_short(cost.chip_hours)} chip-hours"),
        (cost.bytes_read, f"{in_bytes(cost.bytes_read)} read"),
        (cost.bytes_written, f"{in_bytes(cost.bytes_written)} written{_coverage(plan, _is_sized)}"),
        (cost.seconds, f"{_time(cost.seconds)} of work{_coverage(plan, _is_timed)}, by past attempts"),
    ]
    if any(value for value, _ in parts):
        yield "Estimated: " + ", ".join(text for value, text in parts if value) + "."
    if plan.saved.tokens:
        yield f"Not done again: {in_short(plan.saved.tokens)} tokens of trajectories that go on from where they are."


def _odd_machines(plan: Plan) -> Iterator[str]:
    """GPUs by a name that Ray gives to none: a cluster may, and else the step waits for ever."""
    kinds: dict[str, list[str]] = {}
    for planned in plan.will_run:
        resources = planned.step.resources
        if isinstance(resources, Gpu) and resources.kind not in RAYS_GPUS:
            kinds.setdefault(resources.kind, []).append(planned.name)
    if kinds:
        yield ""
    for kind, names in kinds.items():
        yield (
            f"{listed(names, MAX_NAMED)}: no NVIDIA GPU is called {kind!r} by Ray.{nearest(kind.upper(), RAYS_GPUS)} "
            "Where no machine of the cluster declares that name itself, such a step waits for ever."
        )


def _open_questions(plan: Plan) -> Iterator[str]:
    if plan.open_questions:
        yield from ("", "No run begins before this is decided:")
    for name, question in plan.open_questions.items():
        first, *others = question.splitlines()
        yield f"  {name}: {first}"
        yield from (f"    {line}" for line in others)


def _is_timed(planned: PlannedStep) -> bool:
    return planned.is_timed


def _is_sized(planned: PlannedStep) -> bool:
    return whole_cost(planned.step).bytes_written > 0


def _coverage(plan: Plan, is_known: Callable[[PlannedStep], bool]) -> str:
    """Of how many steps it is known, where it is not all: 27 s of what takes a month would say the opposite."""
    known = sum(map(is_known, plan.will_run))
    return "" if known == len(plan.will_run) else f" in {known} of the {len(plan.will_run)} steps"


def _opaque(plan: Plan) -> Iterator[str]:
    """Loud on purpose: a change behind one of these would not be seen."""
    lines = dict.fromkeys(line for planned in plan.steps for line in planned.step.identity["code"]["opaque"])
    if lines:
        yield ""
        yield "The code fingerprint cannot see through these; a change behind them goes unnoticed:"
        yield from (f"  {line}" for line in lines)


def _cost(cost: Cost) -> str:
    """Tokens where there are any: FLOPs beside them say the same once more, and the totals have both."""
    if cost.tokens:
        return f"{in_short(cost.tokens)} tok"
    return f"{cost.flops:.1e} FLOPs" if cost.flops else ""


def _time(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
