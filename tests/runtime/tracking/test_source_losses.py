"""The table of losses by source has the same bytes however a run was cut, and finds each step."""

import math
import os
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.mixing.policy import Seen
from runtime.data.mixture import WHOLE
from runtime.tables import column
from runtime.tables.parquet_bytes import TableError, from_parquet, to_parquet
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable, rows_of_update
from tests.catalogue import expect_error

NAMES = {"d1": "web", "d2": "code", "d3": "math", "d4": "web"}
"""A source with two caches is one name with two identities."""


def update(step: int, counts: dict[str, int]) -> list[SourceLosses]:
    return rows_of_update(
        step,
        dict.fromkeys(counts, WHOLE // 4),
        NAMES,
        num_sequences=counts,
        num_targets={identity: 100 * count for identity, count in counts.items()},
        loss_sum={identity: 0.1 * count for identity, count in counts.items()},
        log_normalizer_sum={identity: 0.5 * count for identity, count in counts.items()},
    )


def filled(updates: list[dict[str, int]]) -> SourceLossesTable:
    table = SourceLossesTable()
    for step, counts in enumerate(updates, start=1):
        table.append(update(step, counts))
    return table


UPDATES = st.lists(st.dictionaries(st.sampled_from(sorted(NAMES)), st.integers(0, 2**31 - 1), min_size=1), max_size=12)


@given(updates=UPDATES, cut=st.integers(0, 12))
def test_a_table_carried_through_parquet_in_the_middle_ends_with_the_same_bytes(updates, cut):
    carried = SourceLossesTable.from_parquet(filled(updates[:cut]).to_parquet())
    for step, counts in enumerate(updates[cut:], start=min(cut, len(updates)) + 1):
        carried.append(update(step, counts))
    whole = filled(updates)
    assert carried.to_parquet() == whole.to_parquet()
    assert [carried[index] for index in range(len(carried))] == [whole[index] for index in range(len(whole))]
    assert carried.last_step == len(updates)


def test_a_block_has_the_same_bytes_whenever_it_is_written(monkeypatch):
    monkeypatch.setattr(column, "BLOCK_ROWS", 2)
    updates = [{"d1": 1}, {"d1": 2}, {"d1": 3, "d3": 4}]
    early, late = filled(updates[:2]), filled(updates)
    assert early.block_to_parquet(0) == late.block_to_parquet(0), "a source of later rows is in the block"
    parts = late.block_to_parquet(0), late.block_to_parquet(1), late.newest_to_parquet()
    assert SourceLossesTable.from_parquet(*parts).to_parquet() == late.to_parquet()


def test_rows_are_by_name_with_zeros_for_a_source_that_was_not_drawn():
    (code, web) = update(1, {"d1": 3, "d2": 0})
    assert code == SourceLosses(1, "code", "d2", 0.25, 0, 0, 0.0, 0.0)
    assert web == SourceLosses(1, "web", "d1", 0.25, 3, 300, pytest.approx(0.3), 1.5)


def test_a_step_is_found_by_identity():
    table = filled([{"d1": 1}, {"d1": 2, "d3": 5}, {"d2": 4}])
    assert table.seen(2) == {"d1": Seen(2, 200, 0.2, 1.0), "d3": Seen(5, 500, 0.5, 2.5)}
    assert table.seen(4) == {}
    assert table.num_sequences(range(2, 4)) == {"d1": 2, "d2": 4, "d3": 5}
    assert table.num_sequences(range(4, 9)) == {"d1": 0, "d2": 0, "d3": 0}


def test_a_step_out_of_order_and_a_foreign_table_are_refused():
    table = filled([{"d1": 1}])
    with expect_error(TableError):
        table.append(update(3, {"d1": 1}))
    with expect_error(TableError):
        SourceLossesTable.from_parquet(to_parquet(pa.table({"step": [1]})))


def without(column: str, parquet: bytes) -> bytes:
    return to_parquet(from_parquet(parquet).drop_columns([column]))


def test_a_table_without_log_normalizers_continues_with_nan():
    updates = [{"d1": 1, "d2": 4}, {"d1": 2, "d3": 5}]
    old = without("log_normalizer_sum", filled(updates).to_parquet())
    table = SourceLossesTable.from_parquet(old)
    assert all(math.isnan(table[index].log_normalizer_sum) for index in range(len(table)))
    assert math.isnan(table.seen(2)["d1"].log_normalizer_sum) and table.seen(2)["d1"].loss_sum == 0.2
    table.append(update(3, {"d1": 2}))
    again = SourceLossesTable.from_parquet(table.to_parquet())
    assert without("log_normalizer_sum", again.to_parquet()) == without(
        "log_normalizer_sum", filled([*updates, {"d1": 2}]).to_parquet()
    )
    assert [again[index].log_normalizer_sum for index in range(len(again))] == pytest.approx(
        [math.nan] * 4 + [1.0], nan_ok=True
    )


def test_a_table_without_another_column_is_refused_and_further_columns_are_ignored():
    whole = filled([{"d1": 1}]).to_parquet()
    for name in [name for name in SourceLosses._fields if name != "log_normalizer_sum"]:
        with expect_error(TableError):
            SourceLossesTable.from_parquet(without(name, whole), file="mine")
    newer = from_parquet(whole).append_column("later", pa.array([1.0]))
    assert SourceLossesTable.from_parquet(to_parquet(newer)).to_parquet() == whole


def drawn(table: SourceLossesTable) -> Counter[str]:
    """Return all sequences drawn, by the name of their source."""
    total: Counter[str] = Counter()
    for index in range(len(table)):
        total[table[index].source] += table[index].num_sequences
    return total


def test_a_copy_does_not_change_with_later_rows():
    table = filled([{"d1": 1}])
    copy = table.copy()
    table.append(update(2, {"d1": 1, "d2": 1}))
    assert (len(copy), copy.last_step, drawn(copy)) == (1, 1, {"web": 1})
    table.append(update(3, {"d2": 7}))
    copy.append(update(2, {"d3": 5}))
    copy.append(update(3, {"d2": 6}))
    assert drawn(copy) == {"web": 1, "math": 5, "code": 6}
    read = SourceLossesTable.from_parquet(copy.to_parquet())
    read.append(update(4, {"d2": 1, "d4": 2}))
    assert drawn(read) == {"web": 3, "math": 5, "code": 7}


WRITES = """
import hashlib
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
table = SourceLossesTable()
for step in range(1, 21):
    names = {"a": "web", "b": "web", "c": "code"}.items()
    table.append(SourceLosses(step, name, identity, 0.25, step, 100, 1.5, 2.5) for identity, name in names)
print(hashlib.sha256(table.to_parquet()).hexdigest())
"""


def test_uninitialised_memory_is_not_written():
    written = {
        subprocess.run(
            [sys.executable, "-c", WRITES],
            env=os.environ | {"MALLOC_PERTURB_": byte, "ARROW_DEFAULT_MEMORY_POOL": "system"},
            capture_output=True, text=True, check=True,
        ).stdout
        for byte in ("1", "200")
    }  # fmt: skip
    assert len(written) == 1
