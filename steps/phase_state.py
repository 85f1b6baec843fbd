"""Phase state: where an attempt at a training phase begins."""

import functools
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from marin_dag.step import StepContext
from runtime.tracking.events import EventLog
from runtime.training import run_state
from runtime.training.run_state import RunState
from runtime.training.state import initial_state, placed_shapes
from runtime.training.temporary import TemporaryCheckpoints

if TYPE_CHECKING:
    from steps.train_phase import TrainPhaseConfig


def own_state(
    config: "TrainPhaseConfig",
    context: StepContext,
    mesh: Mesh,
    temporary: TemporaryCheckpoints,
    events: EventLog,
) -> RunState | None:
    """The newest state that an attempt at this trajectory left, up to `until_step`."""
    own = {step: milestone.path for step, milestone in context.milestones().items() if step <= config.until_step}
    if (newest := temporary.newest(config.until_step)) is not None:
        own.setdefault(newest.step, newest.folder)
    if not own:
        return None
    folder = own[max(own)]
    run = run_state.resumed(folder, functools.partial(placed_shapes, config.model, mesh), **_extras(config))
    events.write("resume", step=run.step, consumed_tokens=run.consumed_tokens, folder=folder)
    return run


def first_state(config: "TrainPhaseConfig", mesh: Mesh, events: EventLog) -> RunState:
    """Of a trajectory without a state of its own: what `start` says."""
    if config.start is None:
        events.write("scratch", step=0, consumed_tokens=0, seed=config.seed)
        return run_state.from_scratch(initial_state(config.model, config.seed, mesh, **_extras(config)))
    state_like = functools.partial(placed_shapes, config.model, mesh)
    run = run_state.continued(config.start.path, config.restore, state_like, seed=config.seed, **_extras(config))
    events.write(
        "start",
        step=run.step,
        consumed_tokens=run.consumed_tokens,
        folder=config.start.path,
        restore=config.restore,
    )
    return run


def _extras(config: "TrainPhaseConfig") -> dict[str, Any]:
    """What a state holds beside parameters and moments."""
    return {
        "averages": tuple(average.name for average in config.averages),
        "skip_window_steps": 0 if config.skip is None else config.skip.window_steps,
    }
