"""The page of gradients by layer: a norm is held against the median of its own layer, and the furthest are seen."""

import math

import numpy as np

from runtime.report.norm_plots import LayerNorms, heat_map, layer_norms, norm_maps
from runtime.tracking.curves import Curves, SparseCurves
from tests.runtime.report.drawn import panels

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
    reported = {step: np.array([3.0 * step, 4.0 * step, 5.0, 12.0, 2.0, *[99.0] * 5]) for step in (1, 3, 4, 9)}
    curves = Curves(np.arange(1, 5), {}, SparseCurves(of_all, reported))
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


def test_a_norm_is_held_against_the_median_of_its_own_row():
    ratios = NORMS.ratios
    assert ratios[0].tolist() == [1, 1, 1, 1, 8]
    assert ratios[1, 0] == 1 and math.isnan(ratios[1, 2])
    assert np.isnan(ratios[2]).all(), "a median of 0 is no usual size"


def test_the_greatest_norm_is_in_its_row_and_column_however_many_steps_there_are():
    steps, rows = np.arange(1, 5_001), 40
    norms = np.ones((rows, len(steps)))
    norms[23, 2_499] = 64.0
    drawn = heat_map(LayerNorms("long", tuple(f"layer {row}" for row in range(rows)), steps, norms))
    (panel,) = panels(drawn)
    far = {mark.name: mark.data for mark in panel.marks if np.any(mark.data["ratio"][0] > 2)}
    assert list(far) == ["layer 23"] and list(reversed(panel.y_range["factors"]))[23] == "layer 23"
    ratios, columns = far["layer 23"]["ratio"][0][0], far["layer 23"]["column"][0][0]
    place = int(ratios.argmax())
    assert ratios[place] == 64 and columns[place] <= 2_500 < columns[place + 1]
    assert len(drawn) < 200_000


def test_a_norm_that_is_not_finite_is_seen_and_hostile_names_are_text():
    made = norm_maps([NORMS])
    assert "<phoenix>" not in made
    (panel,) = panels(made)
    layer = next(mark.data["ratio"][0][0] for mark in panel.marks if mark.name == "layer 1")
    assert np.flatnonzero(np.isnan(layer)).tolist() == [2]
