"""timeline: every phase of a recipe with its steps, tokens, settings and changes."""

from typing import TYPE_CHECKING

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Session
from marin_dag.errors import UserError
from marin_dag.plan.config_checks import refusals
from pipelines.output import Shown, command
from pipelines.phases import fork_names, phases_in, twins_in, wanted_phases
from pipelines.timeline import Timeline, document, render, timeline_of
from steps.phase_timeline import RunPhase

if TYPE_CHECKING:
    from runtime.report.contents import MixtureSpan, Phase

MOST_POINTS = 5_000
"""Most points of a phase's drawn learning rate."""


@command(
    "timeline [PHASE...] [--json]",
    "every phase: steps, tokens, settings, what changes",
    "--set --json",
    page="draw all phases",
)
def timeline(session: Session) -> Shown:
    names, graph = session.parsed.names, session.graph()
    wanted_phases(session, graph)
    if session.parsed.page is not None and names:
        raise UserError("timeline --page draws every phase. Remove the names of phases.")
    phases = phases_in(graph.steps)
    refused = refusals(phases[name] for name in names or phases)
    found = timeline_of(phases, refused, fork_names(session), names)
    return Shown(
        [render(found)],
        FAILED if refused else NOTHING_WOULD_RUN,
        lambda: document(found),
        lambda: draw(f"Timeline of {session.pipeline}", found),
    )


def draw(title: str, found: Timeline) -> str:
    """Return a whole timeline as a page."""
    from runtime.report.pages import timeline_page

    twins = twins_in({name: found.phases[name] for name in found.shown})
    drawn = [
        _phase(found.run_phases[name], is_main=name in found.main_line, same_as=twins.get(name)) for name in found.shown
    ]
    return timeline_page(title, drawn, render(found))


def _phase(run_phase: RunPhase, *, is_main: bool, same_as: str | None) -> "Phase":
    import numpy as np  # only the drawing needs it

    from runtime.report.contents import Curve, Phase

    settings = run_phase.settings
    # Row n is the state after n training steps; step n - 1, counted from 0, set its rate.
    steps = np.unique(np.linspace(run_phase.begin_step + 1, settings.until_step, MOST_POINTS).astype(np.int64))
    curve = Curve(
        step=steps,
        consumed_tokens=np.array([run_phase.tokens_at(int(step)) for step in steps]),
        loss=np.zeros(len(steps)),
        learning_rate=np.array([settings.learning_rate(int(step) - 1) for step in steps]),
        global_batch_size=np.full(len(steps), settings.global_batch_size),
    )
    return Phase(
        name=run_phase.name,
        parent=run_phase.parent,
        is_main=is_main,
        start_step=run_phase.begin_step,
        step=settings.until_step,
        start_tokens=run_phase.begin_tokens,
        consumed_tokens=run_phase.end_tokens,
        final_loss=0.0,
        averages=settings.averages,
        curve=curve,
        mixture=_mixture(run_phase),
        same_as=same_as,
    )


def _mixture(run_phase: RunPhase) -> "tuple[MixtureSpan, ...]":
    from runtime.report.contents import MixtureSpan

    segments, until = run_phase.settings.mixture.segments, run_phase.settings.until_step
    begins = [max(segment.start_step, run_phase.begin_step) for segment in segments]
    return tuple(
        MixtureSpan(run_phase.tokens_at(begin), run_phase.tokens_at(min(end, until)), segment.shares())
        for segment, begin, end in zip(segments, begins, [*begins[1:], until], strict=True)
        if begin < min(end, until)
    )
