"""Readings: the files of other steps that the report shows, as its plain values."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from runtime.data.mixture import MixtureSchedule
from runtime.data.token_bytes import token_texts
from runtime.report.contents import Curve, HeatWindow, MixtureSpan, Moment, PhaseAlarm, SourceCurve
from runtime.tables.parquet_bytes import from_parquet, read_parts, with_columns
from runtime.text import drops
from runtime.tracking.metrics import MetricsTable
from runtime.training.figure_checks import FirstLoss
from runtime.training.monitors import CONFIRMED_STEPS, Monitors
from runtime.training.observer import Alarm


def read_columns(path: str, columns: Sequence[str]) -> pa.Table:
    """Return columns of a phase's table; raise TableError if one is missing."""
    return with_columns(from_parquet(*read_parts(path), columns=columns), columns, {}, file=path)


def read_metrics(path: str) -> MetricsTable:
    """Return the rows of a `metrics.parquet`, one for each training step since the start of the run."""
    return MetricsTable.from_parquet(*read_parts(path), file=path)


def curve_after(metrics: MetricsTable, step: int) -> Curve:
    """Return the rows after `step` finished training steps, without skipped ones, whose loss may be anything."""
    taken = metrics.column("is_skipped", step) == 0
    return Curve(*(metrics.column(field.name, step)[taken] for field in dataclasses.fields(Curve)))


def tokens_at(metrics: MetricsTable, step: int) -> int:
    """Return the tokens consumed after `step` training steps."""
    return metrics[step - 1].consumed_tokens if step else 0


def sequence_length_at(metrics: MetricsTable, step: int) -> int:
    """Return the sequence length of the training step that finished as number `step`."""
    num_tokens = tokens_at(metrics, step) - tokens_at(metrics, step - 1)
    return num_tokens // metrics[step - 1].global_batch_size


def alarms_of(
    metrics: MetricsTable,
    phase: str,
    *,
    begin_step: int,
    resets_at: Callable[[int], bool],
    first_loss: FirstLoss | None,
) -> tuple[PhaseAlarm, ...]:
    """Return the alarms that monitors raise about a phase.

    Args:
        metrics: from the start of the run on.
        phase: its name.
        begin_step: training steps finished before its first one.
        resets_at: whether levels reset with the training step after so many finished ones.
        first_loss: what is expected of an untrained model; None for trained weights.
    """
    monitors = Monitors(lambda step: step <= begin_step or resets_at(step), first_loss=first_loss)
    found: list[Alarm] = []
    recovered: list[int] = []
    for index in range(max(begin_step - 1, 0), len(metrics)):
        found += monitors.observe(metrics[index])
        recovered += [] if monitors.recovered_step is None else [monitors.recovered_step]
    own = [alarm for alarm in found if alarm.step > begin_step]
    # A spike that raised no alarm itself may have come shortly before one that did.
    came_back = [any(0 <= alarm.step - step <= CONFIRMED_STEPS for step in recovered) for alarm in own]
    tokens = [tokens_at(metrics, alarm.step) for alarm in own]
    return tuple(PhaseAlarm(phase, *facts) for facts in zip(own, tokens, came_back, strict=True))


WindowTables = Mapping[tuple[str, str], Sequence[pa.Table | None]]
"""Predictions of each window, by domain and digest, at each moment; None where there are none."""


def window_tables(tables: Sequence[pa.Table], domains: Collection[str] = ()) -> WindowTables:
    """Return the windows of `domains`, or all, with their predictions at each moment, which has a table each."""
    found: dict[tuple[str, str], list[pa.Table | None]] = {}
    for index, table in enumerate(tables):
        windows = table.group_by(["domain", "window"], use_threads=False).aggregate([])
        for domain, window in zip(*(windows[name].to_pylist() for name in ("domain", "window")), strict=True):
            if not domains or domain in domains:
                rows = table.filter((pc.field("domain") == domain) & (pc.field("window") == window))
                found.setdefault((domain, window), [None] * len(tables))[index] = rows
    return found


