"""Metrics tables are deterministic, and readable by older and newer versions."""

import math

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from runtime.tables.parquet_bytes import TableError, from_parquet, to_parquet
from runtime.tracking.metrics import INTEGERS, MetricsRow, MetricsTable
from tests.catalogue import expect_error


def row(step: int, loss: float = 2.5) -> MetricsRow:
    return MetricsRow(step, step * 2**40, 4, 28, 1e-3, loss, 0.0, 1.0, 0.1, 10.0, 3.4)


def table(*rows: MetricsRow) -> MetricsTable:
    filled = MetricsTable()
    for one in rows:
        filled.append(one)
    return filled


@given(losses=st.lists(st.floats(allow_nan=False), max_size=20), cut=st.integers(0, 20))
def test_a_table_carried_through_parquet_in_the_middle_ends_with_the_same_bytes(losses, cut):
    rows = [row(step, loss) for step, loss in enumerate(losses, start=1)]
    carried = MetricsTable.from_parquet(table(*rows[:cut]).to_parquet())
    for one in rows[cut:]:
        carried.append(one)
    assert carried.to_parquet() == table(*rows).to_parquet()
    assert [carried[index] for index in range(len(carried))] == rows


def test_a_row_out_of_order_is_refused():
    with expect_error(TableError):
        table(row(1), row(2), row(4))


def test_a_copy_does_not_change_with_later_rows():
    first = table(row(1))
    copy = first.copy()
    first.append(row(2))
    assert (len(first), len(copy)) == (2, 1)


def test_the_final_loss_is_the_mean_of_the_last_rows():
    filled = table(row(1, 9.0), row(2, 2.0), row(3, 1.0))
    assert filled.mean_loss_of_last(2, after_step=0) == 1.5
    assert filled.mean_loss_of_last(20, after_step=0) == 4.0
    assert filled.mean_loss_of_last(20, after_step=2) == 1.0
    assert filled.mean_loss_of_last(20, after_step=3) is None
    assert MetricsTable().mean_loss_of_last(2, after_step=0) is None
    assert table(row(1, math.nan)._replace(is_skipped=1)).mean_loss_of_last(2, after_step=0) is None


def test_a_foreign_table_is_refused():
    with expect_error(TableError):
        MetricsTable.from_parquet(to_parquet(pa.table({"loss": [1.0]})))
    assert set(INTEGERS) < set(MetricsRow._fields)


def test_a_table_of_an_older_version_has_defaults_in_later_columns():
    whole = table(row(1), row(2))
    older = to_parquet(from_parquet(whole.to_parquet()).drop_columns(["is_skipped"]))
    found = MetricsTable.from_parquet(older)
    assert found.to_parquet() == whole.to_parquet()
    found.append(row(3)._replace(is_skipped=1))
    assert found.skipped_steps == [3]


def test_a_table_of_a_newer_version_loses_only_its_further_columns():
    whole = table(row(1), row(2))
    newer = from_parquet(whole.to_parquet()).append_column("router_loss", pa.array([0.5, 0.25]))
    assert MetricsTable.from_parquet(to_parquet(newer)).to_parquet() == whole.to_parquet()


def test_a_table_without_a_column_of_the_first_version_is_refused():
    older = to_parquet(from_parquet(table(row(1)).to_parquet()).drop_columns(["loss"]))
    with expect_error(TableError):
        MetricsTable.from_parquet(older, file="runs/metrics.parquet")
