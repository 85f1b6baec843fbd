"""Phase state: where an attempt at a training phase begins."""

import functools
from typing import Any

from jax.sharding import Mesh

from marin_dag.damage import DamagedInputError
from marin_dag.step import StepContext
from runtime.parallel.hosts import of_first_host
from runtime.tracking.events import EventLog
from runtime.training import run_state
from runtime.training.checkpoint_reader import TornCheckpointError
from runtime.training.run_state import RunState
from runtime.training.state import initial_state, placed_shapes
from runtime.training.temporary import TemporaryCheckpoints
from steps.train_phase import TrainPhaseConfig

NONE = -1
"""No step, or the lease epoch of a milestone, which has none."""


def own_state(
    config: TrainPhaseConfig,
    context: StepContext,
    mesh: Mesh,
    temporary: TemporaryCheckpoints,
    events: EventLog,
) -> RunState | None:
    """The newest state that an attempt at this trajectory left, up to `until_step`.

    All hosts take the one that host 0 finds: an attempt that has lost its lease may complete one while they look.

    Raises:
        DamagedInputError: a file of it is damaged or gone, and it is where `start` begins.
        TornCheckpointError: as much, of any other.
    """
    milestones = {step: milestone.path for step, milestone in context.milestones().items() if step <= config.until_step}
    newest = temporary.newest(config.until_step)
    if newest is None or newest.step <= max(milestones, default=NONE):
        found = max(milestones, default=NONE), NONE
    else:
        found = newest.step, newest.lease_epoch
    step, lease_epoch = of_first_host(*found)
    if step == NONE:
        return None
    folder = milestones[step] if lease_epoch == NONE else temporary.folder_of(step, lease_epoch)
    try:
        run = run_state.resumed(folder, functools.partial(placed_shapes, config.model, mesh), **_extras(config))
    except TornCheckpointError as error:
        if lease_epoch == NONE:
            if config.start is not None and config.start.key == f"{context.digest}@{step}":
                raise DamagedInputError(str(error), step_to_force=config.start.name) from error
            raise
        manifest = f"{folder}/{run_state.CHECKPOINT}/manifest.json"
        raise TornCheckpointError(error.damage, f"delete {manifest} to go on from the one before.") from error
    events.write("resume", step=run.step, consumed_tokens=run.consumed_tokens, folder=folder)
    return run


def first_state(config: TrainPhaseConfig, mesh: Mesh, events: EventLog) -> RunState:
    """Of a trajectory without a state of its own: what `start` says.

    Raises:
        DamagedInputError: a file of that is damaged or gone.
    """
    if config.start is None:
        events.write("scratch", step=0, consumed_tokens=0, seed=config.seed)
        return run_state.from_scratch(initial_state(config.model, config.seed, mesh, **_extras(config)))
    state_like = functools.partial(placed_shapes, config.model, mesh)
    try:
        run = run_state.continued(config.start.path, config.restore, state_like, seed=config.seed, **_extras(config))
    except TornCheckpointError as error:
        raise DamagedInputError(str(error), step_to_force=config.start.name) from error
    events.write(
        "start",
        step=run.step,
        consumed_tokens=run.consumed_tokens,
        folder=config.start.path,
        restore=config.restore,
    )
    return run


def _extras(config: TrainPhaseConfig) -> dict[str, Any]:
    """What a state holds beside parameters and moments."""
    return {
        "averages": tuple(average.name for average in config.averages),
        "skip_window_steps": 0 if config.skip is None else config.skip.window_steps,
    }
