"""A column is its numbers, however many blocks it has, and copies share all but the newest."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tables import column as module
from runtime.tables.column import Column

BLOCK = 4
PARTS = st.lists(st.lists(st.integers(-9, 9), max_size=11), max_size=6)


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ROWS", BLOCK)
        yield


def joined(parts: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


def filled(parts: list[list[int]]) -> Column:
    """Return a column of the numbers, some appended and some in arrays."""
    column = Column("q")
    for index, part in enumerate(parts):
        if index % 2:
            column.extend(np.array(part, np.int64))
        else:
            for number in part:
                column.append(number)
    return column


@given(PARTS)
def test_it_is_its_numbers(parts):
    numbers, column = joined(parts), filled(parts)
    assert len(column) == len(numbers)
    assert list(column) == list(column.to_numpy()) == [column[index] for index in range(len(numbers))] == numbers
    assert list(reversed(column)) == numbers[::-1]
    assert not numbers or (column[-1] == numbers[-1] and column[-len(numbers)] == numbers[0])
    with pytest.raises(IndexError):
        column[len(numbers)]


@given(PARTS, PARTS, PARTS)
def test_a_copy_and_its_column_are_separate(parts, ours, theirs):
    column = filled(parts)
    copy = column.copy()
    for target, added in ((column, ours), (copy, theirs)):
        target.extend(np.array(joined(added), np.int64))
    assert list(column) == joined(parts + ours)
    assert list(copy) == joined(parts + theirs)


def test_a_number_that_does_not_fit_is_refused():
    with pytest.raises(OverflowError):
        Column("H").append(2**16)
