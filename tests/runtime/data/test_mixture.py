"""Mixtures give shares at any step and refuse impossible weights."""

import math

import pytest

from runtime.data.mixture import MixtureSchedule, MixtureSegment
from tests.catalogue import expect_error

SCHEDULE = MixtureSchedule((MixtureSegment(0, {"web": 3.0, "code": 1.0}), MixtureSegment(10, {"math": 2.0})))


def test_a_change_takes_effect_at_its_step():
    assert SCHEDULE.shares_at(9) == {"web": 0.75, "code": 0.25}
    assert SCHEDULE.shares_at(10) == {"math": 1.0}


def test_sources_lists_every_source_of_every_segment():
    assert SCHEDULE.sources == ("code", "math", "web")


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf, "0.7", None])
def test_a_weight_that_draws_nothing_is_refused(weight):
    with expect_error(ValueError):
        MixtureSegment(0, {"web": weight})


def test_a_segment_without_a_source_is_refused():
    with expect_error(ValueError):
        MixtureSegment(0, {})


def test_a_share_too_small_for_any_run_is_refused_at_construction():
    assert MixtureSegment(0, {"web": 1.0, "rare": 1e-12}).shares()["rare"] == pytest.approx(1e-12)
    with expect_error(ValueError):
        MixtureSegment(500_000, {"web": 1.0, "rare": 1e-30})


def test_a_schedule_begins_at_step_zero_and_goes_forward():
    with expect_error(ValueError):
        MixtureSchedule(())
    with expect_error(ValueError):
        MixtureSchedule((MixtureSegment(5, {"web": 1.0}),))
    with expect_error(ValueError):
        MixtureSchedule((MixtureSegment(0, {"web": 1.0}), MixtureSegment(0, {"code": 1.0})))
