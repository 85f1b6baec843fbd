"""RunState: everything a run is between two training steps, and how it is saved and loaded.

A saved folder has `checkpoint/` (arrays and metadata), `metrics.parquet/` (a row for each step since the start of the
run) and `source_losses.parquet/` (a row for each step and source). Each table is a folder of Parquet files: full blocks
of rows, which all checkpoints link (`Segments`), and the rows after them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, get_args

import jax

from runtime.data.sampler import DataPosition
from runtime.tables.column import BlockedTable
from runtime.tracking.metrics import MetricsTable
from runtime.tracking.source_losses import SourceLossesTable
from runtime.training import checkpoint
from runtime.training.checkpoint_reader import CheckpointError, Reader
from runtime.training.restore import RESTORES_OPTIMIZER, RESTORES_POSITION, Restore
from runtime.training.state import TrainState, initial_fields, with_averages
from runtime.training.temporary import Segments, part_key

CHECKPOINT = "checkpoint"
METRICS = "metrics.parquet"
SOURCE_LOSSES = "source_losses.parquet"

StateLike = Callable[[Collection[str], int], TrainState]
"""Maps names of averages and a number of history steps (0: no history) to the shapes and shardings of such a state."""


class RunState(NamedTuple):
    """The state between two steps; `step` and `consumed_tokens` count from the start of the run, over all phases."""

    state: TrainState
    step: int
    consumed_tokens: int
    data_position: DataPosition
    metrics: MetricsTable
    source_losses: SourceLossesTable

    @property
    def averages(self) -> tuple[str, ...]:
        """Sorted names of the averages."""
        return tuple(sorted(self.state.averages))


def from_scratch(initial: Any) -> RunState:
    return RunState(initial, 0, 0, DataPosition(), MetricsTable(), SourceLossesTable())


def resumed(
    folder: str, state_like: StateLike, *, averages: Collection[str] = (), skip_window_steps: int = 0
) -> RunState:
    """Load the saved state unchanged; raise CheckpointError if it has other averages than asked for."""
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
    """Load the state that a phase starts with from where another phase left off.

    Each average continues the saved one of its name, or starts as a copy of the weights. A skip history always starts
    empty, since what the phase changes may move the loss for good. What is not restored starts as that of `seed`, with
    the data at their beginning; `step` and `consumed_tokens` continue in any case.
    """
    if restore not in get_args(Restore):
        raise ValueError(f"restore is {restore!r}; it must be one of {', '.join(get_args(Restore))}.")
    opened = Reader(f"{folder}/{CHECKPOINT}")
    metadata = opened.metadata()
    saved = state_like(metadata["averages"], 0)
    like = state_like(averages, skip_window_steps)
    keeps_position = restore in RESTORES_POSITION
    wanted: dict[str, Any] = {"params": saved.params}
    if restore in RESTORES_OPTIMIZER:
        wanted |= {"optimizer": saved.optimizer}
    if keeps_position:
        kept = {name: saved.averages[name] for name in averages if name in saved.averages}
        wanted |= {"key": saved.key, "averages": kept}
    loaded, _ = checkpoint.load(opened, wanted, partial=True)
    fresh = initial_fields(like, seed, [field for field in ("optimizer", "key", "history") if field not in wanted])
    state = with_averages(dataclasses.replace(like, **{"averages": {}} | loaded | fresh), averages)
    position = DataPosition.from_json(metadata["data_position"]) if keeps_position else DataPosition()
    return _assembled(opened, state, metadata, position)


def _assembled(saved: Reader, state: TrainState, metadata: dict[str, Any], position: DataPosition) -> RunState:
    folder = saved.path.rpartition("/")[0]
    metrics = MetricsTable.from_parquet(*saved.read_parts(METRICS), file=f"{folder}/{METRICS}")
    losses = SourceLossesTable.from_parquet(*saved.read_parts(SOURCE_LOSSES), file=f"{folder}/{SOURCE_LOSSES}")
    for name, last_step in ((METRICS, len(metrics)), (SOURCE_LOSSES, losses.last_step)):
        if last_step != metadata["step"]:
            raise CheckpointError(
                f"{saved.path}: {name} beside it ends at step {last_step}, but the checkpoint is of step "
                f"{metadata['step']}, so they were not written together. Restore the folder from a copy."
            )
    return RunState(state, metadata["step"], metadata["consumed_tokens"], position, metrics, losses)


def save(
    folder: str,
    run: RunState,
    *,
    facts: dict[str, Any],
    segments: Segments,
    lease_epoch: int | None = None,
    described: bool = True,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> checkpoint.Save:
    """Start to write `run` to `folder`; on return the next step may donate its state.

    The tables are read while they are written, so the caller must not append to them.

    Args:
        facts: metadata such as seed and configuration: plain JSON that depends on the identity alone.
        segments: the full blocks of the tables, in the same store.
        lease_epoch, described, before, after: see `checkpoint.save`.
    """
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(run.state.params))
    metadata = _metadata(run, run.averages, run.state.skip_window_steps, num_parameters, facts)
    tables: dict[str, BlockedTable] = {METRICS: run.metrics, SOURCE_LOSSES: run.source_losses}
    beside: dict[str, Callable[[], bytes]] = {
        part_key(name, table.num_blocks): table.newest_to_parquet for name, table in tables.items()
    }
    return checkpoint.save(
        f"{folder}/{CHECKPOINT}",
        run.state,
        metadata,
        beside=beside,
        link=functools.partial(segments.link, tables),
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
    """Write weights from elsewhere as a run before its first step, for `restore="weights"`.

    Args:
        leaves: by their dotted paths in the parameters.
        facts: as for `save`.
        on_leaf: see `checkpoint.save_pieces`.
    """
    params = {f"params.{name}": leaf for name, leaf in leaves.items()}
    run = from_scratch(params)
    metadata = _metadata(run, (), 0, sum(math.prod(leaf.shape) for leaf in leaves.values()), facts)
    beside = {
        part_key(METRICS, 0): run.metrics.to_parquet(),
        part_key(SOURCE_LOSSES, 0): run.source_losses.to_parquet(),
    }
    checkpoint.save_pieces(f"{folder}/{CHECKPOINT}", params, metadata, beside=beside, on_leaf=on_leaf)


def _metadata(
    run: RunState, averages: tuple[str, ...], skip_window_steps: int, num_parameters: int, facts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "step": run.step,
        "consumed_tokens": run.consumed_tokens,
        "data_position": run.data_position.to_json(),
        "averages": list(averages),
        "skip_window_steps": skip_window_steps,
        "num_parameters": num_parameters,
        "facts": facts,
    }
