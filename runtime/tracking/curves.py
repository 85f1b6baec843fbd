"""Curves: the figures of a phase by update, from the tables beside its checkpoints.

Exports to other tools are made of these tables and never during training: a table has every update once, however often
the run was killed. A listener would see some updates twice, and others that were never saved.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64

from runtime.optim.ema import HOT
from runtime.tables.parquet_bytes import from_parquet, with_columns
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
"""Groups of curves with one curve for each tensor and layer."""
BITS_PER_BYTE = "bits_per_byte"
ANSWER_BITS_PER_BYTE = "answer_bits_per_byte"
MEAN = "mean"

Attempts = Iterable[Sequence[Mapping[str, Any]]]
"""The events of each attempt, from one host, in the order in which they began."""


class SparseCurves(NamedTuple):
    """Figures that few updates have: hundreds of curves with a value for every update would fill the memory."""

    names: list[str]
    by_step: dict[int, Float64[np.ndarray, "names"]]
    """NaN where an update has no figure of a name."""


class Curves(NamedTuple):
    """A row for each update, in order of steps."""

    step: Int64[np.ndarray, "updates"]
    """Finished updates since the start of the run, including this one."""
    figures: dict[str, Float64[np.ndarray, "updates"]]
    """Curves by name, such as `train/loss` or `loss_by_source/web`; NaN where an update has none."""
    sparse: SparseCurves = SparseCurves([], {})
    newest_validation: Mapping[str, Any] | None = None
    """Event of the last measurement of held-out text, which all means are over the sources of."""

    def rows(self) -> Iterator[tuple[int, dict[str, float]]]:
        names = list(self.figures)
        for first in range(0, len(self.step), ROWS_TOGETHER):
            part = slice(first, first + ROWS_TOGETHER)
            values = np.stack([curve[part] for curve in self.figures.values()], axis=1)
            for step, row in zip(self.step[part].tolist(), values, strict=True):
                yield step, _finite(names, row) | _finite(self.sparse.names, self.sparse.by_step.get(step))

    @property
    def consumed_tokens(self) -> Float64[np.ndarray, "updates"]:
        """Tokens of the run after each update; NaN where held-out text was measured before the first."""
        return self.figures[f"{OF_UPDATES}/consumed_tokens"]


def curves_of(*metrics: bytes, after_step: int, file: str = "metrics.parquet") -> Curves:
    """Return the curves of the updates after `after_step`, from the files of a metrics table.

    A skipped update has the figures that it was skipped for.
    """
    table = with_columns(from_parquet(*metrics), MetricsRow._fields, MetricsRow._field_defaults, file=file)
    rows = table.filter(pc.greater(table["step"], after_step))
    figures = {
        f"{OF_UPDATES}/{name}": rows[name].to_numpy().astype(np.float64)
        for name in MetricsRow._fields
        if name != "step"
    }
    return Curves(rows["step"].to_numpy().astype(np.int64), figures)


def with_sources(curves: Curves, *source_losses: bytes) -> Curves:
    """Add loss, log-normaliser and share of each source to `curves`, which have at least one update.

    `source_losses` are the files of the table beside the same checkpoint. A source without predicted positions in an
    update has neither loss nor log-normaliser there; an older table has no log-normalisers.
    """
    step = curves.step
    by_source: dict[str, dict[str, np.ndarray]] = {}
    # As dictionary indices: there are millions of rows and few names. In this thread: see `from_parquet`.
    tables = [
        pq.ParquetFile(pa.BufferReader(part), read_dictionary=["source"], page_checksum_verification=True)
        for part in source_losses
    ]
    sums = {group: column for group, column in SUMS_OF_SOURCES.items() if column in tables[0].schema_arrow.names}
    columns = ["step", "source", "share", "num_targets", *sums.values()]
    batches = (table.iter_batches(READ_TOGETHER, columns=columns, use_threads=False) for table in tables)
    for batch in itertools.chain.from_iterable(batches):
        drawn = batch.filter(pc.greater_equal(batch["step"], int(step[0])))
        place = np.searchsorted(step, drawn["step"].to_numpy())
        share, num_targets = (drawn[name].to_numpy() for name in ("share", "num_targets"))
        index = drawn["source"].indices.to_numpy()
        # A source that was tokenized again has two indices.
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


def with_validation(curves: Curves, attempts: Attempts) -> Curves:
    """Add the bits per byte of held-out text to `curves`, which have at least one update.

    They are in the event logs alone. A measurement before the first update gets a row of its own. Left out are
    measurements at steps that no checkpoint has reached; earlier ones of a step that several attempts measured; and, so
    that the curve does not jump, measurements on another number of tokens than the newest one with a row, and means
    over other sources (a source that is still being tokenized is not measured).
    """
    every = [event for events in attempts for event in events if event["event"] == VALIDATION]
    first = curves.step[0] - 1
    has_row = np.isin([event["step"] for event in every], np.append(curves.step, first))
    shown = [every[index] for index in np.flatnonzero(has_row)]
    found = [event for event in shown if event["tokens_per_domain"] == shown[-1]["tokens_per_domain"]]
    if any(event["step"] == first for event in found):
        step = np.concatenate([curves.step[:1] - 1, curves.step])
        nan_first = {name: np.concatenate([[np.nan], curve]) for name, curve in curves.figures.items()}
        curves = curves._replace(step=step, figures=nan_first)
    figures = dict(curves.figures)
    for event in found:
        place = int(np.searchsorted(curves.step, event["step"]))
        for which, by_domain in event["bits_per_byte"].items():
            is_comparable = by_domain.keys() == found[-1]["bits_per_byte"][HOT].keys()
            mean = {MEAN: event["mean_bits_per_byte"][which]} if is_comparable else {}
            for domain, value in {**mean, **by_domain}.items():
                curve = figures.setdefault(_name(BITS_PER_BYTE, which, domain), np.full(len(curves.step), np.nan))
                curve[place] = value
    for event, which, task, value in answers_in(found):
        curve = figures.setdefault(_name(ANSWER_BITS_PER_BYTE, which, task), np.full(len(curves.step), np.nan))
        curve[np.searchsorted(curves.step, event["step"])] = value
    return curves._replace(figures=figures, newest_validation=found[-1] if found else None)


def answers_in(validations: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str, str, float]]:
    """Yield validation, weights, task and bits per byte of right answers, where there are as many as in the newest."""
    newest = {task: number for event in validations for task, number in event.get("num_answers", {}).items()}
    for event in validations:
        for which, by_task in event.get(ANSWER_BITS_PER_BYTE, {}).items():
            for task, value in by_task.items():
                if event["num_answers"][task] == newest[task]:
                    yield event, which, task, value


def with_norms(curves: Curves, attempts: Attempts) -> Curves:
    """Add the norms by part of gradient, update and parameters to `curves`, at the steps that logged them.

    They are in the event logs alone. The newest of several attempts counts; attempts are read one at a time.
    """
    names: list[str] = []
    by_step: dict[int, np.ndarray] = {}
    for events in attempts:
        for event in events:
            if event["event"] != NORMS:
                continue
            norms = {
                f"{NORM_BY_PART[measured]}/{part}": norm
                for measured in MEASURED
                for part, norm in norms_of(event, measured)
            }
            names = names or list(norms)
            by_step[event["step"]] = np.array([norms[name] for name in names])
    return curves._replace(sparse=SparseCurves(names, by_step))


def _name(group: str, which: str, domain: str) -> str:
    return f"{group}/{domain}" if which == HOT else f"{group}_{which}/{domain}"


def _finite(names: Sequence[str], row: Float64[np.ndarray, "names"] | None) -> dict[str, float]:
    if row is None:
        return {}
    values = row.tolist()
    return {names[index]: values[index] for index in np.flatnonzero(np.isfinite(row)).tolist()}
