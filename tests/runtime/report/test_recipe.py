"""Settings in words, as the recipe table shows them: also of a config that nothing can be made of."""

import math

import pytest

from runtime.report.recipe import rate


@pytest.mark.parametrize(
    ("value", "said"),
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
def test_any_number_is_written_as_people_write_it(value: float, said: str) -> None:
    assert rate(value) == said
