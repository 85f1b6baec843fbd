"""The page of held-out text: every phase and every set of weights is on it, where it was measured."""

import dataclasses
import html
import re

import numpy as np

from runtime.report.validation_page import ValidationCurve, page
from tests.runtime.report.drawn import panels

NAN = float("nan")
KESTREL = ValidationCurve(
    "kestrel", True, 1000, 2, np.array([0, 5, 10]), np.array([0, 500, 1000]), {"hot": np.array([8.0, 2.0, 1.5])}
)
OCELOT = ValidationCurve(
    "ocelot", True, 3000, 3, np.array([10, 15, 20]), np.array([1000, 2000, 3000]),
    {"hot": np.array([1.5, 1.4, 1.375]), "ema": np.array([1.5, 1.38, 1.25]), "slow": np.array([NAN, 1.5, 1.48])},
)  # fmt: skip
DESSERT = ValidationCurve("<dessert>", False, 1500, 2, np.array([12]), np.array([1200]), {"hot": np.array([1.45])})
BARE = ValidationCurve("bare", True, 4000, 0, np.array([], int), np.array([]), {})
CURVES = (KESTREL, OCELOT, DESSERT, BARE)


def rows(made: str) -> list[list[str]]:
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", made)]
    return [[html.unescape(cell) for cell in row] for row in found]


def test_the_last_measurement_of_each_phase_stands_in_figures_with_the_better_weights_marked():
    made = page("Held-out text", CURVES, ["a note"])
    assert rows(made) == [
        ["phase", "measured", "sources", "last, after step", "tokens", "weights", "ema", "slow"],
        ["kestrel", "3", "2", "10", "1,000", "1.5000", "–", "–"],
        ["ocelot", "3", "3", "20", "3,000", "1.3750", "1.2500", "1.4800"],
        ["<dessert>", "1", "2", "12", "1,200", "1.4500", "–", "–"],
    ]
    assert "7 measurements of held-out text while 3 phases trained." in made and "<p>a note.</p>" in made
    assert "<dessert>" not in made


def test_each_set_of_weights_is_a_line_through_its_values_over_the_tokens_of_the_run():
    (panel,) = panels(page("", CURVES))
    lines = {mark.name: mark.data for mark in panel.of("Line")}
    assert list(lines) == [
        "kestrel, weights", "ocelot, weights", "ocelot, ema", "ocelot, slow",
        "<dessert>, weights",
    ]  # fmt: skip
    assert lines["ocelot, ema"] == {"x": [1000, 2000, 3000], "y": [1.5, 1.38, 1.25]}
    assert lines["ocelot, slow"]["x"] == [2000, 3000], "not where it was not measured"
    assert [mark.series for mark in panel.of("Line")] == ["main line"] * 4 + ["<dessert>"]
    assert "ocelot, ema after step 20: 1.2500" in panel.tips


def test_first_measurements_do_not_flatten_the_others_and_the_caption_says_so():
    made = page("Held-out text", CURVES)
    (panel,) = panels(made)
    assert panel.y_range["start"] < 1.25 and panel.y_range["end"] < 3
    assert "Values above the axis (the last at 0 tokens) are off it." in made
    late = dataclasses.replace(KESTREL, means={"hot": np.array([2.0, 2.0, 1.5])})
    assert "are off it" not in page("Held-out text", [late, OCELOT])


def test_a_run_with_one_measurement_is_drawn():
    first = ValidationCurve("kestrel", True, 5000, 1, np.array([0]), np.array([0]), {"hot": np.array([8.0])})
    made = page("Held-out text", [first])
    assert panels(made)[0].tips == ["kestrel, weights after step 0: 8.0000"] and "are off it" not in made


def test_an_early_phase_on_easier_text_is_on_the_axis():
    warm = ValidationCurve(
        "warm", True, 20_000, 1, np.array([1, 2]), np.array([1e4, 2e4]), {"hot": np.array([1.2, 0.9])}
    )
    main = ValidationCurve(
        "main", True, 1_000_000, 1, np.array([3, 4]), np.array([5e5, 1e6]), {"hot": np.array([2.5, 2.0])}
    )
    (panel,) = panels(page("", [warm, main]))
    assert panel.y_range["start"] < 0.9 and panel.y_range["end"] > 2.5


def test_no_two_of_many_sets_of_weights_have_one_mark():
    means = {"hot": OCELOT.means["hot"]} | {f"ema{index}": OCELOT.means["ema"] for index in range(8)}
    made = page("Held-out text", [dataclasses.replace(OCELOT, means=means)])
    words = re.search(r"Marks: ([^.]*)[.]", made).group(1).split(", ")
    assert [word.split(": ")[1] for word in words] == ["weights", *list(means)[1:]]
    assert len({word.split(": ")[0] for word in words}) == len(means)
