"""Readings: metrics and samples as other steps write them, and what is wrong with files that are not that."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.report.readings import (
    ReadingError,
    read_columns,
    read_curve,
    read_progress,
    read_samples,
    read_source_curves,
)
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
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
    }
    table = {name: value for name, value in {**columns, **replaced}.items() if value is not None}
    pq.write_table(pa.table(table), path)
    return str(path)


def test_metrics_are_read_as_they_were_written(tmp_path):
    curve = read_curve(write_metrics(tmp_path / "metrics.parquet", range(1, 11)))
    assert len(curve) == 10
    assert curve.consumed_tokens[-1] == 20_480
    assert curve.loss[0] == pytest.approx(3.99)


def test_a_missing_column_is_named_with_its_file(tmp_path):
    path = write_metrics(tmp_path / "metrics.parquet", range(1, 3), learning_rate=None)
    with expect_error(ReadingError):
        read_curve(path)


def test_rows_in_common_with_a_parent_are_those_that_it_made(tmp_path):
    parent = read_curve(write_metrics(tmp_path / "parent.parquet", range(1, 6)))
    whole = read_curve(write_metrics(tmp_path / "whole.parquet", range(1, 11)))
    later = read_curve(write_metrics(tmp_path / "later.parquet", range(6, 11)))
    assert [whole.common_rows(parent), later.common_rows(parent), parent.common_rows(parent)] == [5, 0, 5]
    assert whole.behind(5).step.tolist() == [6, 7, 8, 9, 10] == later.behind(0).step.tolist()
    assert len(whole.behind(10)) == 0


def test_how_far_a_run_came_tells_of_updates_that_were_left_out_too(tmp_path):
    is_skipped = np.isin(np.arange(1, 11), [1, 2, 6])
    loss = np.where(is_skipped, np.nan, 3.0)
    path = write_metrics(tmp_path / "metrics.parquet", range(1, 11), is_skipped=is_skipped.astype(np.int32), loss=loss)
    progress = read_progress(path)
    assert len(read_curve(path)) == 7 and len(progress.step) == 10
    assert progress.sequence_length == 256
    assert [progress.tokens_at(step) for step in (0, 1, 6)] == [0, 2048, 6 * 2048]


def test_where_rows_begin_later_the_first_two_say_where_that_was(tmp_path):
    sizes = np.array([4, 8, 8, 8])
    tokens = 5_000 + 256 * np.cumsum(sizes)
    columns = {"consumed_tokens": tokens, "global_batch_size": sizes}
    progress = read_progress(write_metrics(tmp_path / "metrics.parquet", range(4, 8), **columns))
    assert progress.sequence_length == 256
    assert progress.tokens_at(3) == 5_000 and progress.tokens_at(4) == tokens[0]
    one = write_metrics(tmp_path / "one.parquet", range(4, 5))
    with expect_error(ReadingError):
        read_progress(one).tokens_at(3)
    with expect_error(ReadingError):
        read_progress(write_metrics(tmp_path / "none.parquet", range(0)))


def test_each_update_has_a_length_of_its_own(tmp_path):
    columns = {"consumed_tokens": np.cumsum([4 * 256, 4 * 256, 2 * 1024]), "global_batch_size": np.array([4, 4, 2])}
    progress = read_progress(write_metrics(tmp_path / "metrics.parquet", range(1, 4), **columns))
    assert [progress.sequence_length_at(step) for step in (1, 2, 3)] == [256, 256, 1024]


def test_samples_are_the_first_of_each_reason_and_shortened(tmp_path):
    rows = [{"reason": f"r{i % 2}", "id": str(i), "detail": "", "excerpt": "x" * 5_000} for i in range(10)]
    path = tmp_path / "dropped.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = read_samples(str(path), 2)
    assert [(sample.reason, sample.document) for sample in samples] == [
        ("r0", "0"),
        ("r0", "2"),
        ("r1", "1"),
        ("r1", "3"),
    ]
    assert all(len(sample.excerpt) < 700 and sample.excerpt.endswith("[…]") for sample in samples)


@pytest.mark.parametrize("line", ["{", "[]", '{"reason": "x"}', "7"])
def test_a_line_that_is_no_sample_is_named(tmp_path, line):
    path = tmp_path / "dropped.jsonl"
    path.write_text(line + "\n")
    with expect_error(ReadingError):
        read_samples(str(path), 2)


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
    with expect_error(ReadingError):
        read_source_curves(str(path))


def test_a_source_has_one_curve_though_its_name_lies_in_several_row_groups(tmp_path):
    path = str(tmp_path / "source_losses.parquet")
    columns = {"step": [1, 2, 3, 4], "source": ["web", "code", "code", "web"], "num_targets": [2] * 4}
    pq.write_table(pa.table(columns | {"loss_sum": [2.0, 4.0, 6.0, 8.0]}), path, row_group_size=2)
    found = {curve.source: (curve.step.tolist(), curve.loss.tolist()) for curve in read_source_curves(path)}
    assert found == {"code": ([2, 3], [2.0, 3.0]), "web": ([1, 4], [1.0, 4.0])}
    assert list(found) == ["code", "web"]


def test_of_millions_of_rows_no_text_is_made(tmp_path):
    path = tmp_path / "source_losses.parquet"
    table = SourceLossesTable()
    table.append([SourceLosses(1, "web", "a", 1.0, 4, 8, 16.0, 24.0)])
    path.write_bytes(table.to_parquet())
    assert read_columns(str(path), ("source",)).column("source").type == pa.dictionary(pa.int32(), pa.string())
