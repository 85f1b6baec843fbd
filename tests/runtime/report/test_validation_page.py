"""The page of held-out text: every phase and every set of weights is on it, where it was measured."""

import dataclasses
import html
import re

import numpy as np
import pytest

from runtime.report.validation_page import ValidationCurve, page, stacked, validation

NAN = float("nan")
KESTREL = ValidationCurve(
    "kestrel", True, 0, 1000, 2, np.array([0, 5, 10]), np.array([0, 500, 1000]), {"hot": np.array([8.0, 2.0, 1.5])}
)
OCELOT = ValidationCurve(
    "ocelot", True, 1000, 3000, 3, np.array([10, 15, 20]), np.array([1000, 2000, 3000]),
    {"hot": np.array([1.5, 1.4, 1.375]), "ema": np.array([1.5, 1.38, 1.25]), "slow": np.array([NAN, 1.5, 1.48])},
)  # fmt: skip
DESSERT = ValidationCurve(
    "<dessert>", False, 1000, 1500, 2, np.array([12]), np.array([1200]), {"hot": np.array([1.45])}
)
BARE = ValidationCurve("bare", True, 3000, 4000, 0, np.array([], int), np.array([]), {})
CURVES = (KESTREL, OCELOT, DESSERT, BARE)


def rows(made: str) -> list[list[str]]:
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", made)]
    return [[html.unescape(cell) for cell in row] for row in found]


def points(drawn: str, class_: str) -> list[list[tuple[float, float]]]:
    """Of the lines of one class, in pixels."""
    paths = re.findall(rf'<path d="([^"]*)" class="line {class_}"', drawn)
    return [[(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)] for path in paths]


def test_the_last_measurement_of_each_phase_stands_in_figures_with_the_better_weights_marked():
    made = page("Held-out text", CURVES, ["a note"])
    assert rows(made) == [
        ["phase", "measured", "sources", "last, after step", "tokens", "hot", "ema", "slow"],
        ["kestrel", "3", "2", "10", "1,000", "1.5000", "–", "–"],
        ["ocelot", "3", "3", "20", "3,000", "1.3750", "1.2500", "1.4800"],
        ["<dessert>", "1", "2", "12", "1,200", "1.4500", "–", "–"],
    ]
    assert re.findall(r'class="number best">([^<]*)<', made) == ["1.2500"]
    assert "7 measurements of held-out text while 3 phases trained." in made and "<p>a note.</p>" in made
    assert "<dessert>" not in made


def test_each_set_of_weights_is_a_line_through_its_values_over_the_tokens_of_the_run():
    drawn = str(validation(CURVES, 1040))
    left, right = 58.0, 1026.0
    kestrel, hot, ema, slow = points(drawn, "main")
    assert [x for x, _ in hot] == pytest.approx([left + (right - left) * share for share in (0.25, 0.5, 0.75)], abs=0.1)
    assert kestrel[-1] == hot[0] == ema[0], "one state, measured as one phase ends and as the next begins"
    heights = np.diff([y for _, y in hot]), np.diff([y for _, y in ema])
    assert heights[1].sum() / heights[0].sum() == pytest.approx(2, rel=0.01)
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3" class="dot main"', drawn)
    assert [(float(x), float(y)) for x, y in dots] == [kestrel[-1], hot[-1], ema[-1], slow[-1]]
    assert len(slow) == 2, "not where it was not measured"
    assert re.findall(r'class="line main" style="stroke-dasharray:([^"]*)"', drawn) == ["5 3", "1.5 3"]
    assert drawn.count('class="dot branch"') == 1
    assert "ocelot, ema weights after step 20: 1.2500" in drawn


def test_first_measurements_do_not_flatten_the_others_and_the_caption_says_so():
    drawn, made = str(validation(CURVES, 1040)), page("Held-out text", CURVES)
    assert points(drawn, "main")[0][0][0] > 58, "8 bits per byte are above the axis, where the line is cut"
    assert "Values above the axis (the last at 0 tokens) are cut off." in made
    late = dataclasses.replace(KESTREL, means={"hot": np.array([2.0, 2.0, 1.5])})
    assert "cut off" not in page("Held-out text", [late, OCELOT])


def test_a_run_that_has_just_begun_is_drawn():
    begun = ValidationCurve("kestrel", True, 0, 5000, 1, np.array([0]), np.array([0]), {"hot": np.array([8.0])})
    made = page("Held-out text", [begun])
    assert made.count('class="dot main"') == 2 and "cut off" not in made, "once wide, once narrow"


def test_an_early_phase_on_easier_text_is_on_the_axis():
    warm = ValidationCurve(
        "warm", True, 0, 20_000, 1, np.array([1, 2]), np.array([1e4, 2e4]), {"hot": np.array([1.2, 0.9])}
    )
    main = ValidationCurve(
        "main", True, 20_000, 1_000_000, 1, np.array([3, 4]), np.array([5e5, 1e6]), {"hot": np.array([2.5, 2.0])}
    )
    first, second = points(str(validation([warm, main], 1040)), "main")
    assert (len(first), len(second)) == (2, 2) and "cut off" not in page("Held-out text", [warm, main])
    assert first[1][1] - first[0][1] == pytest.approx(0.6 * (second[1][1] - second[0][1]), abs=0.2)


