"""Phase state: where an attempt at a training phase begins."""

import errno
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from jax.sharding import Mesh

from marin_dag.graph.inputs import Input
from marin_dag.ledger.damage import DamagedInputError
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


class Begun(NamedTuple):
    """The state that an attempt begins with, and where it is from."""

    run: RunState
    source: Input[Any] | None
    """The milestone that it lies in, of whatever trajectory; None from scratch, and of a temporary checkpoint."""
    lease_epoch: int | None = None
    """Of the attempt that saved it, where it is a temporary checkpoint."""
    is_own: bool = False
    """Whether it is of this trajectory."""


class Newest(NamedTuple):
    """The newest state that an attempt at a trajectory left; both are NONE where there is none."""

    step: int
    lease_epoch: int
    """NONE of a milestone."""


def newest_state(config: TrainPhaseConfig, published: Iterable[int], temporary: TemporaryCheckpoints) -> Newest:
    """Up to `until_step`. It is looked for once, by host 0 for all: an attempt that has lost its lease may complete
    another one meanwhile."""
    milestone = max((step for step in published if step <= config.until_step), default=NONE)
    saved = temporary.newest(config.until_step)
    found = (milestone, NONE) if saved is None or saved.step <= milestone else (saved.step, saved.lease_epoch)
    return Newest(*of_first_host(*found))


def own_state(
    config: TrainPhaseConfig,
    newest: Newest,
    published: Mapping[int, Input[Any]],
    mesh: Mesh,
    temporary: TemporaryCheckpoints,
    events: EventLog,
) -> Begun | None:
    """The newest state; `published` are the milestones of the trajectory.

    Raises:
        DamagedInputError: a file of it is damaged or gone, and it is where `start` begins.
        TornCheckpointError: as much, of any other.
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
        run = _of_temporary(config, mesh, folder, "go on from the one before")
    events.write("resume", step=run.step, consumed_tokens=run.consumed_tokens, folder=folder)
    if lease_epoch == NONE:
        return Begun(run, published[step], is_own=True)
    return Begun(run, None, lease_epoch, is_own=True)


def publish_passed(
    config: TrainPhaseConfig,
    newest: Newest,
    mesh: Mesh,
    temporary: TemporaryCheckpoints,
    *,
    wanted: Collection[int],
    publish: Callable[[RunState], None],
) -> None:
    """Gives `publish` the states of `wanted` steps that attempts have saved, in order, but for the newest state of all,
    which `own_state` takes.

    A phase that goes on comes by none of them any more, and deletes them as it saves newer ones.

    Raises:
        TornCheckpointError: a file of one is damaged or gone.
    """
    steps = sorted(step for step in wanted if step <= config.until_step)
    if not steps:
        return
    saved = {each.step: each.lease_epoch for each in temporary.found if each.is_complete and each.step != newest.step}
    epochs = of_first_host(*(saved.get(step, NONE) for step in steps))
    for step, lease_epoch in zip(steps, epochs, strict=True):
        if lease_epoch != NONE:  # one state in memory at a time
            publish(_of_temporary(config, mesh, temporary.folder_of(step, lease_epoch), "go on without it"))


def first_state(config: TrainPhaseConfig, mesh: Mesh, events: EventLog) -> Begun:
    """Of a trajectory without a state of its own: what `start` says.

    Raises:
        DamagedInputError: a file of that is damaged or gone.
    """
    if config.start is None:
        events.write("scratch", step=0, consumed_tokens=0, seed=config.seed)
        return Begun(run_state.from_scratch(initial_state(config.model, config.seed, mesh, **_extras(config))), None)
    state_like = functools.partial(placed_shapes, config.model, mesh)
    try:
        run = run_state.continued(config.start.path, config.restore, state_like, seed=config.seed, **_extras(config))
    except TornCheckpointError as error:
        raise DamagedInputError(str(error), steps_to_force=[config.start.name]) from error
    events.write(
        "start",
        step=run.step,
        consumed_tokens=run.consumed_tokens,
        folder=config.start.path,
        restore=config.restore,
    )
    return Begun(run, config.start)


def _of_temporary(config: TrainPhaseConfig, mesh: Mesh, folder: str, cure: str) -> RunState:
    try:
        return _resumed(config, mesh, folder)
    except TornCheckpointError as error:
        raise TornCheckpointError(error.damage, f"delete {folder}/{MANIFEST} to {cure}.") from error
    except OSError as error:
        if error.errno != errno.EIO:  # what a block of a disk that is gone gives, each time it is read
            raise
        raise OSError(error.errno, f"{error.strerror} If it stays so, delete {folder}/{MANIFEST} to {cure}.") from error


def _resumed(config: TrainPhaseConfig, mesh: Mesh, folder: str) -> RunState:
    return run_state.resumed(folder, functools.partial(placed_shapes, config.model, mesh), **_extras(config))


def _extras(config: TrainPhaseConfig) -> dict[str, Any]:
    """What a state holds beside parameters and moments."""
    return {
        "averages": tuple(average.name for average in config.averages),
        "skip_window_steps": 0 if config.skip is None else config.skip.window_steps,
    }
