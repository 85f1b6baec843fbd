"""Curves: the figures of a phase by update, out of the tables that lie beside each of its checkpoints.

What other tools are given is made of these tables and never beside the training: a table holds every update that
stands, once, however often the run was killed, while whoever listens to a run hears some updates twice and others,
of which nothing was saved, for nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64

from runtime.optim.ema import HOT
from runtime.tables.parquet_bytes import table_of
from runtime.tracking.events import VALIDATION
from runtime.tracking.metrics import MetricsRow
from runtime.tracking.parts import GRADIENT, MEASURED, NORMS, PARAMETERS, UPDATE, norms_of

OF_UPDATES = "train"
ROWS_TOGETHER = 4096
READ_TOGETHER = 2**16
SUMS_OF_SOURCES = {"loss_by_source": "loss_sum", "log_normalizer_by_source": "log_normalizer_sum"}
"""Groups of curves that are means over the predicted positions, and the columns of their sums."""
SHARE_OF_SOURCES = "share_by_source"
NORM_BY_PART = {GRADIENT: "grad_norm_by_part", UPDATE: "update_norm_by_part", PARAMETERS: "param_norm_by_part"}
"""Groups of curves by what is measured; in each, one curve for each tensor and layer."""
BITS_PER_BYTE = "bits_per_byte"
MEAN = "mean"


class ExportError(RuntimeError):
    """What writes curves for another tool is not installed, or does not write where it was told to."""


class SeldomCurves(NamedTuple):
    """Figures that one update in many has: as curves of every update, hundreds of them would fill the memory."""

    names: list[str]
    by_step: dict[int, Float64[np.ndarray, "names"]]
    """Not a number where an update has none of a name; that of a step which is no update's is never told."""


NO_SELDOM = SeldomCurves([], {})


