"""Lint rules of phases: skipped data, learning rates and validations that end elsewhere than their phase, odd models.

Schedules count absolute steps, so moving the end of a phase changes nothing before it. In a phase that starts elsewhere
than planned, the rate then stays constant, or a decay is cut short.
"""

from collections.abc import Iterator, Mapping

from marin_dag.graph.graph import Graph
from marin_dag.plan.lint import LintWarning
from marin_dag.quantities import counted, in_short
from pipelines.model_lint import lint_model
from pipelines.phases import legs_in, phases_in
from runtime.optim.schedule import Cosine, Linear, Rewarm
from runtime.report.recipe import rate
from steps.phase_timeline import RunPhase

MEASUREMENTS = 10
"""Measurements of a phase with the proposed `validate_every_steps`."""


def lint(graph: Graph) -> dict[str, list[LintWarning]]:
    """Return the lint warnings about the phases of a graph, by phase."""
    return lint_on(legs_in(phases_in(graph.steps)))


def lint_on(legs: Mapping[str, RunPhase]) -> dict[str, list[LintWarning]]:
    """Return the lint warnings about phases, by phase; phases without a warning have no entry."""
    rules = (lint_data, lint_model, lint_rate, lint_validation)
    return {name: found for name, leg in legs.items() if (found := [w for rule in rules for w in rule(leg, legs)])}


def lint_data(leg: RunPhase, legs: Mapping[str, RunPhase]) -> Iterator[LintWarning]:
    """Warn where a phase skips batches."""
    if leg.settings.skip_batches:
        yield LintWarning(
            f"skip_batches is {leg.settings.skip_batches:,}: the phase skips {in_short(leg.skipped_tokens)} tokens of "
            "its data at its start; they count as read and make no training step",
            {"skip_batches": "0"},
        )


def lint_rate(leg: RunPhase, legs: Mapping[str, RunPhase]) -> Iterator[LintWarning]:
    """Warn where a phase does not start or end with the decay or warm-up of its schedule."""
    schedule = leg.settings.learning_rate
    if isinstance(schedule, Linear | Cosine):
        warmup_steps = schedule.warmup_steps if isinstance(schedule, Cosine) else 0
        what, num_steps, field = "decay", warmup_steps + schedule.decay_steps, "decay_steps"
    elif isinstance(schedule, Rewarm):
        what, num_steps, field = "warm-up", schedule.warmup_steps, "warmup_steps"
    else:
        return
    begin, until = leg.begin_step, leg.settings.until_step
    start, end = schedule.first_step, schedule.first_step + num_steps
    starts = f"its {what} starts at step {start:,} and the phase at {begin:,}"
    ends = f"its {what} ends at step {end:,} and the phase at {until:,}"
    if begin < start:
        stays = f"{starts}: the rate stays at {rate(schedule(begin))}"
        moved = {"learning_rate.start_step": str(begin)}
        if until <= start:
            yield LintWarning(f"{stays} to its end", moved)
            return
        moved["until_step"] = str(until - (start - begin))
        yield LintWarning(f"{stays} for its first {counted(start - begin, 'update')}", moved)
    elif begin > start and not _continues_schedule(leg, legs):
        where = f"after all {num_steps:,}" if begin >= end else f"{begin - start:,} of {num_steps:,}"
        yield LintWarning(
            f"{starts}, {where} steps{'' if begin >= end else ' into it'}",
            {"learning_rate.start_step": str(begin), "until_step": str(until + begin - start)},
        )
    if until < end and not any(
        other.parent == leg.name and _continues_schedule(other, legs) for other in legs.values()
    ):
        last = f"the last rate is {rate(leg.rates[1])}, and not {rate(schedule(end))}"
        yield LintWarning(f"{ends}: {last}", {"until_step": str(end)})
    elif end < until and what == "decay" and begin < end:
        stays = f"the rate stays at {rate(schedule(end))} for its last {counted(until - end, 'update')}"
        yield LintWarning(f"{ends}: {stays}", {f"learning_rate.{field}": str(until - start)})


def _continues_schedule(leg: RunPhase, legs: Mapping[str, RunPhase]) -> bool:
    """Return whether the phase before has the same schedule: one decay over two phases."""
    return leg.parent is not None and legs[leg.parent].settings.learning_rate == leg.settings.learning_rate


def lint_validation(leg: RunPhase, legs: Mapping[str, RunPhase]) -> Iterator[LintWarning]:
    """Warn where held-out text is measured at both ends of a phase, and never between.

    One value for all phases is often too large for a short one: a phase that inherits the value of an earlier phase,
    which is measured on its way, gets no warning.
    """
    every, parent = leg.settings.validate_every_steps, leg.parent
    if leg.steps <= 1 or not _is_never_due(leg):
        return
    while parent is not None and legs[parent].settings.validate_every_steps == every:
        if not _is_never_due(legs[parent]):
            return
        parent = legs[parent].parent
    yield LintWarning(
        f"validate_every_steps is {every:,}, and the phase goes from step {leg.begin_step:,} to "
        f"{leg.settings.until_step:,}, so held-out text is measured only at both ends",
        {"validate_every_steps": str(max(leg.steps // MEASUREMENTS, 1))},
    )


def _is_never_due(leg: RunPhase) -> bool:
    every = leg.settings.validate_every_steps
    has_multiple = every > 0 and (leg.settings.until_step - 1) // every > leg.begin_step // every
    return every > leg.steps and not has_multiple
