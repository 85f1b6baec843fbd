"""IsoFLOP curves find the best size of a budget without a law."""

import numpy as np
import pytest

from runtime.scaling.isoflop import isoflop_curves, size_exponent
from runtime.scaling.law import Rung
from tests.runtime.scaling.test_fit import REPLICATION


def test_the_minima_lie_near_the_laws_optima():
    # Each size from 3 to 130 tokens a parameter, around the optimum of about 20.
    rungs = [
        Rung(size, ratio * size, REPLICATION.loss(size, ratio * size))
        for size in np.geomspace(5e7, 5e9, 9)
        for ratio in np.geomspace(3, 130, 6)
    ]
    curves = isoflop_curves(rungs)
    found = [curve for curve in curves if curve.optimum is not None]
    assert len(curves) == 5 and len(found) >= 3  # the smallest and the largest budget reach sizes of one side only
    for curve in found:
        assert curve.optimum == pytest.approx(REPLICATION.optimum(curve.flops).num_parameters, rel=0.25)
    exact = REPLICATION.beta / (REPLICATION.alpha + REPLICATION.beta)
    assert size_exponent(curves) == pytest.approx(exact, abs=0.05)


def test_a_curve_that_only_falls_has_no_minimum():
    rungs = [Rung(size, length, 1 + 1e3 / size) for size in (1e3, 2e3, 3e3) for length in (1e6, 1e8)]
    curves = isoflop_curves(rungs)
    assert curves and all(curve.optimum is None for curve in curves)
    assert size_exponent(curves) is None


def test_sizes_without_a_common_budget_give_no_curve():
    assert isoflop_curves([Rung(size, length, 2.0) for size in (1.0, 1e3, 1e6) for length in (1.0, 2.0)]) == []
