"""RunState: all that a run is between two updates, and the ways into it.

A folder that holds one has `checkpoint/` (arrays and metadata), `metrics.parquet` (a row for each update since the
start of the run) and `source_losses.parquet` (a row for each update and source); a temporary checkpoint and a
committed milestone have the same layout.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax

from runtime.data.loader import DataPosition
from runtime.tracking.metrics import MetricsTable
from runtime.tracking.source_losses import SourceLossesTable
from runtime.training import checkpoint
from runtime.training.checkpoint_reader import CheckpointError, Reader
from runtime.training.state import TrainState, begun, with_averages
from runtime.training.timeline import KEEP_THE_DATA_POSITION

CHECKPOINT = "checkpoint"
METRICS = "metrics.parquet"
SOURCE_LOSSES = "source_losses.parquet"

Restore = Literal["everything", "everything_but_optimizer", "weights_and_optimizer", "weights"]
StateLike = Callable[[Collection[str], int], TrainState]
"""Shapes with shardings of a state with the averages of these names, and with a skip history of so many steps or (0)
without: what a checkpoint is laid out as."""


class RunState(NamedTuple):
    """Between two updates. `step` and `consumed_tokens` count from the start of the run, through all its phases."""

    state: TrainState
    step: int
    consumed_tokens: int
    data_position: DataPosition
    metrics: MetricsTable
    source_losses: SourceLossesTable

    @property
    def averages(self) -> tuple[str, ...]:
        """Names of the averages that are kept, sorted."""
        return tuple(sorted(self.state.averages))


def from_scratch(initial: TrainState) -> RunState:
    """Before the first update."""
    return RunState(initial, 0, 0, DataPosition(), MetricsTable(), SourceLossesTable())


def resumed(
    folder: str, state_like: StateLike, *, averages: Collection[str] = (), skip_window_steps: int = 0
) -> RunState:
    """The very state that was saved; an average that should be there and is not, or the other way, is an error."""
    saved = Reader(f"{folder}/{CHECKPOINT}")
    state, metadata = checkpoint.load(saved, state_like(averages, skip_window_steps))
    return _assembled(saved, state, metadata, DataPosition.from_json(metadata["data_position"]))


def continued(
    folder: str,
    restore: Restore,
    state_like: StateLike,
    *,
    seed: int,
    averages: Collection[str] = (),
    skip_window_steps: int = 0,
) -> RunState:
    """The state that a phase begins with where another one left off; nothing is made that is read, or the other way.

    Each of the `averages` goes on from the saved one of its name, or begins as a copy of the weights where none was
    saved or `restore` begins them anew. A skip history begins anew: whatever the phase changes (mixture, batch size,
    rotary embedding) may move the loss or the gradient's norm for good, and a rule that judges by the level before
    would leave out every update from there on.
    What is not restored begins as that of `seed`, and the data begin anew; `step` and `consumed_tokens` go on in any
    case.
    """
    if restore not in get_args(Restore):
        raise ValueError(f"restore is {restore!r}; it is one of {', '.join(get_args(Restore))}.")
    opened = Reader(f"{folder}/{CHECKPOINT}")
    metadata = checkpoint.read_metadata(opened)
    saved = state_like(metadata["averages"], 0)
    like = state_like(averages, skip_window_steps)
    goes_on = restore in KEEP_THE_DATA_POSITION
    wanted: dict[str, Any] = {"params": saved.params}
    if restore in ("everything", "weights_and_optimizer"):
        wanted |= {"optimizer": saved.optimizer}
    if goes_on:
        kept = {name: saved.averages[name] for name in averages if name in saved.averages}
        wanted |= {"key": saved.key, "averages": kept}
    taken, _ = checkpoint.load(opened, wanted, partial=True)
    anew = begun(like, seed, [field for field in ("optimizer", "key", "history") if field not in wanted])
    state = with_averages(dataclasses.replace(like, **{"averages": {}} | taken | anew), averages)
    position = DataPosition.from_json(metadata["data_position"]) if goes_on else DataPosition()
    return _assembled(opened, state, metadata, position)


def _assembled(saved: Reader, state: TrainState, metadata: dict[str, Any], position: DataPosition) -> RunState:
    folder = saved.path.rpartition("/")[0]
    metrics = MetricsTable.from_parquet(checkpoint.read_beside(saved, METRICS), file=f"{folder}/{METRICS}")
    losses = SourceLossesTable.from_parquet(
        checkpoint.read_beside(saved, SOURCE_LOSSES), file=f"{folder}/{SOURCE_LOSSES}"
    )
    for name, last_step in ((METRICS, len(metrics)), (SOURCE_LOSSES, losses.last_step)):
        if last_step != metadata["step"]:
            raise CheckpointError(
                f"{saved.path}: {name} beside it ends at step {last_step}, the checkpoint is of step "
                f"{metadata['step']}; the two were not written together. Restore the folder from a copy."
            )
    return RunState(state, metadata["step"], metadata["consumed_tokens"], position, metrics, losses)


def save(
    folder: str,
    run: RunState,
    *,
    facts: dict[str, Any],
    lease_epoch: int | None = None,
    described: bool = True,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> checkpoint.Save:
    """Starts to write `run` to `folder`; returns when the state may be used up by the next update.

    Its tables are read while it is being written: nothing may be appended to them.

    `facts` are put into the metadata (seed, configuration): plain JSON that depends on nothing but the identity. For
    `lease_epoch` and what follows see `checkpoint.save`.
    """
    metadata = {
        "step": run.step,
        "consumed_tokens": run.consumed_tokens,
        "data_position": run.data_position.to_json(),
        "averages": list(run.averages),
        "skip_window_steps": run.state.skip_window_steps,
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(run.state.params)),
        "facts": facts,
    }
    beside = {METRICS: run.metrics.to_parquet, SOURCE_LOSSES: run.source_losses.to_parquet}
    return checkpoint.save(
        f"{folder}/{CHECKPOINT}",
        run.state,
        metadata,
        beside=beside,
        lease_epoch=lease_epoch,
        described=described,
        before=before,
        after=after,
    )


def save_weights(
    folder: str,
    leaves: Mapping[str, checkpoint.Pieces],
    *,
    facts: dict[str, Any],
    on_leaf: Callable[[int, int], object] = lambda done, total: None,
) -> None:
    """Writes weights that were not trained here as a run before its first update; a phase takes "weights" from it.

    Args:
        leaves: by their dotted paths in the parameters.
        facts: as those of `save`.
        on_leaf: see `checkpoint.save_pieces`.
    """
    metadata = {
        "step": 0,
        "consumed_tokens": 0,
        "data_position": DataPosition().to_json(),
        "averages": [],
        "skip_window_steps": 0,
        "num_parameters": sum(math.prod(leaf.shape) for leaf in leaves.values()),
        "facts": facts,
    }
    beside = {METRICS: MetricsTable().to_parquet(), SOURCE_LOSSES: SourceLossesTable().to_parquet()}
    params = {f"params.{name}": leaf for name, leaf in leaves.items()}
    checkpoint.save_pieces(f"{folder}/{CHECKPOINT}", params, metadata, beside=beside, on_leaf=on_leaf)