class Curves(NamedTuple):
    """A row an update, in order of steps."""

    step: Int64[np.ndarray, "updates"]
    """Finished updates since the start of the run, this one included."""
    figures: dict[str, Float64[np.ndarray, "updates"]]
    """By name, such as `train/loss` or `loss_by_source/web`; not a number where an update has none."""
    seldom: SeldomCurves = NO_SELDOM

    def rows(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Each update with the figures that it has, finite ones."""
        names = list(self.figures)
        for first in range(0, len(self.step), ROWS_TOGETHER):
            part = slice(first, first + ROWS_TOGETHER)
            values = np.stack([curve[part] for curve in self.figures.values()], axis=1)
            for step, row, has in zip(self.step[part].tolist(), values.tolist(), np.isfinite(values), strict=True):
                yield step, {names[index]: row[index] for index in np.flatnonzero(has)} | self._seldom_row(step)

    def _seldom_row(self, step: int) -> dict[str, float]:
        names, row = self.seldom.names, self.seldom.by_step.get(step)
        return {} if row is None else {names[index]: float(row[index]) for index in np.flatnonzero(np.isfinite(row))}

    @property
    def consumed_tokens(self) -> Float64[np.ndarray, "updates"]:
        """By the run after each update; not a number where held-out text was measured before the first."""
        return self.figures[f"{OF_UPDATES}/consumed_tokens"]

    def validation_means(self, which: str) -> Float64[np.ndarray, "updates"] | None:
        """Mean bits per byte of held-out text under a set of weights, `HOT` or an average; None if never measured."""
        return self.figures.get(f"{_group(which)}/{MEAN}")

    def newest_validation(self) -> tuple[int, float] | None:
        """The last step at which held-out text was measured, and its mean bits per byte under the weights."""
        means = self.validation_means(HOT)
        if means is None:
            return None
        last = np.flatnonzero(np.isfinite(means))[-1]
        return int(self.step[last]), float(means[last])

    def validation_sources(self) -> list[str]:
        """Those whose held-out text was measured last, which all means are over; none where none was."""
        newest = self.newest_validation()
        if newest is None:
            return []
        row = np.searchsorted(self.step, newest[0])
        group, mean = f"{_group(HOT)}/", f"{_group(HOT)}/{MEAN}"
        measured = {name: curve for name, curve in self.figures.items() if name.startswith(group) and name != mean}
        return [name.removeprefix(group) for name, curve in measured.items() if np.isfinite(curve[row])]


def curves_of(metrics: bytes, *, after_step: int) -> Curves:
    """The updates behind `after_step`, of the metrics that lie beside a checkpoint (see run_state).

    An update that the skip rule left out has the figures that it was left out for.
    """
    table = table_of(metrics)
    rows = table.filter(pc.greater(table["step"], after_step))
    figures = {
        f"{OF_UPDATES}/{name}": rows[name].to_numpy().astype(np.float64)
        for name in MetricsRow._fields
        if name != "step"
    }
    return Curves(rows["step"].to_numpy().astype(np.int64), figures)


def with_sources(curves: Curves, source_losses: bytes) -> Curves:
    """`curves`, and the loss, the log-normaliser and the share of each source that these updates could draw from.

    Args:
        curves: one or more updates.
        source_losses: what lies beside the same checkpoint. A source from which an update drew nothing to predict has
            neither loss nor log-normaliser there, and an older table has no log-normaliser at all.
    """
    step = curves.step
    by_source: dict[str, dict[str, np.ndarray]] = {}
    # As indices, never a string a row: there are millions of rows, and a few names. In this thread: see `table_of`.
    table = pq.ParquetFile(pa.BufferReader(source_losses), read_dictionary=["source"])
    recorded = table.schema_arrow.names
    sums = {group: column for group, column in SUMS_OF_SOURCES.items() if column in recorded}
    columns = ["step", "source", "share", "num_targets", *sums.values()]
    for batch in table.iter_batches(READ_TOGETHER, columns=columns, use_threads=False):
        drawn = batch.filter(pc.greater_equal(batch["step"], int(step[0])))
        place = np.searchsorted(step, drawn["step"].to_numpy())
        share, num_targets = (drawn[name].to_numpy() for name in ("share", "num_targets"))
        index = drawn["source"].indices.to_numpy()
        # A source whose tokens were made anew has two indices.
        for word_index, source in enumerate(drawn["source"].dictionary.to_pylist()):
            of_source = index == word_index
            if not of_source.any():
                continue
            if source not in by_source:
                by_source[source] = {group: np.full(len(step), np.nan) for group in (*sums, SHARE_OF_SOURCES)}
            found = by_source[source]
            has_mean = of_source & (num_targets > 0)
            for group, column in sums.items():
                found[group][place[has_mean]] = drawn[column].to_numpy()[has_mean] / num_targets[has_mean]
            found[SHARE_OF_SOURCES][place[of_source]] = share[of_source]
    figures = dict(curves.figures)
    for source, found in sorted(by_source.items()):
        figures |= {f"{group}/{source}": curve for group, curve in found.items()}
    return curves._replace(figures=figures)


def with_validation(curves: Curves, attempts: Iterable[Sequence[Mapping[str, Any]]]) -> Curves:
    """`curves`, and the bits per byte of held-out text at the steps where they were measured.

    They lie in the event logs alone, since they are no part of an output. What was measured before the first update
    gets a row of its own. What was measured at a step that no checkpoint has come to yet is left out with the update;
    of several attempts that came to it the newest counts. What was measured on another number of tokens than the
    newest that has a row is left out, and so are means over other sources: an attempt does not measure a source that is
    still being tokenized. The curve would jump where the next one does.

    Args:
        curves: one or more updates.
        attempts: the events of each attempt, of one host, in the order in which they began.
    """
    every = [event for events in attempts for event in events if event["event"] == VALIDATION]
    first = curves.step[0] - 1
    has_row = np.isin([event["step"] for event in every], np.append(curves.step, first))
    # Compared with what is shown alone: with a newest one that no checkpoint has come to, all that is would go.
    shown = [every[index] for index in np.flatnonzero(has_row)]
    found = [event for event in shown if event["tokens_per_domain"] == shown[-1]["tokens_per_domain"]]
    if any(event["step"] == first for event in found):
        curves = _with_a_row_before(curves)
    figures = dict(curves.figures)
    for event in found:
        place = int(np.searchsorted(curves.step, event["step"]))
        for which, by_domain in event["bits_per_byte"].items():
            group = _group(which)
            is_comparable = by_domain.keys() == found[-1]["bits_per_byte"][HOT].keys()
            mean = {MEAN: event["mean_bits_per_byte"][which]} if is_comparable else {}
            for domain, value in {**mean, **by_domain}.items():
                curve = figures.setdefault(f"{group}/{domain}", np.full(len(curves.step), np.nan))
                curve[place] = value
    return curves._replace(figures=figures)


def with_norms(curves: Curves, attempts: Iterable[Sequence[Mapping[str, Any]]]) -> Curves:
    """`curves`, and the norms by part of gradient, update and parameters, at the steps where they were told.

    They lie in the event logs alone, since how often they are told is no part of a run. What was told of a step that
    no checkpoint has come to yet is left out with the update; of several attempts that came to it the newest counts.

    Args:
        attempts: the events of each attempt, of one host, in the order in which they began; read one at a time.
    """
    names: list[str] = []
    by_step: dict[int, np.ndarray] = {}
    for events in attempts:
        for event in events:
            if event["event"] != NORMS:
                continue
            told = {
                f"{NORM_BY_PART[measured]}/{part}": norm
                for measured in MEASURED
                for part, norm in norms_of(event, measured)
            }
            names = names or list(told)  # the model of a training is part of what it is
            by_step[event["step"]] = np.array([told[name] for name in names])
    return curves._replace(seldom=SeldomCurves(names, by_step))


def _group(which: str) -> str:
    """Of the curves of held-out text under a set of weights."""
    return BITS_PER_BYTE if which == HOT else f"{BITS_PER_BYTE}_{which}"


def _with_a_row_before(curves: Curves) -> Curves:
    step = np.concatenate([curves.step[:1] - 1, curves.step])
    figures = {name: np.concatenate([[np.nan], curve]) for name, curve in curves.figures.items()}
    return curves._replace(step=step, figures=figures)
