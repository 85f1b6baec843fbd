"""Quantities: four figures and a unit, and counts that people type."""

import decimal

import pytest

from marin_dag.quantities import LARGEST_COUNT, count_typed, in_bytes, in_short, typed_count


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


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("3B", 3_000_000_000),
        ("300m", 300_000_000),
        ("1.5T", 1_500_000_000_000),
        ("2e9", 2_000_000_000),
        ("3_000", 3_000),
        ("12,345,678", 12_345_678),
        ("1.05 B", 1_050_000_000),
        ("1.2341b", 1_234_100_000),
        ("100000T", int(LARGEST_COUNT)),
    ],
)
def test_a_typed_count_is_exact_and_typed_again_is_the_same(text: str, count: int) -> None:
    assert count_typed(text) == count
    assert count_typed(typed_count(count)) == count


@pytest.mark.parametrize(
    "text", ["", "many", "-3B", "0", "1,5B", "1_2", "1e400", "1e17 k", "0.0001k", "3BB", "1.5,000"]
)
def test_a_text_that_is_no_count_gives_none(text: str) -> None:
    assert count_typed(text) is None


@pytest.mark.parametrize(
    ("count", "text"),
    [(7, "7"), (1_000, "1K"), (999_999, "999.999K"), (3_000_000_000, "3B"), (12_749_012_340_736, "12.749012340736T")],
)
def test_a_count_to_type_is_not_rounded(count: int, text: str) -> None:
    assert typed_count(count) == text


def test_the_precision_of_a_thread_does_not_round_a_count() -> None:
    with decimal.localcontext(prec=3):
        assert count_typed("12,345,678") == 12_345_678
        assert typed_count(12_345_678) == "12.345678M"
