"""Curves: the figures of a phase by update, out of the tables that lie beside each of its checkpoints.

What other tools are given is made of these tables and never beside the training: a table holds every update that
stands, once, however often the run was killed, while whoever listens to a run hears some updates twice and others,
of which nothing was saved, for nothing.
"""

import io
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64

from runtime.tracking.metrics import MetricsRow

OF_UPDATES = "train"
ROWS_TOGETHER = 4096
LOSS_OF_SOURCES, SHARE_OF_SOURCES = "loss_by_source", "share_by_source"


class Curves(NamedTuple):
    """A row an update, in order of steps."""

    step: Int64[np.ndarray, "updates"]
    """Finished updates since the start of the run, this one included."""
    figures: dict[str, Float64[np.ndarray, "updates"]]
    """By name, such as `train/loss` or `loss_by_source/web`; not a number where an update has none."""

    def rows(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Each update with the figures that it has, finite ones."""
        names = list(self.figures)
        for first in range(0, len(self.step), ROWS_TOGETHER):
            part = slice(first, first + ROWS_TOGETHER)
            values = np.stack([curve[part] for curve in self.figures.values()], axis=1)
            for step, row, has in zip(self.step[part].tolist(), values.tolist(), np.isfinite(values), strict=True):
                yield step, {names[index]: row[index] for index in np.flatnonzero(has)}


def curves_of(metrics: bytes, source_losses: bytes, *, after_step: int) -> Curves:
    """The updates behind `after_step`, of the two Parquet files of a checkpoint (see run_state).

    An update that the skip rule left out has the figures that it was left out for. A source from which it drew nothing
    to predict has no loss there.
    """
    rows = pq.read_table(io.BytesIO(metrics), filters=pc.field("step") > after_step)
    step = rows["step"].to_numpy().astype(np.int64)
    figures = {
        f"{OF_UPDATES}/{name}": rows[name].to_numpy().astype(np.float64)
        for name in MetricsRow._fields
        if name != "step"
    }
    drawn = pq.read_table(io.BytesIO(source_losses), filters=pc.field("step") > after_step)
    place = np.searchsorted(step, drawn["step"].to_numpy())
    share, num_targets, loss_sum = (drawn[name].to_numpy() for name in ("share", "num_targets", "loss_sum"))
    names = np.asarray(drawn["source"].to_pylist(), dtype=object)
    for source in sorted(set(names)):
        of_source = names == source
        has_loss = of_source & (num_targets > 0)
        for kind, where, values in (
            (LOSS_OF_SOURCES, has_loss, loss_sum[has_loss] / num_targets[has_loss]),
            (SHARE_OF_SOURCES, of_source, share[of_source]),
        ):
            curve = np.full(len(step), np.nan)
            curve[place[where]] = values
            figures[f"{kind}/{source}"] = curve
    return Curves(step, figures)
