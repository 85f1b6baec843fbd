"""Schedules against closed forms, at every boundary and one step to each side of it."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.optim.schedule import Constant, Cosine, Cycles, Linear, Rewarm, WsdS, placed
from tests.catalogue import expect_error

KESTREL = WsdS(1e-3, 1e-4, 1_000, (Cycles(0, 10_000, 1_000), Cycles(200_000, 20_000, 2_000)))


@pytest.mark.parametrize(
    ("schedule", "field", "value"),
    [
        (Constant(3e-3), "value", "3e-3"),
        (Constant(3e-3), "value", True),
        (Linear(3e-3, 0.0, start_step=0, decay_steps=10), "end_value", None),
        (Linear(3e-3, 0.0, start_step=0, decay_steps=10), "decay_steps", "10"),
    ],
)
def test_a_value_that_is_not_a_number_is_refused_with_its_field(schedule, field, value):
    object.__setattr__(schedule, field, value)  # which the suite's own check of types would else refuse first
    with expect_error(ValueError):
        schedule.__post_init__()


def test_a_linear_decay_is_exact_at_both_ends_and_flat_outside():
    decay = Linear(1.7e-3, 1.7e-4, start_step=740_500, decay_steps=79_500)
    assert decay(0) == decay(740_500) == 1.7e-3
    assert decay(820_000) == decay(10**9) == 1.7e-4
    assert decay(740_501) < 1.7e-3
    assert decay(819_999) > 1.7e-4


@given(start=st.integers(0, 2**40), elapsed=st.integers(0, 2**20))
def test_a_decay_takes_the_same_values_wherever_it_starts(start, elapsed):
    decay = Linear(1.7e-3, 1.7e-4, start_step=0, decay_steps=79_500)
    assert dataclasses.replace(decay, start_step=start)(start + elapsed) == decay(elapsed)


def test_wsd_s_warms_up_from_zero_and_decays_inversely_to_the_end_value():
    assert KESTREL(0) == 0
    assert KESTREL(500) == pytest.approx(5e-4)
    assert KESTREL(1_000) == KESTREL(8_999) == KESTREL(9_000) == 1e-3
    # The closed form, k steps into a decay of 1,000: peak / (1 + 9 k / 1000).
    for k in (1, 250, 999):
        assert KESTREL(9_000 + k) == pytest.approx(1e-3 / (1 + 9 * k / 1_000), rel=1e-12)
    assert KESTREL(10_000) == 1e-3, "a cycle ends with a jump back to the peak"


def test_the_change_of_cycles_takes_effect_at_its_step_and_not_before():
    unchanged = WsdS(1e-3, 1e-4, 1_000, (Cycles(0, 10_000, 1_000),))
    assert all(KESTREL(step) == unchanged(step) for step in range(0, 200_000, 97))
    assert KESTREL(209_500) == 1e-3
    assert KESTREL(219_000) == pytest.approx(1e-3 / (1 + 9 * 0.5))
    assert KESTREL(660_000) == 1e-3


@given(
    lengths=st.tuples(st.integers(1, 9), st.integers(1, 9)).map(sorted),
    change=st.integers(1, 3),
    step=st.integers(1, 60),
)
def test_a_cycle_jumps_where_the_rate_is_back_at_the_peak_and_nowhere_else(lengths, change, step):
    decay_steps, cycle_steps = lengths
    later = Cycles(change * cycle_steps, cycle_steps + 2, decay_steps)
    schedule = WsdS(1e-3, 1e-4, 0, (Cycles(0, cycle_steps, decay_steps), later))
    starts = {*range(cycle_steps, change * cycle_steps, cycle_steps), *range(later.start_step, 61, cycle_steps + 2)}
    assert schedule.jumps_at(step) == (step in starts)
    if decay_steps > 1:  # a decay of one step is at the peak still
        assert schedule.jumps_at(step) == (schedule(step - 1) < schedule(step))


def test_neither_a_warm_up_nor_the_first_update_is_a_jump():
    assert not any(KESTREL.jumps_at(step) for step in (0, 1, 500, 1_000, 9_000, 9_999, 10_001))
    assert KESTREL.jumps_at(10_000) and KESTREL.jumps_at(220_000) and not KESTREL.jumps_at(210_000)


def test_a_cycle_cannot_change_in_its_middle():
    with expect_error(ValueError):
        WsdS(1e-3, 1e-4, 0, (Cycles(0, 10_000, 1_000), Cycles(15_000, 20_000, 2_000)))


def test_rewarm_meets_both_its_ends():
    rewarm = Rewarm(1.7e-4, 1.7e-3, start_step=820_000, warmup_steps=2_000)
    assert rewarm(820_000) == 1.7e-4
    assert rewarm(821_000) == pytest.approx((1.7e-4 + 1.7e-3) / 2)
    assert rewarm(822_000) == rewarm(1_320_000) == 1.7e-3


@pytest.mark.parametrize("cycle", range(43))
def test_every_cycle_of_kestrel_follows_the_closed_form_at_its_boundaries(cycle):
    length, decay = (10_000, 1_000) if cycle < 20 else (20_000, 2_000)
    begin = cycle * 10_000 if cycle < 20 else 200_000 + (cycle - 20) * 20_000
    if cycle:  # the first one begins with the warmup
        assert KESTREL(begin) == 1e-3
    assert KESTREL(begin + length - decay) == 1e-3, "the last step at the peak"
    for k in (1, decay // 2, decay - 1):
        assert KESTREL(begin + length - decay + k) == pytest.approx(1e-3 / (1 + 9 * k / decay), rel=1e-12)
    assert KESTREL(begin + length) == 1e-3, "back at the peak at once"


@given(step=st.integers(0, 2 * 10**6), start=st.integers(0, 10**6), length=st.integers(1, 10**6))
def test_straight_lines_are_their_closed_forms_everywhere(step, start, length):
    share = min(max((step - start) / length, 0.0), 1.0)
    expected = 1.7e-3 + (1.7e-5 - 1.7e-3) * share
    assert Linear(1.7e-3, 1.7e-5, start_step=start, decay_steps=length)(step) == pytest.approx(expected, rel=1e-9)
    assert Rewarm(1.7e-3, 1.7e-5, start_step=start, warmup_steps=length)(step) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("elapsed", "share"), [(-1, 1.0), (0, 1.0), (250, None), (500, 0.5), (1_000, 0.0), (1_001, 0.0)]
)
def test_cosine_is_its_closed_form_at_both_ends_and_between(elapsed, share):
    share = 0.5 * (1 + math.cos(math.pi * elapsed / 1_000)) if share is None else share
    assert Cosine(1e-3, 1e-4, start_step=70, decay_steps=1_000)(70 + elapsed) == pytest.approx(
        1e-4 + 9e-4 * share, rel=1e-12
    )


@given(step=st.integers(0, 2**62))
def test_a_constant_is_constant(step):
    assert Constant(1.7e-3)(step) == 1.7e-3


def test_cosine_agrees_with_optax():
    import optax

    ours = Cosine(1e-3, 1e-4, start_step=0, decay_steps=1_000)
    theirs = optax.cosine_decay_schedule(1e-3, 1_000, alpha=0.1)
    for step in (0, 1, 333, 500, 999, 1_000, 2_000):
        np.testing.assert_allclose(ours(step), theirs(step), rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Linear(1.0, 0.1, start_step=0, decay_steps=0),
        lambda: Rewarm(0.1, 1.0, start_step=0, warmup_steps=0),
        lambda: Constant(math.nan),
        lambda: Constant(-1.0),
        lambda: Cycles(0, 10, 11),
        lambda: WsdS(1e-3, 0.0, 0, (Cycles(0, 10, 1),)),
        lambda: WsdS(1e-3, 1e-4, 0, (Cycles(5, 10, 1),)),
        lambda: WsdS(1e-3, 1e-4, 10, (Cycles(0, 10, 1),)),
        lambda: WsdS(1e-3, 1e-4, -1, (Cycles(0, 10, 1),)),
    ],
)
def test_nonsense_is_refused_at_construction(make):
    with expect_error(ValueError):
        make()


def test_a_cosine_warms_up_from_zero_and_then_falls():
    schedule = Cosine(1e-3, 1e-4, start_step=100, warmup_steps=10, decay_steps=20)
    assert [schedule(step) for step in (0, 100, 105, 110, 130, 500)] == [0.0, 0.0, 5e-4, 1e-3, 1e-4, 1e-4]


def test_a_schedule_without_a_beginning_begins_where_its_phase_does():
    decay = Linear(1e-3, 1e-4, decay_steps=10)
    with expect_error(ValueError):
        decay(0)
    assert placed(decay, 7) == Linear(1e-3, 1e-4, start_step=7, decay_steps=10)
    assert placed(placed(decay, 7), 9).first_step == 7
    assert placed(Constant(1e-3), 7) == Constant(1e-3)
