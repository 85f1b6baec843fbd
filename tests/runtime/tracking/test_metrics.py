"""Metrics tables are deterministic."""

import math

from hypothesis import given
from hypothesis import strategies as st

from runtime.tracking.metrics import INTEGERS, MetricsRow, MetricsTable, TableError
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


def test_a_copy_is_not_reached_by_later_rows():
    first = table(row(1))
    copy = first.copy()
    first.append(row(2))
    assert (len(first), len(copy)) == (2, 1)


def test_the_final_loss_is_the_mean_of_the_last_rows():
    filled = table(row(1, 9.0), row(2, 2.0), row(3, 1.0))
    assert filled.mean_loss_of_last(2) == 1.5
    assert filled.mean_loss_of_last(20) == 4.0
    assert MetricsTable().mean_loss_of_last(2) is None
    assert table(row(1, math.nan)._replace(is_skipped=1)).mean_loss_of_last(2) is None


def test_a_foreign_table_is_refused_by_its_columns():
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"loss": [1.0]}), buffer)
    with expect_error(TableError):
        MetricsTable.from_parquet(buffer.getvalue())
    assert set(INTEGERS) < set(MetricsRow._fields)
