"""The page of gradients by layer: a norm is held against the median of its own layer, and what stands out is seen."""

import html
import math
import re

import numpy as np
import pytest

from runtime.report.norms_page import LayerNorms, heat_map, layer_norms, level, page
from runtime.tracking.curves import Curves, SparseCurves

NAN = float("nan")
NORMS = LayerNorms(
    "<phoenix>",
    ("layer 0", "layer 1", "embed_tokens"),
    np.array([100, 200, 300, 400, 500]),
    np.array([[1.0, 1.0, 1.0, 1.0, 8.0], [10.0, 10.0, NAN, 10.0, 10.0], [0.0, 0.0, 0.0, 0.0, 0.0]]),
)


def test_the_norm_of_a_layer_is_of_all_its_tensors_together_at_the_steps_that_stand():
    names = ["layers.0.q", "layers.0.k", "layers.1.q", "layers.1.k", "embed_tokens"]
    of_all = [f"grad_norm_by_part/{name}" for name in names] + [f"update_norm_by_part/{name}" for name in names]
    told = {step: np.array([3.0 * step, 4.0 * step, 5.0, 12.0, 2.0, *[99.0] * 5]) for step in (1, 3, 4, 9)}
    curves = Curves(np.arange(1, 5), {}, SparseCurves(of_all, told))
    found = layer_norms("phoenix", curves)
    assert found.rows == ("layer 0", "layer 1", "embed_tokens")
    assert found.step.tolist() == [1, 3, 4], "no checkpoint has come to step 9"
    np.testing.assert_allclose(found.norms, [[5, 15, 20], [13, 13, 13], [2, 2, 2]])
    assert layer_norms("bare", Curves(np.arange(1, 5), {})).step.size == 0


def test_layers_stand_in_the_order_of_their_numbers():
    names = [f"grad_norm_by_part/layers.{layer}.q" for layer in (10, 2, 0)]
    curves = Curves(np.arange(1, 3), {}, SparseCurves(names, {1: np.array([10.0, 2.0, 0.5])}))
    assert layer_norms("phoenix", curves).rows == ("layer 0", "layer 2", "layer 10")
    assert layer_norms("phoenix", curves).norms[:, 0].tolist() == [0.5, 2.0, 10.0]


@pytest.mark.parametrize(
    ("ratio", "expected"), [(1.0, 0), (1.15, 0), (2**0.5, 1), (2.0, 2), (4.0, 4), (100.0, 4), (0.5, -2), (0.0, -4)]
)
def test_colours_are_steps_of_a_factor_on_either_side_of_the_median(ratio, expected):
    assert level(ratio) == expected


def test_a_norm_is_held_against_the_median_of_its_own_row():
    ratios = NORMS.ratios
    assert ratios[0].tolist() == [1, 1, 1, 1, 8]
    assert ratios[1, 0] == 1 and math.isnan(ratios[1, 2])
    assert np.isnan(ratios[2]).all(), "a median of 0 is no usual size"


@pytest.mark.parametrize("width", [1040.0, 358.0])
def test_what_stands_out_is_in_its_row_and_column_however_many_updates_there_are(width):
    steps, rows = np.arange(1, 5_001), 40
    norms = np.ones((rows, len(steps)))
    norms[23, 2_499] = 64.0
    drawn = heat_map(LayerNorms("long", tuple(f"layer {row}" for row in range(rows)), steps, norms), width)
    (found,) = re.findall(r'<rect style="fill:var\(--branch\);fill-opacity:1"([^>]*)>', drawn)
    x, y, across = (float(re.findall(rf'\b{name}="([\d.]+)"', found)[0]) for name in ("x", "y", "width"))
    (left, whole), (top, height) = (
        [float(re.findall(rf'fill:var\(--band\)"[^>]* {name}="([\d.]+)"', drawn)[0]) for name in names]
        for names in (("x", "width"), ("y", "height"))
    )
    assert left + 0.48 * whole < x < x + across < left + 0.52 * whole
    assert y == pytest.approx(top + height * 23 / 40, abs=0.2)
    assert "layer 23, steps" in found and "64 times its median" in found
    assert len(drawn) < 20_000


def test_the_page_names_the_layers_that_were_furthest_above_their_median_and_when():
    made = page("Gradients", [NORMS], ["a note"])
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", made)]
    assert [[html.unescape(cell) for cell in row] for row in rows[1:]] == [
        ["<phoenix>", "layer 0", "8.00", "500", "8", "1"],
        ["layer 1", "1.00", "100", "10", "10"],
        ["embed_tokens", "–", "–", "–", "–"],
    ]
    assert "<phoenix>" not in made and "<p>a note.</p>" in made
    assert "layer 1, steps 300 to 300: not finite" in made and "not finite, or a median of 0" in made
    assert "nan" not in re.sub(r"<[a-z]+ ", "", made.split("<body>")[1].split("<script>")[0])
