"""Timeline plot: the settings of each phase over its steps, in the report's figure."""

import numpy as np

from pipelines.phases import twins_in
from pipelines.timeline import Timeline, render
from runtime.report.contents import Curve, MixtureSpan, Phase
from runtime.report.pages import timeline_page
from steps.phase_timeline import RunPhase

MOST_POINTS = 5_000
"""Steps of a phase that its rates are drawn at."""


def draw(title: str, found: Timeline) -> str:
    """Return a whole timeline as a page."""
    twins = twins_in({name: found.phases[name] for name in found.shown})
    drawn = [_phase(found.legs[name], is_main=name in found.main_line, same_as=twins.get(name)) for name in found.shown]
    return timeline_page(title, drawn, render(found))


def _phase(leg: RunPhase, *, is_main: bool, same_as: str | None) -> Phase:
    settings = leg.settings
    # A row is a finished update; its rate is that of the step before it.
    steps = np.unique(np.linspace(leg.begin_step + 1, settings.until_step, MOST_POINTS).astype(np.int64))
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
