"""Quantities: four figures and a unit."""

import pytest

from marin_dag.quantities import in_bytes, in_short


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (512, "512"),
        (999, "999"),
        (10_000, "10 k"),
        (738_304, "738.3 k"),
        (999_940, "999.9 k"),
        (999_960, "1 M"),
        (4_168_704, "4.169 M"),
        (68_891_443_200, "68.89 B"),
        (14_819_931_455_488, "14.82 T"),
        (3_000_000_000_000_000, "3,000 T"),
        (9_999_400_000_000_000, "9,999 T"),
        (9_999_600_000_000_000, "1.00e+16"),
        (99_900_000_000_000_000, "9.99e+16"),
        (1_408_000_000_000_000_000_000, "1.41e+21"),
    ],
)
def test_a_count_has_four_figures_and_a_unit(count: int, text: str) -> None:
    assert in_short(count) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (999_999, "1 MB"), (33.77e12, "33.77 TB")]
)
def test_a_size_is_in_decimal_units(size: float, text: str) -> None:
    assert in_bytes(size) == text
