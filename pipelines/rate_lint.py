"""Lint rules of learning rates: phases that do not start or end where the decay or warm-up of their schedule does.

Schedules count absolute steps, so moving the end of a phase changes nothing before it. In a phase that starts elsewhere
than planned, the rate then stays constant, or a decay is cut short.
"""

from collections.abc import Iterator, Mapping

from marin_dag.plan.lint import LintWarning
from marin_dag.quantities import counted
from runtime.optim.schedule import Cosine, Linear, Rewarm
from runtime.report.recipe import rate
from steps.phase_timeline import RunPhase


def lint_rates(legs: Mapping[str, RunPhase]) -> dict[str, list[LintWarning]]:
    """Return warnings by phase; phases that start and end with their schedules have no entry."""
    return {name: found for name, leg in legs.items() if (found := [*_of(leg, legs)])}


def _of(leg: RunPhase, legs: Mapping[str, RunPhase]) -> Iterator[LintWarning]:
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
    if begin < start:
        stays = (
            f"its {what} starts at step {start:,} and the phase at {begin:,}: the rate stays at {rate(schedule(begin))}"
        )
        moved = {"learning_rate.start_step": str(begin)}
        if until <= start:
            yield LintWarning(f"{stays} to its end", moved)
            return
        moved["until_step"] = str(until - (start - begin))
        yield LintWarning(f"{stays} for its first {counted(start - begin, 'update')}", moved)
    elif begin > start and not _continues_schedule(leg, legs):
        where = (
            f"after all {num_steps:,} steps" if begin >= end else f"{begin - start:,} of {num_steps:,} steps into it"
        )
        yield LintWarning(
            f"its {what} starts at step {start:,} and the phase at {begin:,}, {where}",
            {"learning_rate.start_step": str(begin), "until_step": str(until + begin - start)},
        )
    if until < end and not any(
        other.parent == leg.name and _continues_schedule(other, legs) for other in legs.values()
    ):
        last, reached = leg.rates[1], schedule(end)
        yield LintWarning(
            f"its {what} ends at step {end:,} and the phase at {until:,}: the last rate is {rate(last)}, and not "
            f"{rate(reached)}",
            {"until_step": str(end)},
        )
    elif end < until and what == "decay" and begin < end:
        yield LintWarning(
            f"its {what} ends at step {end:,} and the phase at {until:,}: the rate stays at {rate(schedule(end))} for "
            f"its last {counted(until - end, 'update')}",
            {f"learning_rate.{field}": str(until - start)},
        )


def _continues_schedule(leg: RunPhase, legs: Mapping[str, RunPhase]) -> bool:
    """Return whether the phase before has the same schedule: one decay over two phases."""
    return leg.parent is not None and legs[leg.parent].settings.learning_rate == leg.settings.learning_rate
