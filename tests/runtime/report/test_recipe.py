"""Settings in words, as the recipe table shows them: also of a config that nothing can be made of."""

import math

import pytest

from runtime.report.recipe import rate, shares


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (0.0, "0"),
        (1.7e-3, "1.7e-3"),
        (0.1, "0.1"),
        (1e300, "1e300"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_any_number_is_written_as_people_write_it(value: float, output: str) -> None:
    assert rate(value) == output


def test_shares_that_changed_are_shown_beside_what_they_were_and_those_that_did_not_once() -> None:
    before, now = {"web": 0.70001, "code": 0.2, "flan": 0.1}, {"web": 0.7, "code": 0.1, "maths": 0.2}
    assert shares(now, before) == "web 70 %, maths 0 % -> 20 %, code 20 % -> 10 %"
    assert shares(now, now) == shares(now) == "web 70 %, maths 20 %, code 10 %"