def strokes(made: str) -> dict[str, str]:
    """Of the keys, by what is said beside them."""
    return {
        said: re.findall(r'style="stroke-dasharray:([^"]*)"', swatch)[0] if "style=" in swatch else ""
        for swatch, said in re.findall(r"<li>(.*?</svg>)(.*?)</li>", made)
    }


def test_each_set_of_weights_has_one_key_and_one_stroke_in_every_phase():
    means = dict(OCELOT.means)
    del means["ema"]
    made = page("Held-out text", [OCELOT, dataclasses.replace(OCELOT, phase="phoenix", means=means)])
    assert strokes(made) == {"hot weights": "", "ema weights": "5 3", "slow weights": "1.5 3"}
    drawn = re.findall(r'class="line main" style="stroke-dasharray:([^"]*)"', made.partition("<ul")[0])
    assert drawn == ["5 3", "1.5 3", "1.5 3"] * 2, "once wide, once narrow"


def test_no_two_of_many_sets_of_weights_are_drawn_alike():
    means = {"hot": OCELOT.means["hot"]} | {f"ema{index}": OCELOT.means["ema"] for index in range(9)}
    found = strokes(page("Held-out text", [dataclasses.replace(OCELOT, means=means)]))
    assert list(found) == [f"{which} weights" for which in means]
    assert len(set(found.values())) == len(means)
    periods = [sum(map(float, stroke.split())) for stroke in found.values() if stroke]
    assert max(periods) <= 46, "a whole one is in its key"


def branch(phase: str, end: int, last: float) -> ValidationCurve:
    return ValidationCurve(
        phase, False, 1000, end, 2, np.array([11, 12]), np.array([1100, end]), {"hot": np.array([last + 0.01, last])}
    )


def names(drawn: str, among: list[str]) -> dict[str, tuple[float, float, str]]:
    """Where each branch's name stands, and its anchor."""
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"(?: text-anchor="(\w+)")? class="name"[^>]*>([^<]*)<', drawn)
    return {said: (float(x), float(y), anchor) for x, y, anchor, said in found if said in among}


@pytest.mark.parametrize("width", [1040, 358])
def test_branches_that_lie_on_each_other_are_named_apart_in_their_order_inside_the_frame(width):
    branches = [branch(f"b{index}", 1200 + 10 * index, 1.45 + 0.001 * (index % 3)) for index in range(9)]
    drawn = str(validation([KESTREL, OCELOT, *branches], width))
    found = names(drawn, [curve.phase for curve in branches])
    heights = sorted(y for _, y, _ in found.values())
    assert len(found) == 9 and min(np.diff(heights)) >= 12.9
    assert found["b2"][1] < found["b1"][1] < found["b0"][1], "the worse above"
    bottom = float(re.findall(r'<line [^>]*y1="([\d.]+)" [^>]*class="axis"', drawn)[0])
    assert heights[-1] < bottom and drawn.count('class="leader" style') >= 7


def test_a_name_stands_left_of_its_dot_where_the_right_has_no_room_and_nowhere_where_neither_has():
    short, long = branch("z_loss", 2990, 1.45), branch("x" * 80, 1500, 1.4)
    drawn = str(validation([KESTREL, OCELOT, short, long], 358))
    found = names(drawn, [short.phase, long.phase])
    assert list(found) == ["z_loss"] and found["z_loss"][2] == "end"
    assert "each named at its last dot where there is room" in page("Held-out text", [KESTREL, OCELOT, short])
    assert "named" not in page("Held-out text", [KESTREL, OCELOT])


def test_a_phase_that_is_above_the_axis_as_a_whole_is_said_not_to_be_on_the_picture():
    high = ValidationCurve("qb", False, 0, 60, 2, np.array([1, 2]), np.array([20, 60]), {"hot": np.array([9.0, 8.5])})
    made = page("Held-out text", [KESTREL, OCELOT, high])
    assert "Not on the picture, since all of it is above the axis: qb." in made
    assert not names(made, ["qb"]) and "Not on the picture" not in page("Held-out text", CURVES)


def test_bold_is_explained_where_something_is_bold():
    said = "Bold: the best weights of a phase."
    assert said in page("Held-out text", CURVES) and said not in page("Held-out text", [KESTREL])


def test_places_are_kept_where_they_are_far_enough_apart_and_else_spread_around_their_mean():
    assert stacked([10, 40, 90], 13, 0, 100) == [10, 40, 90]
    assert stacked([50, 50, 50], 10, 0, 100) == [40, 50, 60]
    assert stacked([2, 3, 99], 10, 0, 100) == [0, 10, 99]
    assert stacked([98, 99], 10, 0, 100) == [90, 100]
