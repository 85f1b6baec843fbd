"""Update: one finished update, from the figures that lie on the devices to the rows of the tables, or to an error."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from runtime.data.loader import DataPosition, LoadedBatch, Loader
from runtime.optim.skip_rule import SkipRule
from runtime.tracking.events import EventLog
from runtime.tracking.metrics import MetricsRow
from runtime.tracking.source_losses import SourceLosses, rows_of_update
from runtime.training.norm_places import Place
from runtime.training.train_step import StepMetrics

GO_AROUND = (
    "Or go around them: `certified` with the name of the phase prints the line that goes on from an earlier checkpoint "
    "with these batches left out."
)


class BadBatchError(RuntimeError):
    """An update that cannot stand; `facts` are for its event, `step` and its `data_position` among them."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts


class NonFiniteError(BadBatchError):
    """A loss or a norm that is not a number; nothing of the update or after it was saved."""


class NoTargetsError(BadBatchError):
    """A batch with nothing to predict, whose loss is a mean over nothing; nothing of the update was saved."""


class SkippedTooOftenError(RuntimeError):
    """The skip rule left out so many updates in a row that it is no longer a matter of single batches."""


@dataclasses.dataclass(frozen=True)
class Update:
    """An update whose figures are not in the tables yet; they lie on the device until they are fetched."""

    before: DataPosition
    after: DataPosition
    batch: LoadedBatch
    row: dict[str, Any]
    metrics: StepMetrics
    digests: dict[str, jax.Array] | None
    """Where they are due, as `begin_digests` gave them; `copies` as `begin_comparison` did."""
    copies: dict[str, jax.Array]


def metrics_row(update: Update, placed: Callable[[], Place]) -> MetricsRow:
    """Its row of the metrics table; `placed` says where in the model its norms are from, and is asked for errors alone.

    Raises:
        NoTargetsError: there was nothing to predict, and no skip rule left the update out.
        NonFiniteError: a loss or a norm is not finite, and no skip rule left the update out.
    """
    others = {"row_loss", "row_log_normalizer", "row_targets", "part_norms", "skip"}  # of rows, of parts, or no figure
    figures = {name: value.item() for name, value in update.metrics._asdict().items() if name not in others}
    if update.metrics.skip is not None and bool(update.metrics.skip.is_skipped):
        return MetricsRow(**update.row, **figures, is_skipped=1)
    if not figures["num_targets"]:
        raise NoTargetsError(
            f"step {update.row['step']}: the batch of {update.row['global_batch_size']} sequences has no position with "
            "a next token of its own document, so there is nothing to learn from it. Nothing of this update was saved, "
            "and a resumed run would meet it again: look for a source whose documents are of one token, or write a "
            "skip rule, which leaves such a batch out.",
            step=update.row["step"],
            data_position=update.before.to_json(),
        )
    wrong = sorted(name for name, value in figures.items() if not math.isfinite(value))
    if wrong:
        # What precedes the first update of a run is no state that was trained.
        is_first = update.row["step"] == 1
        cure = "take" if is_first else "fork an earlier milestone with"
        place = placed()
        raise NonFiniteError(
            f"step {update.row['step']}: {', '.join(f'{name} is {figures[name]}' for name in wrong)} at learning rate "
            f"{update.row['learning_rate']:.6g}, with a batch of {update.row['global_batch_size']} sequences (the "
            f"event log has their data position). {place.said} Nothing of this update was saved, and a resumed run "
            f"would meet it again: {cure} a lower learning_rate or max_norm, or another mixture."
            f"{'' if is_first else f' {GO_AROUND}'}",
            step=update.row["step"],
            data_position=update.before.to_json(),
            **place.facts,
        )
    return MetricsRow(**update.row, **figures)


def tell_of_skip(update: Update, row: MetricsRow, skip_rule: SkipRule, events: EventLog, place: Place) -> None:
    """Writes the event of an update that the skip rule left out.

    Raises:
        SkippedTooOftenError: as many in a row as the rule allows.
    """
    assert update.metrics.skip is not None
    told = update.metrics.skip
    figures = {"loss": row.loss, "grad_norm": row.grad_norm}
    limits = {"loss_limit": told.loss_limit.item(), "grad_norm_limit": told.grad_norm_limit.item()}
    said = {name: value if math.isfinite(value) else str(value) for name, value in (figures | limits).items()}
    consecutive = int(told.num_consecutive)
    said["data_position"] = update.before.to_json()
    events.write("skipped", step=row.step, consecutive=consecutive, num_targets=row.num_targets, **said, **place.facts)
    if consecutive >= skip_rule.max_consecutive:
        raise SkippedTooOftenError(
            f"step {row.step}: the skip rule left out {consecutive} updates in a row, the last with loss "
            f"{row.loss:.6g} (limit {told.loss_limit:.6g}) and gradient norm {row.grad_norm:.6g} "
            f"(limit {told.grad_norm_limit:.6g}) over {row.num_targets} predicted positions. {place.said} "
            "So many are no matter of single batches: fork an earlier milestone with a lower learning_rate or another "
            "mixture, or with a larger skip.sigma if these values are what training should go on from. "
            f"{GO_AROUND}"
        )


def losses_by_source(update: Update, loader: Loader) -> list[SourceLosses]:
    """Sums over the rows of each source, in float64 and in the order of the rows."""
    metrics, index = update.metrics, update.batch.source_index

    def by_identity(of_rows: Any = None, dtype: np.typing.DTypeLike = np.float64) -> dict[str, Any]:
        sums = np.bincount(index, weights=of_rows, minlength=len(loader.sources)).astype(dtype).tolist()
        return {identity: sums[loader.index_of[identity]] for identity in update.after.shares}

    return rows_of_update(
        update.row["step"],
        update.after.shares,
        loader.names,
        num_sequences=by_identity(dtype=np.int64),
        num_targets=by_identity(metrics.row_targets, np.int64),
        loss_sum=by_identity(metrics.row_loss),
        log_normalizer_sum=by_identity(metrics.row_log_normalizer),
    )
