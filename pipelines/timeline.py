"""The timeline of a recipe in words: each phase and branch, what it changes, and which jumps it acknowledges.

It is read off the steps of the graph, so that `--set`, forks and scales show what they would run. No JAX, no NumPy.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from marin_dag.graph.graph import Graph
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.step import Step
from marin_dag.plan.lint import LintWarning
from marin_dag.quantities import counted
from pipelines.data_lint import lint_data
from pipelines.model_lint import lint_models
from pipelines.rate_lint import lint_rates
from pipelines.validation_lint import lint_validation
from runtime.data.mixture import MixtureSchedule
from runtime.optim.schedule import WsdS
from runtime.report.recipe import described, rate, shares, side_branches
from steps.phase_config import TrainPhaseConfig, chosen_settings
from steps.phase_timeline import Change, RunPhase, changes, learning_rate_jump, place_phases

SCHEMA = "marin_dag.timeline/1"
SHOWN_IN_EVERY_PHASE = ("rope", "mixture")
"""Fields that each phase shows although it inherits them, as the published table does."""
LISTED_APART = ("mixture", "global_batch_size", "sequence_length", "seed")
"""Settings of a first phase that have lines of their own."""
VALUE_WIDTH = 120 - 22
"""Characters of a line behind the name of a field."""
HEADINGS = ("phase", "until step", "steps", "tokens at its end", "batch", "learning rate", "decay", "EMA", "z-loss")


def phase_before(phase: Step) -> OutputRef[Step] | None:
    """Return the phase that this one starts from; None for a start from scratch or from imported weights."""
    start = phase.predecessor
    return start if start is not None and start.step.kind.continues is not None else None


def phases_in(steps: Iterable[Step]) -> dict[str, Step]:
    """Return the training phases among some steps, each after the one it starts from."""
    found: dict[str, Step] = {}

    def add(step: Step) -> None:
        if step.name in found:
            return
        if (start := phase_before(step)) is not None:
            add(start.step)
        found[step.name] = step

    for step in steps:
        if step.kind.continues is not None:
            add(step)
    return found


def legs_in(phases: Mapping[str, Step]) -> dict[str, RunPhase]:
    """Return the position of each phase in its run."""
    starts = {
        name: (start.step.name, phase.config.begin_step)
        for name, phase in phases.items()
        if (start := phase_before(phase)) is not None
    }
    return place_phases({name: phase.config for name, phase in phases.items()}, starts)


def lint(graph: Graph) -> dict[str, list[LintWarning]]:
    """Return the lint warnings about the phases of a graph, by phase."""
    return lint_on(legs_in(phases_in(graph.steps)))


def lint_on(legs: Mapping[str, RunPhase]) -> dict[str, list[LintWarning]]:
    """Return the lint warnings about phases, by phase; phases without a warning have no entry."""
    kinds = lint_data(legs), lint_models(legs), lint_rates(legs), lint_validation(legs)
    return {name: found for name in legs if (found := [warning for kind in kinds for warning in kind.get(name, ())])}


def main_line_of(legs: Mapping[str, RunPhase], forks: Collection[str] = ()) -> list[str]:
    """Return the phases that lead to the phase with the most tokens: the run without branches and `forks`."""
    written = [name for name in legs if name not in forks]
    last: str | None = max(written or legs, key=lambda name: legs[name].end_tokens)
    line: list[str] = []
    while last is not None:
        line.append(last)
        last = legs[last].parent
    return line[::-1]


def main_line_first(legs: Mapping[str, RunPhase], forks: Collection[str] = ()) -> list[str]:
    """Return the names of all phases: the main line, then its branches."""
    main_line = main_line_of(legs, forks)
    return [*main_line, *(name for name in legs if name not in main_line)]


def render(
    phases: Mapping[str, Step], refused: Mapping[str, str], forks: Collection[str] = (), names: Collection[str] = ()
) -> str:
    """Return a table of all phases, then each phase in full: its settings, changes, acknowledgements and refusal.

    With `names`, only these phases are shown, without totals.
    """
    legs = legs_in(phases)
    main_line = main_line_of(legs, forks)
    order = [name for name in main_line_first(legs, forks) if not names or name in names]
    rows = [_row(legs[name], is_branch=name not in main_line) for name in order]
    parts = [_aligned([HEADINGS, *rows]), ""]
    for name in order:
        leg = legs[name]
        parts += [*_in_full(leg, legs, phases, order), *_refused(refused.get(name)), ""]
    if names:
        return "\n".join(parts[:-1])
    last = legs[main_line[-1]]
    twins = twins_in({name: phases[name] for name in order})
    branches = [name for name in order if name not in main_line]
    num_trainings = sum(name not in twins for name in branches)
    branch_tokens = trained_tokens(phases, order) - trained_tokens(phases, main_line)
    parts.append(
        f"{counted(len(main_line), 'phase')}: {counted(last.settings.until_step, 'step')}, {last.end_tokens:,} tokens. "
        f"{side_branches(num_trainings, len(branches))}: {branch_tokens:,} tokens more."
    )
    parts += [f"{name} is the same training as {first}." for name, first in twins.items()]
    return "\n".join(parts)


def twins_in(phases: Mapping[str, Step]) -> dict[str, str]:
    """Return each phase whose output an earlier phase also has, and the first name of that output."""
    first: dict[str, str] = {}
    return {name: found for name, step in phases.items() if (found := first.setdefault(step.key, name)) != name}


def own_steps(phases: Mapping[str, Step], names: Iterable[str]) -> dict[str, int]:
    """Return the steps that each phase trains itself; steps that several phases share count for the first of them."""
    legs = legs_in(phases)
    reached: dict[str, int] = {}
    found: dict[str, int] = {}
    for leg in sorted((legs[name] for name in names), key=lambda leg: leg.begin_step):
        digest = phases[leg.name].digest
        begin = max(leg.begin_step, reached.get(digest, 0))
        reached[digest] = max(leg.settings.until_step, begin)
        found[leg.name] = reached[digest] - begin
    return found


def trained_tokens(phases: Mapping[str, Step], names: Iterable[str]) -> int:
    """Return the tokens that these phases train on, counting shared steps once."""
    legs = legs_in(phases)
    return sum(steps * legs[name].tokens_per_step for name, steps in own_steps(phases, names).items())


def document(
    phases: Mapping[str, Step], refused: Mapping[str, str], forks: Collection[str] = (), names: Collection[str] = ()
) -> dict[str, Any]:
    """Return the timeline as JSON data, in the same order; infinities are strings, such as "Infinity"."""
    legs = legs_in(phases)
    main_line = main_line_of(legs, forks)
    order = [name for name in main_line_first(legs, forks) if not names or name in names]
    notes = lint_on(legs)
    phases_as_json = [
        _as_json(legs[name], phases, name in main_line, refused.get(name))
        | {"notes": [{"text": note.text, "cure": dict(note.cure)} for note in notes.get(name, ())]}
        for name in order
    ]
    return {"schema": SCHEMA, "phases": json.loads(json.dumps(phases_as_json), parse_constant=str)}


def _as_json(leg: RunPhase, phases: Mapping[str, Step], is_main: bool, refused: str | None) -> dict[str, Any]:
    first, last = leg.rates
    start = phases[leg.name].predecessor
    found = changes(_left(leg, phases), leg.settings) if leg.parent is not None else ()
    return {
        "name": leg.name,
        "is_main": is_main,
        "start": None if start is None else start.step.name,
        "begin_step": leg.begin_step,
        "until_step": leg.settings.until_step,
        "begin_tokens": leg.begin_tokens,
        "end_tokens": leg.end_tokens,
        "resources": str(phases[leg.name].resources),
        "first_learning_rate": first,
        "last_learning_rate": last,
        "settings": phases[leg.name].config.model_dump(mode="json", exclude={"start", "caches"}),
        "changes": [
            {
                "field": change.field,
                "before": described(change.before),
                "after": described(change.after),
                "is_abrupt": change.is_abrupt,
                "is_acknowledged": change.field in leg.settings.acknowledge,
            }
            for change in found
        ],
        "refused": refused,
    }


def _refused(problem: str | None) -> list[str]:
    lines = [] if problem is None else problem.splitlines()
    return [f"  {'' if index else 'REFUSED by the plan: '}{line}" for index, line in enumerate(lines)]


def _left(leg: RunPhase, phases: Mapping[str, Step]) -> Any:
    """Return the parent's settings at the step where the phase leaves it, which may be before the parent's end."""
    return phases[str(leg.parent)].config.model_copy(update={"until_step": leg.begin_step})


def _row(leg: RunPhase, *, is_branch: bool) -> tuple[str, ...]:
    settings = leg.settings
    first, last = leg.rates
    return (
        f"{'  ' if is_branch else ''}{leg.name}",
        f"{settings.until_step:,}",
        f"{leg.steps:,}",
        f"{leg.end_tokens:,}",
        f"{settings.global_batch_size:,}",
        rate(first) if first == last else f"{rate(first)} → {rate(last)}",
        rate(settings.weight_decay),
        ", ".join(f"{average.decay:g}" for average in settings.averages) or "–",
        rate(settings.z_loss) if settings.z_loss else "–",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as columns: names and learning rates left-aligned, numbers right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, 5) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _in_full(
    leg: RunPhase, legs: Mapping[str, RunPhase], phases: Mapping[str, Step], shown: Collection[str]
) -> list[str]:
    settings, phase = leg.settings, phases[leg.name]
    before = None if leg.parent is None else legs[leg.parent]
    start = phase.predecessor
    origin = "from scratch" if start is None else f"from {start.step.name} ({settings.restore})"
    if before is not None:
        origin = f"from {before.name} at {leg.begin_step:,}"
    lines = [f"{leg.name}  {origin}, on {phase.resources}"]
    lines.append(
        f"  tokens         {leg.begin_tokens:,} + {leg.steps:,} x {settings.global_batch_size:,} x "
        f"{settings.sequence_length:,} = {leg.end_tokens:,}"
    )
    first, last = leg.rates
    lines.append(f"  learning rate  {rate(first)} at its first step, {rate(last)} at its last")
    for warning in lint_on(legs).get(leg.name, ()):
        lines += [f"  note           {warning.text}", f"                 instead: {warning.options(leg.name)}"]
    lines += _cycles(leg)
    if before is None:
        lines.append(f"  model          {settings.model.num_parameters:,} parameters, seed {settings.seed}")
        listed = {name: value for name, value in chosen_settings(settings).items() if name not in LISTED_APART}
        lines += [
            f"  = {field:<17} {line}" for field, value in listed.items() for line in _filled("", described(value))
        ]
        lines += [f"  = {'mixture':<17} {line}" for line in _mixture(settings.mixture, leg.begin_step)]
        return lines
    left = _left(leg, phases)
    changed = changes(left, settings)
    for change in changed:
        lines += _change(leg, left, change)
    if not changed:
        lines.append("  = all settings as in the phase before")
    for field in SHOWN_IN_EVERY_PHASE:
        if field not in {change.field for change in changed}:
            lines += _unchanged(leg, field, legs, shown)
    return lines


def _unchanged(leg: RunPhase, field: str, legs: Mapping[str, RunPhase], shown: Collection[str]) -> list[str]:
    """Return an inherited setting and the phase that set it; a mixture in full only where that phase is not shown."""
    origin, value = leg.name, getattr(leg.settings, field)
    while (parent := legs[origin].parent) is not None and getattr(legs[parent].settings, field) == value:
        origin = parent
    if not isinstance(value, MixtureSchedule):
        return [f"  = {field:<17} {described(value)}, as in {origin}"]
    lines = [f"as in {origin}"] if origin in shown else [f"as in {origin}:", *_mixture(value, leg.begin_step)]
    return [f"  = {field:<17} {line}" for line in lines]


def _cycles(leg: RunPhase) -> list[str]:
    """Return a line for each kind of WSD-S cycle that ends within the phase."""
    schedule = leg.settings.learning_rate
    if not isinstance(schedule, WsdS):
        return []
    lines = []
    for index, cycles in enumerate(schedule.cycles):
        later = schedule.cycles[index + 1].start_step if index + 1 < len(schedule.cycles) else leg.settings.until_step
        begin, end = max(cycles.start_step, leg.begin_step), min(later, leg.settings.until_step)
        if begin >= end:
            continue
        before, ended = ((step - cycles.start_step) // cycles.cycle_steps for step in (begin, end))
        lines.append(
            f"  cycles         from step {begin:,}: {ended - before} of {cycles.cycle_steps:,} steps, the last "
            f"{cycles.decay_steps:,} of each decaying to {rate(schedule.end_value)}"
        )
    return lines


def _change(leg: RunPhase, before: TrainPhaseConfig, change: Change) -> list[str]:
    if change.field == "mixture":
        drawn = before.mixture.shares_at(max(leg.begin_step - 1, 0))
        lines = _mixture(leg.settings.mixture, leg.begin_step, drawn)
        return [f"  ~ {'mixture':<17} {line}" for line in lines]
    old, new = described(change.before), described(change.after)
    whole = f"{old}  ->  {new}"
    values = [whole] if len(whole) <= VALUE_WIDTH else [*_filled("", old), *_filled("->  ", new)]
    lines = [f"  ~ {change.field:<17} {line}" for line in values]
    if not change.is_abrupt:
        return lines
    jump = ""
    if change.field == "learning_rate":
        left, met = learning_rate_jump(before, leg.settings) or (0.0, 0.0)
        jump = f" from {rate(left)} to {rate(met)}"
    elif change.field == "caches":
        jump = " to the beginning of each"
    where = f"a jump{jump} at step {leg.begin_step:,}"
    if change.field in leg.settings.acknowledge:
        return [*lines, f"    acknowledged: {where}"]
    return [*lines, f"    NOT acknowledged: {where}"]


def _mixture(mixture: MixtureSchedule, begin_step: int, before: Mapping[str, float] | None = None) -> list[str]:
    """Return the shares at a step and at each later change; with `before`, each beside its previous value."""
    lines = []
    later = [segment for segment in mixture.segments if segment.start_step > begin_step]
    for segment in (mixture.segment_at(begin_step), *later):
        begin = f"from step {max(segment.start_step, begin_step):,}: " if later else ""
        now = segment.shares()
        lines += _filled(begin, shares(now, before))
        if before is not None:
            removed = {source: share for source, share in before.items() if source not in now}
            lines += _filled("no longer: ", shares(removed)) if removed else []
            before = now
    return lines


def _filled(begin: str, listed: str) -> list[str]:
    """Return a list behind `begin`, broken after commas into lines of at most `VALUE_WIDTH` characters."""
    lines, indent = [begin], " " * len(begin)
    for word in listed.split(", "):
        if len(lines[-1]) + len(word) >= VALUE_WIDTH and lines[-1] not in (begin, indent):
            lines[-1] = lines[-1].removesuffix(" ")
            lines.append(indent)
        lines[-1] += f"{word}, "
    return [*lines[:-1], lines[-1].removesuffix(", ")]
