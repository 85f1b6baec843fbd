"""Rate remarks: phases that do not begin or end where the decay or warm-up of their schedule does.

Schedules count absolute steps, so that moving the end of a phase changes nothing before it. A phase that starts
elsewhere than it was written to keeps them too: the rate then stands still, or a decay is cut short.
"""

from collections.abc import Iterator, Mapping

from marin_dag.plan.lint import LintWarning
from marin_dag.quantities import counted
from runtime.optim.schedule import Cosine, Linear, Rewarm
from runtime.report.recipe import rate
from runtime.training.timeline import Leg


def rate_remarks(legs: Mapping[str, Leg]) -> dict[str, list[LintWarning]]:
    """By phase; of those that begin and end as their schedules do there is no entry."""
    return {name: found for name, leg in legs.items() if (found := [*_of(leg, legs)])}


def _of(leg: Leg, legs: Mapping[str, Leg]) -> Iterator[LintWarning]:
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
            f"its {what} begins at step {start:,} and the phase at {begin:,}: the rate stays at {rate(schedule(begin))}"
        )
        moved = {"learning_rate.start_step": str(begin)}
        if until <= start:
            yield LintWarning(f"{stays} to its end", moved)
            return
        moved["until_step"] = str(until - (start - begin))
        yield LintWarning(f"{stays} for its first {counted(start - begin, 'update')}", moved)
    elif begin > start and not _is_gone_on_with(leg, legs):
        where = (
            f"after all {num_steps:,} steps" if begin >= end else f"{begin - start:,} of {num_steps:,} steps into it"
        )
        yield LintWarning(
            f"its {what} begins at step {start:,} and the phase at {begin:,}, {where}",
            {"learning_rate.start_step": str(begin), "until_step": str(until + begin - start)},
        )
    if until < end and not any(other.parent == leg.name and _is_gone_on_with(other, legs) for other in legs.values()):
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


def _is_gone_on_with(leg: Leg, legs: Mapping[str, Leg]) -> bool:
    """Whether it is the schedule of the phase before that this one has: one decay over two phases."""
    return leg.parent is not None and legs[leg.parent].settings.learning_rate == leg.settings.learning_rate
