"""The blocks of a table and the rows after them are all its rows, and a block never changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tables import column
from runtime.tables.column import BlockedTable, Column

BLOCK = 4
NUMBERS = st.lists(st.integers(-9, 9), max_size=30)


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column, "BLOCK_ROWS", BLOCK)
        yield


class Numbers(BlockedTable):
    """A table of one column, whose files are bare int64 numbers."""

    def __init__(self, numbers: list[int]) -> None:
        self.column = Column("q")
        for number in numbers:
            self.column.append(number)

    def __len__(self) -> int:
        return len(self.column)

    def rows_to_parquet(self, rows: slice) -> bytes:
        return self.column.to_numpy(rows).tobytes()


@given(NUMBERS)
def test_blocks_and_the_rows_after_them_are_all_rows(numbers: list[int]) -> None:
    table = Numbers(numbers)
    blocks = [table.block_to_parquet(index) for index in range(table.num_blocks)]
    assert all(len(block) == 8 * BLOCK for block in blocks)
    assert b"".join([*blocks, table.newest_to_parquet()]) == table.to_parquet()
    assert len(table.newest_to_parquet()) < 8 * BLOCK


@given(NUMBERS, NUMBERS)
def test_a_block_never_changes(numbers: list[int], later: list[int]) -> None:
    table = Numbers(numbers)
    blocks = [table.block_to_parquet(index) for index in range(table.num_blocks)]
    for number in later:
        table.column.append(number)
    assert [table.block_to_parquet(index) for index in range(len(blocks))] == blocks
