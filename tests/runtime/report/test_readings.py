"""Readings: metrics and samples as other steps write them."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.report.readings import (
    alarms_of,
    curve_after,
    read_columns,
    read_metrics,
    read_samples,
    read_source_curves,
    sequence_length_at,
    tokens_at,
)
from runtime.tables.parquet_bytes import TableError
from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from runtime.training.figure_checks import FirstLoss
from runtime.training.monitors import never
from tests.catalogue import expect_error


def write_metrics(path, steps, tokens_a_step=2048, **replaced):
    steps = np.asarray(steps)
    columns = {
        "step": steps,
        "consumed_tokens": steps * tokens_a_step,
        "loss": 4 - 0.01 * steps,
        "z_loss": np.zeros(len(steps)),
        "learning_rate": np.full(len(steps), 1e-3),
        "global_batch_size": np.full(len(steps), 8),
        "num_targets": np.full(len(steps), 2000),
        "is_skipped": np.zeros(len(steps), np.int64),
        **dict.fromkeys(("grad_norm", "update_norm", "param_norm", "mean_log_normalizer"), np.ones(len(steps))),
    }
    table = {name: value for name, value in {**columns, **replaced}.items() if value is not None}
    pq.write_table(pa.table(table), path)
    return str(path)


def test_metrics_are_read_as_they_were_written(tmp_path):
    log = read_metrics(write_metrics(tmp_path / "metrics.parquet", range(1, 11)))
    curve = curve_after(log, 0)
    assert len(curve) == 10
    assert curve.consumed_tokens[-1] == 20_480
    assert curve.loss[0] == pytest.approx(3.99)
    assert curve_after(log, 5).step.tolist() == [6, 7, 8, 9, 10] and len(curve_after(log, 10)) == 0
    assert log.column("num_targets", 7).sum() == 6000


def test_a_missing_column_is_named_with_its_file(tmp_path):
    path = write_metrics(tmp_path / "metrics.parquet", range(1, 3), learning_rate=None)
    with expect_error(TableError):
        read_metrics(path)


def test_a_runs_progress_counts_skipped_updates(tmp_path):
    is_skipped = np.isin(np.arange(1, 11), [1, 2, 6])
    loss = np.where(is_skipped, np.nan, 3.0)
    path = write_metrics(tmp_path / "metrics.parquet", range(1, 11), is_skipped=is_skipped.astype(np.int32), loss=loss)
    log = read_metrics(path)
    assert len(curve_after(log, 0)) == 7 and len(log) == 10
    assert [tokens_at(log, step) for step in (0, 1, 6)] == [0, 2048, 6 * 2048]


def test_each_update_has_a_length_of_its_own(tmp_path):
    columns = {"consumed_tokens": np.cumsum([4 * 256, 4 * 256, 2 * 1024]), "global_batch_size": np.array([4, 4, 2])}
    log = read_metrics(write_metrics(tmp_path / "metrics.parquet", range(1, 4), **columns))
    assert [sequence_length_at(log, step) for step in (1, 2, 3)] == [256, 256, 1024]


def test_samples_are_the_first_of_each_reason(tmp_path):
    rows = [{"reason": f"r{i % 2}", "id": str(i), "detail": "", "excerpt": "x"} for i in range(10)]
    path = tmp_path / "dropped.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = read_samples(str(path), 2)
    assert [(sample["reason"], sample["id"]) for sample in samples] == [
        ("r0", "0"),
        ("r1", "1"),
        ("r0", "2"),
        ("r1", "3"),
    ]


def test_an_update_that_drew_no_position_of_a_source_or_was_lost_is_no_point_of_its_curve(tmp_path):
    table = SourceLossesTable()
    table.append(
        [SourceLosses(1, "web", "a", 0.5, 0, 0, 0.0, 0.0), SourceLosses(1, "code", "b", 0.5, 4, 8, 16.0, 24.0)]
    )
    not_finite = SourceLosses(2, "code", "b", 0.5, 4, 8, float("nan"), float("nan"))
    table.append([SourceLosses(2, "web", "a", 0.5, 4, 8, 24.0, 32.0), not_finite])
    path = tmp_path / "source_losses.parquet"
    path.write_bytes(table.to_parquet())
    code, web = read_source_curves(str(path))
    assert (code.source, code.step.tolist(), code.loss.tolist()) == ("code", [1], [2.0])
    assert (web.source, web.step.tolist(), web.loss.tolist()) == ("web", [2], [3.0])


def test_a_table_without_a_column_is_named(tmp_path):
    path = tmp_path / "source_losses.parquet"
    pq.write_table(pa.table({"step": [1]}), path)
    with expect_error(TableError):
        read_source_curves(str(path))


def test_a_source_has_one_curve_though_its_name_lies_in_several_row_groups(tmp_path):
    path = str(tmp_path / "source_losses.parquet")
    columns = {"step": [1, 2, 3, 4], "source": ["web", "code", "code", "web"], "num_targets": [2] * 4}
    pq.write_table(pa.table(columns | {"loss_sum": [2.0, 4.0, 6.0, 8.0]}), path, row_group_size=2)
    found = {curve.source: (curve.step.tolist(), curve.loss.tolist()) for curve in read_source_curves(path)}
    assert found == {"code": ([2, 3], [2.0, 3.0]), "web": ([1, 4], [1.0, 4.0])}
    assert list(found) == ["code", "web"]


def test_millions_of_rows_are_not_rendered_as_text(tmp_path):
    path = tmp_path / "source_losses.parquet"
    table = SourceLossesTable()
    table.append([SourceLosses(1, "web", "a", 1.0, 4, 8, 16.0, 24.0)])
    path.write_bytes(table.to_parquet())
    assert pa.types.is_dictionary(read_columns(str(path), ("source",)).column("source").type)


def spiky(num_steps, spikes):
    """Return a table whose loss is 2.0 but for some noise, and 2.2 at the spikes."""
    table = MetricsTable()
    for step in range(1, num_steps + 1):
        loss = 2.2 if step in spikes else 2.0 + 0.01 * math.sin(7.0 * step)
        table.append(MetricsRow(step, 1_000 * step, 8, 990, 1e-3, loss, 0.0, 1.0, 1e-3, 1.0, 1.0))
    return table


def test_alarms_are_those_of_the_phase_and_tell_which_spikes_were_recovered_from():
    # A spike before the phase, two that follow each other, and two at the end, too new to be recovered from.
    table = spiky(900, {51, 400, 401, 880, 881})
    found = alarms_of(table, "ocelot", begin_step=100, resets_at=never, first_loss=None)
    assert [(each.alarm.monitor, each.alarm.step, each.tokens, each.has_recovered) for each in found] == [
        ("loss_spike", 401, 401_000, True),
        ("loss_spike", 881, 881_000, False),
    ]
    assert {each.phase for each in found} == {"ocelot"} and found[0].alarm.figure == 2.2 > found[0].alarm.limit
    reset = alarms_of(table, "ocelot", begin_step=100, resets_at=lambda step: step == 399, first_loss=None)
    assert [each.alarm.step for each in reset] == [881], "another mixture is meant to change the loss"


def test_a_first_loss_that_no_untrained_model_has_is_an_alarm():
    expected = FirstLoss(10.0, 0.5)
    found = alarms_of(spiky(70, ()), "kestrel", begin_step=0, resets_at=never, first_loss=expected)
    assert [(each.alarm.monitor, each.alarm.step) for each in found] == [("first_loss", 1)]