def heat_windows(predictions: WindowTables, tokenizer: Tokenizer, num_shown: int) -> list[HeatWindow]:
    """Return the windows as a page shows them: with the likeliest tokens of the first `num_shown` tokens."""
    word = functools.cache(lambda token: tokenizer.decode([token], skip_special_tokens=False))
    return [
        HeatWindow(
            domain,
            window,
            token_texts(tokenizer, next(each for each in every if each is not None)["token"].to_pylist()),
            [None if each is None else _moment(each, word, num_shown) for each in every],
        )
        for (domain, window), every in predictions.items()
    ]


def _moment(table: pa.Table, word: Callable[[int], str], num_shown: int) -> Moment:
    shown = table.slice(0, num_shown)
    return Moment(
        log_prob=table["log_prob"].to_numpy().astype(np.float32),
        rank=table["rank"].fill_null(-1).to_numpy().astype(np.int32),
        entropy=table["entropy"].to_numpy().astype(np.float32),
        likely=[[word(token) for token in tokens] for tokens in shown["likely"].to_pylist()],
        likely_log_prob=np.array(shown["likely_log_prob"].to_pylist(), np.float32),
    )


def read_draws(path: str) -> pa.Table:
    """Return step, source and number of sequences of all draws since the start of the run."""
    columns = ("step", "source", "share", "num_sequences")
    return read_columns(path, columns).filter((pc.field("share") > 0) | (pc.field("num_sequences") > 0))


def drawn_between(draws: pa.Table, first: int, last: int) -> dict[str, int]:
    """Return sequences by source in the training steps after `first` and up to `last`."""
    rows = draws.filter((pc.field("step") > first) & (pc.field("step") <= last))
    found = rows.group_by("source", use_threads=False).aggregate([("num_sequences", "sum")])
    return dict(zip(found["source"].to_pylist(), found["num_sequences_sum"].to_pylist(), strict=True))


def read_source_curves(path: str) -> tuple[SourceCurve, ...]:
    """Return the loss of each source from a `source_losses.parquet`, which goes back to the start of its run.

    A training step gives no row for a source without a predicted position.
    """
    table = read_columns(path, ("step", "source", "num_targets", "loss_sum"))
    seen = table.filter((pc.field("num_targets") > 0) & pc.is_finite(pc.field("loss_sum")))
    curves = []
    for source in sorted(seen["source"].unique().to_pylist()):
        rows = seen.filter(pc.field("source") == source)
        curves.append(
            SourceCurve(source, rows["step"].to_numpy(), pc.divide(rows["loss_sum"], rows["num_targets"]).to_numpy())
        )
    return tuple(curves)


def drawn_spans(
    draws: pa.Table, mixture: MixtureSchedule, first: int, last: int, tokens_at: Callable[[int], float]
) -> tuple[MixtureSpan, ...]:
    """Return shares of the sequences drawn after step `first` and up to `last`, by segment of the mixture."""
    made = []
    ends = [segment.start_step for segment in mixture.segments[1:]] + [last]
    for segment, end in zip(mixture.segments, ends, strict=True):
        begin, end = max(segment.start_step, first), min(end, last)
        counts = drawn_between(draws, begin, end)
        total = sum(counts.values())
        if total:
            shares = {name: count / total for name, count in counts.items()}
            made.append(MixtureSpan(tokens_at(begin), tokens_at(end), shares))
    return tuple(made)


def read_samples(path: str, samples_per_reason: int) -> list[dict[str, str]]:
    """Return the first few samples of each reason, in the order of the file."""
    counts: Counter[str] = Counter()
    first = []
    for row in drops.read_samples(path):
        if counts[row["reason"]] < samples_per_reason:
            first.append(row)
        counts[row["reason"]] += 1
    return first
