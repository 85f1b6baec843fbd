"""Finished training steps: from figures on the devices to the rows of the tables, or to an error."""

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

ROLL_BACK = "Or roll back and skip these batches: `rollback PHASE` prints the command."
NO_FIGURES = frozenset({"row_loss", "row_log_normalizer", "row_targets", "part_norms", "skip"})
"""Fields of `StepMetrics` that are no figure of the whole step."""


class BadBatchError(RuntimeError):
    """A step that cannot stand; `facts` are fields of its event, such as `step` and `data_position`."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts


class NonFiniteError(BadBatchError):
    """A loss or norm that is not finite; the step and all after it are not saved."""


class NoTargetsError(BadBatchError):
    """A batch without targets, whose mean loss does not exist; the step is not saved."""


class SkippedTooOftenError(RuntimeError):
    """More consecutive skipped steps than single bad batches explain."""


@dataclasses.dataclass(frozen=True)
class PendingStep:
    """A step whose figures are on the device, and not in the tables yet."""

    before: DataPosition
    after: DataPosition
    batch: LoadedBatch
    row: dict[str, Any]
    metrics: StepMetrics
    digests: dict[str, jax.Array] | None
    """The result of `begin_digests`, where digests are due."""
    copies: dict[str, jax.Array]
    """The result of `begin_comparison`."""


def metrics_row(pending: PendingStep, placed: Callable[[], Place]) -> MetricsRow:
    """Return the row of the metrics table; `placed` finds the part of the model for an error message.

    Raises:
        NoTargetsError: the batch has no targets, and no skip rule skipped it.
        NonFiniteError: a loss or a norm is not finite, and no skip rule skipped the step.
    """
    row, metrics = pending.row, pending.metrics
    figures = {name: value.item() for name, value in metrics._asdict().items() if name not in NO_FIGURES}
    if metrics.skip is not None and bool(metrics.skip.is_skipped):
        return MetricsRow(**row, **figures, is_skipped=1)
    facts = {"step": row["step"], "data_position": pending.before.to_json()}
    if not figures["num_targets"]:
        raise NoTargetsError(
            f"step {row['step']}: no position of the batch of {row['global_batch_size']} sequences has a next token of "
            "its own document, so there is nothing to learn. The step is not saved, and a resumed run meets it again: "
            "look for a source whose documents have one token, or set a skip rule, which skips such a batch.",
            **facts,
        )
    wrong = sorted(name for name, value in figures.items() if not math.isfinite(value))
    if wrong:
        # Before the first step of a run there is no state to fork.
        is_first = row["step"] == 1
        place = placed()
        raise NonFiniteError(
            f"step {row['step']}: {', '.join(f'{name} is {figures[name]}' for name in wrong)} at learning rate "
            f"{row['learning_rate']:.6g}, in a batch of {row['global_batch_size']} sequences (the event log has their "
            f"data position). {place.text} The step is not saved, and a resumed run meets it again: "
            f"{'set' if is_first else 'fork an earlier milestone with'} a lower learning_rate or max_norm, or another "
            f"mixture.{'' if is_first else f' {ROLL_BACK}'}",
            **facts,
            **place.facts,
        )
    return MetricsRow(**row, **figures)


def log_skip(pending: PendingStep, row: MetricsRow, skip_rule: SkipRule, events: EventLog, place: Place) -> None:
    """Write the event of a skipped step.

    Raises:
        SkippedTooOftenError: as many consecutive steps are skipped as the rule allows.
    """
    assert pending.metrics.skip is not None
    skip = pending.metrics.skip
    figures = {
        "loss": row.loss,
        "grad_norm": row.grad_norm,
        "loss_limit": skip.loss_limit.item(),
        "grad_norm_limit": skip.grad_norm_limit.item(),
    }
    consecutive = int(skip.num_consecutive)
    events.write(
        "skipped",
        step=row.step,
        consecutive=consecutive,
        num_targets=row.num_targets,
        **{name: value if math.isfinite(value) else str(value) for name, value in figures.items()},
        data_position=pending.before.to_json(),
        **place.facts,
    )
    if consecutive >= skip_rule.max_consecutive:
        raise SkippedTooOftenError(
            f"step {row.step}: the skip rule skipped {consecutive} steps in a row, the last with loss {row.loss:.6g} "
            f"(limit {skip.loss_limit:.6g}) and gradient norm {row.grad_norm:.6g} (limit {skip.grad_norm_limit:.6g}) "
            f"over {row.num_targets} targets. {place.text} Single batches do not explain so many: fork an earlier "
            "milestone with a lower learning_rate or another mixture, or with a larger skip.sigma if these values are "
            f"the new normal. {ROLL_BACK}"
        )


def losses_by_source(pending: PendingStep, loader: Loader) -> list[SourceLosses]:
    """Return sums over the rows of each source, in float64 and in the order of the rows."""
    metrics, index = pending.metrics, pending.batch.source_index

    def by_identity(rows: Any = None, dtype: np.typing.DTypeLike = np.float64) -> dict[str, Any]:
        sums = np.bincount(index, weights=rows, minlength=len(loader.sources)).astype(dtype).tolist()
        return {identity: sums[loader.index_of[identity]] for identity in pending.after.shares}

    return rows_of_update(
        pending.row["step"],
        pending.after.shares,
        loader.names,
        num_sequences=by_identity(dtype=np.int64),
        num_targets=by_identity(metrics.row_targets, np.int64),
        loss_sum=by_identity(metrics.row_loss),
        log_normalizer_sum=by_identity(metrics.row_log_normalizer),
    )
