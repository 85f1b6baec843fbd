"""Level: the median and the deviation of the values that it says it is of."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.training.level import Level

# Few distinct values, so that many are equal, among any at all.
VALUES = st.lists(st.integers(-3, 3).map(float) | st.floats(-1e6, 1e6), min_size=2, max_size=40)


@given(values=VALUES, size=st.integers(1, 9), num_recent=st.integers(1, 4))
def test_median_and_deviation_exclude_the_recent_values(values, size, num_recent):
    level = Level(size, num_recent=num_recent)
    for value in values:
        level.add(value)
    assert list(level.recent) == values[-num_recent:]
    held = values[:-num_recent][-size:]
    assert len(level) == len(held)
    if not held:
        return
    median = statistics.median(held)
    distances = sorted(abs(value - median) for value in held)
    assert (level.median, level.lowest) == (median, min(held))
    assert level.deviation == pytest.approx(1.4826 * distances[len(held) // 2], rel=1e-12, abs=0)


@given(values=VALUES, later=VALUES)
def test_a_followed_level_equals_one_of_its_last_values_bitwise(values, later):
    followed, built = Level(4, num_recent=2), Level(4, num_recent=2)
    for value in values + later:
        followed.add(value)
    for value in (values + later)[-6:]:
        built.add(value)
    if len(built):
        assert (followed.median, followed.deviation) == (built.median, built.deviation)
