"""Phase state: the state that an attempt at a training phase begins with."""

import errno
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from jax.sharding import Mesh

from marin_dag.graph.inputs import Input
from marin_dag.ledger.damage import DamagedInputError
from runtime.optim.optimizer import chosen
from runtime.parallel.hosts import of_first_host
from runtime.tracking.events import EventLog
from runtime.training import run_state
from runtime.training.checkpoint_reader import TornCheckpointError
from runtime.training.run_state import RunState
from runtime.training.state import initial_state, placed_shapes
from runtime.training.temporary import TemporaryCheckpoints
from steps.phase_config import TrainPhaseConfig

MANIFEST = f"{run_state.CHECKPOINT}/manifest.json"
NONE = -1
"""No step, or the lease epoch of a milestone, which has none."""


class StartState(NamedTuple):
    """The state that an attempt begins with, and its source."""

    run: RunState
    source: Input[Any] | None
    """The milestone that holds the state; None from scratch and for a temporary checkpoint."""
    lease_epoch: int | None = None
    """Epoch of the attempt that saved it, for a temporary checkpoint."""
    is_own: bool = False
    """An attempt at this phase made the state."""


class NewestState(NamedTuple):
    """Step and lease epoch of the newest state of a phase; see NONE."""

    step: int
    lease_epoch: int


def newest_state(config: TrainPhaseConfig, published: Iterable[int], temporary: TemporaryCheckpoints) -> NewestState:
    """Return the newest state up to `until_step`, as host 0 sees it: another may be completed meanwhile."""
    milestone = max((step for step in published if step <= config.until_step), default=NONE)
    saved = temporary.newest(config.until_step)
    found = (milestone, NONE) if saved is None or saved.step <= milestone else (saved.step, saved.lease_epoch)
    return NewestState(*of_first_host(*found))


def own_state(
    config: TrainPhaseConfig,
    newest: NewestState,
    published: Mapping[int, Input[Any]],
    mesh: Mesh,
    temporary: TemporaryCheckpoints,
    events: EventLog,
) -> StartState | None:
    """Load the newest state of this phase, if it has one; `published` are its milestones.

    Raises:
        DamagedInputError: a file is damaged or missing, in the milestone that is also `start`.
        TornCheckpointError: a file is damaged or missing, elsewhere.
    """
    step, lease_epoch = newest
    if step == NONE:
        return None
    if lease_epoch == NONE:
        folder = published[step].path
        try:
            run = _resumed(config, mesh, folder)
        except TornCheckpointError as error:
            if config.start is not None and config.start.key == published[step].key:
                raise DamagedInputError(str(error), steps_to_force=[config.start.name]) from error
            raise
    else:
        folder = temporary.folder_of(step, lease_epoch)
        run = _temporary_state(config, mesh, folder, "resume from the one before")
    events.write("resume", step=run.step, consumed_tokens=run.consumed_tokens, folder=folder)
    if lease_epoch == NONE:
        return StartState(run, published[step], is_own=True)
    return StartState(run, None, lease_epoch, is_own=True)


def publish_passed(
    config: TrainPhaseConfig,
    newest: NewestState,
    mesh: Mesh,
    temporary: TemporaryCheckpoints,
    *,
    wanted: Collection[int],
    publish: Callable[[RunState], None],
) -> None:
    """Call `publish` with each saved state of the `wanted` steps, in order, except the newest state.

    A resumed phase no longer passes these steps, and deletes their states as it saves newer ones.
    """
    steps = sorted(step for step in wanted if step <= config.until_step)
    if not steps:
        return
    saved = {each.step: each.lease_epoch for each in temporary.found if each.is_complete and each.step != newest.step}
    epochs = of_first_host(*(saved.get(step, NONE) for step in steps))
    for step, lease_epoch in zip(steps, epochs, strict=True):
        if lease_epoch != NONE:  # one state in memory at a time
            publish(_temporary_state(config, mesh, temporary.folder_of(step, lease_epoch), "continue without it"))


def first_state(config: TrainPhaseConfig, mesh: Mesh, events: EventLog) -> StartState:
    """Load the state of `start`, or make one from scratch.

    Raises:
        DamagedInputError: a file of `start` is damaged or missing.
    """
    if config.start is None:
        events.write("scratch", step=0, consumed_tokens=0, seed=config.seed)
        state = initial_state(config.model, config.seed, mesh, optimizer=chosen(config.optimizer), **_extras(config))
        return StartState(run_state.from_scratch(state), None)
    like = _state_like(config, mesh)
    try:
        run = run_state.continued(config.start.path, config.restore, like, seed=config.seed, **_extras(config))
    except TornCheckpointError as error:
        raise DamagedInputError(str(error), steps_to_force=[config.start.name]) from error
    facts = {"consumed_tokens": run.consumed_tokens, "folder": config.start.path, "restore": config.restore}
    events.write("start", step=run.step, **facts)
    return StartState(run, config.start)


def _temporary_state(config: TrainPhaseConfig, mesh: Mesh, folder: str, purpose: str) -> RunState:
    try:
        return _resumed(config, mesh, folder)
    except TornCheckpointError as error:
        raise TornCheckpointError(error.damage, f"delete {folder}/{MANIFEST} to {purpose}.") from error
    except OSError as error:
        if error.errno != errno.EIO:  # a lost block of a disk gives EIO at each read
            raise
        fix = f"If this repeats, delete {folder}/{MANIFEST} to {purpose}."
        raise OSError(error.errno, f"{error.strerror} {fix}") from error


def _resumed(config: TrainPhaseConfig, mesh: Mesh, folder: str) -> RunState:
    return run_state.resumed(folder, _state_like(config, mesh), **_extras(config))


def _state_like(config: TrainPhaseConfig, mesh: Mesh) -> run_state.StateLike:
    return functools.partial(placed_shapes, config.model, mesh, optimizer=chosen(config.optimizer))


def _extras(config: TrainPhaseConfig) -> dict[str, Any]:
    """Return the part of a state besides parameters and optimizer state."""
    return {
        "averages": tuple(average.name for average in config.averages),
        "skip_window_steps": 0 if config.skip is None else config.skip.window_steps,
    }
