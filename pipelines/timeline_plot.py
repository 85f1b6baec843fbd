"""Timeline plot: each phase's settings at the steps where something changes, in the report's figure."""

from collections.abc import Iterator

import numpy as np

from pipelines.phases import twins_in
from pipelines.timeline import Timeline, render
from runtime.optim.schedule import Cosine, Linear, Rewarm, WsdS
from runtime.report.contents import Curve, MixtureSpan, Phase
from runtime.report.timeline_page import page
from steps.phase_timeline import RunPhase

POINTS_OF_A_CURVE = 200
"""Steps of each curved segment."""


def draw(title: str, found: Timeline) -> str:
    """Return a whole timeline as a page."""
    twins = twins_in({name: found.phases[name] for name in found.shown})
    drawn = [_phase(found.legs[name], is_main=name in found.main_line, same_as=twins.get(name)) for name in found.shown]
    return page(title, drawn, render(found))


def _phase(leg: RunPhase, *, is_main: bool, same_as: str | None) -> Phase:
    settings = leg.settings
    # A row is a finished update; its rate is that of the step before it.
    steps = np.array(sorted(set(_steps_to_show(leg)))) + 1
    curve = Curve(
        step=steps,
        consumed_tokens=np.array([leg.tokens_at(int(step)) for step in steps]),
        loss=np.zeros(len(steps)),
        learning_rate=np.array([settings.learning_rate(int(step) - 1) for step in steps]),
        global_batch_size=np.full(len(steps), settings.global_batch_size),
    )
    return Phase(
        name=leg.name,
        parent=leg.parent,
        is_main=is_main,
        start_step=leg.begin_step,
        step=settings.until_step,
        start_tokens=leg.begin_tokens,
        consumed_tokens=leg.end_tokens,
        final_loss=0.0,
        averages=settings.averages,
        curve=curve,
        mixture=tuple(MixtureSpan(span.start_step, span.shares()) for span in settings.mixture.segments),
        same_as=same_as,
    )


def _steps_to_show(leg: RunPhase) -> Iterator[int]:
    """Yield both ends of a phase, each corner of its schedule, and points along its bends."""
    first, last = leg.begin_step, leg.settings.until_step - 1
    yield from (first, last)
    for begin, end in _segments(leg):
        low, high = max(begin, first), min(end, last)
        if low <= high:
            yield from (int(step) for step in np.linspace(low, high, min(POINTS_OF_A_CURVE, high - low + 1)))


def _segments(leg: RunPhase) -> Iterator[tuple[int, int]]:
    schedule = leg.settings.learning_rate
    match schedule:
        case Linear() | Cosine():
            warmup_steps = schedule.warmup_steps if isinstance(schedule, Cosine) else 0
            yield schedule.first_step, schedule.first_step + warmup_steps + schedule.decay_steps
        case Rewarm():
            yield schedule.first_step, schedule.first_step + schedule.warmup_steps
        case WsdS():
            yield 0, schedule.warmup_steps
            ends = [*(cycles.start_step for cycles in schedule.cycles[1:]), leg.settings.until_step]
            for cycles, end in zip(schedule.cycles, ends, strict=True):
                for begin in range(cycles.start_step, end, cycles.cycle_steps):
                    yield begin, begin
                    yield begin + cycles.cycle_steps - cycles.decay_steps, begin + cycles.cycle_steps - 1
