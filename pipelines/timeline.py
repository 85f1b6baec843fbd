"""The command `timeline`: each phase and branch in words, what it changes, and which jumps it acknowledges.

It is read off the steps of the graph, so that `--set`, forks and scales show what they would run. No JAX, no NumPy.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from marin_dag.graph.step import Step
from marin_dag.quantities import counted
from pipelines.lint import lint_on
from pipelines.output import aligned
from pipelines.phases import (
    main_line_first,
    main_line_of,
    run_phases_in,
    trained_tokens,
    twins_in,
)
from runtime.data.mixture import MixtureSchedule
from runtime.report.recipe import described, rate, shares, side_branches
from steps.phase_config import TrainPhaseConfig, chosen_settings
from steps.phase_timeline import RunPhase, SettingChange, changes, learning_rate_jump

SCHEMA = "marin_dag.timeline/1"
SHOWN_IN_EVERY_PHASE = ("rope", "mixture")
"""Fields that each phase shows although it inherits them, as the published table does."""
LISTED_APART = ("mixture", "global_batch_size", "sequence_length", "seed")
"""Settings of a first phase that have lines of their own."""
VALUE_WIDTH = 120 - 22
"""Characters of a line behind the name of a field."""
HEADINGS = ("phase", "until step", "steps", "tokens at its end", "batch", "learning rate", "decay", "EMA", "z-loss")


class Timeline(NamedTuple):
    """Phases, their place in the run, and what a plan refuses about them."""

    phases: Mapping[str, Step]
    run_phases: Mapping[str, RunPhase]
    main_line: list[str]
    shown: list[str]
    refused: Mapping[str, str]

    @property
    def is_whole(self) -> bool:
        """Whether every phase is shown."""
        return len(self.shown) == len(self.phases)


def timeline_of(
    phases: Mapping[str, Step], refused: Mapping[str, str], forks: Collection[str] = (), names: Collection[str] = ()
) -> Timeline:
    """Return the timeline of some phases; `forks` are always branches. With `names`, only these phases are shown."""
    run_phases = run_phases_in(phases)
    shown = [name for name in main_line_first(run_phases, forks) if not names or name in names]
    return Timeline(phases, run_phases, main_line_of(run_phases, forks), shown, refused)


def render(found: Timeline) -> str:
    """Return a table of the phases, then each in full, then the totals of a whole timeline."""
    rows = [_row(found.run_phases[name], is_branch=name not in found.main_line) for name in found.shown]
    parts = ["\n".join(aligned([HEADINGS, *rows], left=(0, 5)))]
    parts += ["\n".join(_in_full(found, name)) for name in found.shown]
    return "\n\n".join([*parts, *(["\n".join(_totals(found))] if found.is_whole else [])])


def _totals(found: Timeline) -> list[str]:
    last = found.run_phases[found.main_line[-1]]
    twins = twins_in({name: found.phases[name] for name in found.shown})
    branches = [name for name in found.shown if name not in found.main_line]
    num_trainings = sum(name not in twins for name in branches)
    branch_tokens = trained_tokens(found.phases, found.shown) - trained_tokens(found.phases, found.main_line)
    main_line = f"{counted(len(found.main_line), 'phase')}: {counted(last.settings.until_step, 'step')}"
    totals = (
        f"{main_line}, {last.end_tokens:,} tokens. "
        f"{side_branches(num_trainings, len(branches))}: {branch_tokens:,} tokens more."
    )
    return [totals, *(f"{name} is the same training as {first}." for name, first in twins.items())]


def document(found: Timeline) -> dict[str, Any]:
    """Return the timeline as JSON data, in the same order; infinities are strings, such as "Infinity"."""
    notes = lint_on(found.run_phases)
    phases_as_json = [
        _as_json(found, name)
        | {"notes": [{"text": note.text, "cure": dict(note.cure)} for note in notes.get(name, ())]}
        for name in found.shown
    ]
    return {"schema": SCHEMA, "phases": json.loads(json.dumps(phases_as_json), parse_constant=str)}


def _as_json(found: Timeline, name: str) -> dict[str, Any]:
    run_phase, phase = found.run_phases[name], found.phases[name]
    start = phase.predecessor
    first, last = run_phase.rates
    return {
        "name": name,
        "is_main": name in found.main_line,
        "start": None if start is None else start.step.name,
        "begin_step": run_phase.begin_step,
        "until_step": run_phase.settings.until_step,
        "begin_tokens": run_phase.begin_tokens,
        "end_tokens": run_phase.end_tokens,
        "resources": str(phase.resources),
        "first_learning_rate": first,
        "last_learning_rate": last,
        "settings": phase.config.model_dump(mode="json", exclude={"start", "caches"}),
        "changes": [
            {
                "field": change.field,
                "before": described(change.before),
                "after": described(change.after),
                "is_abrupt": change.is_abrupt,
                "is_acknowledged": change.field in run_phase.settings.acknowledge,
            }
            for change in (changes(_left(found, run_phase), run_phase.settings) if run_phase.parent is not None else ())
        ],
        "refused": found.refused.get(name),
    }


def _left(found: Timeline, run_phase: RunPhase) -> TrainPhaseConfig:
    """Return the parent's settings at the step where the phase leaves it, which may be before the parent's end."""
    parent: TrainPhaseConfig = found.phases[str(run_phase.parent)].config
    return parent.model_copy(update={"until_step": run_phase.begin_step})


def _row(run_phase: RunPhase, *, is_branch: bool) -> tuple[str, ...]:
    settings = run_phase.settings
    first, last = map(rate, run_phase.rates)
    return (
        f"{'  ' if is_branch else ''}{run_phase.name}",
        f"{settings.until_step:,}",
        f"{run_phase.steps:,}",
        f"{run_phase.end_tokens:,}",
        f"{settings.global_batch_size:,}",
        first if first == last else f"{first} → {last}",
        rate(settings.weight_decay),
        ", ".join(f"{average.decay:g}" for average in settings.averages) or "–",
        rate(settings.z_loss) if settings.z_loss else "–",
    )


def _in_full(found: Timeline, name: str) -> list[str]:
    run_phase, phase = found.run_phases[name], found.phases[name]
    settings, start = run_phase.settings, phase.predecessor
    origin = "from scratch" if start is None else f"from {start.step.name} ({settings.restore})"
    if run_phase.parent is not None:
        origin = f"from {run_phase.parent} at {run_phase.begin_step:,}"
    first, last = map(rate, run_phase.rates)
    lines = [
        f"{name}  {origin}, on {phase.resources}",
        f"  tokens         {run_phase.begin_tokens:,} + {run_phase.steps:,} x {settings.global_batch_size:,} x "
        f"{settings.sequence_length:,} = {run_phase.end_tokens:,}",
        f"  learning rate  {first} at its first step, {last} at its last",
    ]
    for warning in lint_on(found.run_phases).get(name, ()):
        lines += [f"  note           {warning.text}", f"                 instead: {warning.options(name)}"]
    if run_phase.parent is None:
        lines.append(f"  model          {settings.model.num_parameters:,} parameters, seed {settings.seed}")
        for field, value in chosen_settings(settings).items():
            if field not in LISTED_APART:
                lines += _field("=", field, _filled("", described(value)))
        lines += _field("=", "mixture", _mixture(settings.mixture, run_phase.begin_step))
    else:
        lines += _changes(found, run_phase)
    refusal = found.refused.get(name, "").splitlines()
    return lines + [f"  {'' if index else 'REFUSED by the plan: '}{line}" for index, line in enumerate(refusal)]


def _field(sign: str, field: str, values: list[str]) -> list[str]:
    return [f"  {sign} {field:<17} {value}" for value in values]


def _changes(found: Timeline, run_phase: RunPhase) -> list[str]:
    """Return what a phase changes, and the settings that each phase shows although it inherits them."""
    left = _left(found, run_phase)
    changed = changes(left, run_phase.settings)
    lines = [line for change in changed for line in _change(run_phase, left, change)]
    if not changed:
        lines.append("  = all settings as in the phase before")
    own = {change.field for change in changed}
    for field in (field for field in SHOWN_IN_EVERY_PHASE if field not in own):
        origin, value = run_phase.name, getattr(run_phase.settings, field)
        placed = found.run_phases
        while (parent := placed[origin].parent) and getattr(placed[parent].settings, field) == value:
            origin = parent
        if field == "rope":
            lines += _field("=", field, [f"{described(value)}, as in {origin}"])
        elif origin in found.shown:
            lines += _field("=", field, [f"as in {origin}"])
        else:
            lines += _field("=", field, [f"as in {origin}:", *_mixture(value, run_phase.begin_step)])
    return lines


def _change(run_phase: RunPhase, before: TrainPhaseConfig, change: SettingChange) -> list[str]:
    if change.field == "mixture":
        drawn = before.mixture.shares_at(max(run_phase.begin_step - 1, 0))
        return _field("~", "mixture", _mixture(run_phase.settings.mixture, run_phase.begin_step, drawn))
    old, new = described(change.before), described(change.after)
    whole = f"{old}  ->  {new}"
    values = [whole] if len(whole) <= VALUE_WIDTH else [*_filled("", old), *_filled("->  ", new)]
    lines = _field("~", change.field, values)
    if not change.is_abrupt:
        return lines
    jump = ""
    if change.field == "learning_rate":
        left, met = learning_rate_jump(before, run_phase.settings) or (0.0, 0.0)
        jump = f" from {rate(left)} to {rate(met)}"
    elif change.field == "caches":
        jump = " to the beginning of each"
    word = "acknowledged" if change.field in run_phase.settings.acknowledge else "NOT acknowledged"
    return [*lines, f"    {word}: a jump{jump} at step {run_phase.begin_step:,}"]


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
    lines = [begin]
    for index, word in enumerate(listed.split(", ")):
        if index and len(lines[-1]) + len(word) + 2 > VALUE_WIDTH:
            lines[-1] += ","
            lines.append(" " * len(begin) + word)
        else:
            lines[-1] += f", {word}" if index else word
    return lines
