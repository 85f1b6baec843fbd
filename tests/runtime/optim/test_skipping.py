"""The skip rule against a plain model of it: bad values change nothing, are never remembered, and NaN is the worst."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runtime.optim.skip_rule import SkipRule
from runtime.optim.skipping import LEAST_DEVIATION, SkipHistory, empty_history, judged, remembered, restarted, unless
from tests.catalogue import expect_error

RULE = SkipRule(window_steps=8, sigma=3.0, warmup_steps=4, max_consecutive=5)
NOT_FINITE = (math.nan, math.inf, -math.inf)


@jax.jit
def _after(
    history: SkipHistory, loss: jax.Array, norm: jax.Array, num_targets: jax.Array
) -> tuple[SkipHistory, jax.Array]:
    numbers = {"sigma": jnp.float32(RULE.sigma), "warmup_steps": jnp.float32(RULE.warmup_steps)}
    verdict = judged(history, loss, norm, num_targets, **numbers)
    return remembered(history, verdict, loss, norm), verdict.is_bad


def run(
    values: list[tuple[float, float]], *, without_targets: tuple[int, ...] = (), history: SkipHistory | None = None
) -> tuple[SkipHistory, list[bool]]:
    """Run the rule over losses and gradient norms of updates; `without_targets` predict nothing."""
    history, bad = empty_history(RULE.window_steps) if history is None else history, []
    for index, (loss, norm) in enumerate(values):
        num_targets = jnp.int32(0 if index in without_targets else 9)
        history, is_bad = _after(history, jnp.float32(loss), jnp.float32(norm), num_targets)
        bad.append(bool(is_bad))
    return history, bad


def expected(values: list[tuple[float, float]]) -> list[bool] | None:
    """Compute the rule in float64 over Python lists; None where rounding decides, near the limit."""
    good: collections.deque[tuple[float, float]] = collections.deque(maxlen=RULE.window_steps)
    bad = []
    for figures in values:
        is_bad = not all(map(math.isfinite, figures))
        if not is_bad and len(good) >= RULE.warmup_steps:
            for value, before in zip(figures, np.array(good, np.float64).T, strict=True):
                limit = before.mean() + RULE.sigma * max(before.std(), LEAST_DEVIATION * before.mean())
                if abs(value - limit) < 1e-4 * max(1.0, abs(limit)):
                    return None
                is_bad |= bool(value > limit)
        bad.append(is_bad)
        if not is_bad:
            good.append(figures)
    return bad


finite = st.floats(0, 100, width=32)
anything = st.one_of(finite, finite, finite, st.sampled_from([*NOT_FINITE, 1e4]))


@given(st.lists(st.tuples(anything, anything), max_size=24))
def test_skipped_updates_match_the_definition(values):
    bad = expected(values)
    assume(bad is not None)
    history, got = run(values)
    assert got == bad
    assert int(history.num_good) == len(got) - sum(got)
    assert int(history.num_consecutive) == next((at for at, was in enumerate(reversed(got)) if not was), len(got))


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20), st.data())
def test_bad_values_leave_the_memory_as_if_they_had_never_come(values, data):
    clean, was_bad = run(values)
    assume(not any(was_bad))
    at = data.draw(st.integers(0, len(values)))
    worst = data.draw(st.sampled_from([(value, 1.0) for value in NOT_FINITE] + [(1.0, value) for value in NOT_FINITE]))
    dirty, bad = run([*values[:at], worst, worst, *values[at:]])
    assert bad[at : at + 2] == [True, True] and sum(bad) == 2
    for name in ("losses", "grad_norms", "num_good"):
        np.testing.assert_array_equal(getattr(dirty, name), getattr(clean, name))
    assert np.isfinite(dirty.losses).all() and np.isfinite(dirty.grad_norms).all()


def test_a_lasting_jump_is_never_taken_for_the_new_level():
    calm = [(2.0 + 0.01 * (step % 3), 1.0) for step in range(20)]
    _, bad = run([*calm, *[(5.0, 1.0)] * 10])
    assert bad == [False] * 20 + [True] * 10


@given(st.lists(st.tuples(anything, anything), max_size=12), st.lists(st.tuples(anything, anything), max_size=20))
def test_after_a_restart_the_rule_judges_without_history(before, values):
    history, _ = run(before)
    after, bad = run(values, history=restarted(history, jnp.float32(1)))
    fresh, bad_of_fresh = run(values)
    assert bad == bad_of_fresh
    assert int(after.num_good) == int(fresh.num_good)


def test_an_intended_level_is_trained_and_a_spike_after_it_is_skipped():
    calm = [(2.5 + 0.01 * (step % 3), 0.2 + 0.01 * (step % 4)) for step in range(40)]
    higher = [(loss + 0.25, norm) for loss, norm in calm]
    history, bad = run(calm)
    assert not any(bad)
    assert all(run(higher, history=restarted(history, jnp.float32(0)))[1]), "the rule would stop the run"
    behind = [*higher, (3.5, 0.2), *higher, (2.75, 2.0), (math.nan, 0.2)]
    _, bad = run(behind, history=restarted(history, jnp.float32(1)))
    assert bad == [False] * 40 + [True] + [False] * 40 + [True, True]


@pytest.mark.parametrize("level", [0.1, 3.3, 1e-30, 7e8])
def test_after_figures_that_never_varied_neither_the_same_nor_a_little_more_is_bad(level):
    same = [(level, 2 * level)] * 20  # in float32 their mean may lie below each of them
    a_little_more = [(level * 1.002, 2 * level), (level, 2.004 * level)]
    _, bad = run([*same, *a_little_more * 5, *same])
    assert not any(bad)
    _, bad = run([*same, (1.1 * level, 2 * level), *same])
    assert bad == [False] * 20 + [True] + [False] * 20


def test_a_batch_without_targets_is_skipped_and_its_zeros_are_not_remembered():
    calm = [(2.0 + 0.01 * (step % 3), 1.0) for step in range(20)]
    for at in (0, 10, 20):
        history, bad = run([*calm[:at], (0.0, 0.0), (0.0, 0.0), *calm[at:]], without_targets=(at, at + 1))
        assert bad == [False] * at + [True, True] + [False] * (20 - at)
        expected, _ = run(calm)
        for name in ("losses", "grad_norms", "num_good"):
            np.testing.assert_array_equal(getattr(history, name), getattr(expected, name))


def test_a_falling_loss_is_never_skipped():
    _, bad = run([(10.0 / (1 + step), 5.0 / (1 + step)) for step in range(40)])
    assert not any(bad)


@pytest.mark.parametrize("worst", NOT_FINITE)
def test_selecting_survives_what_multiplying_would_not(worst):
    old = {"w": jnp.array([1.5, -0.0], jnp.float32), "count": jnp.int32(3)}
    new = {"w": jnp.array([worst, worst], jnp.float32), "count": jnp.int32(4)}
    kept = unless(jnp.array(True), new, old)
    assert kept["w"].tobytes() == old["w"].tobytes() and int(kept["count"]) == 3
    assert unless(jnp.array(False), new, old)["w"].tobytes() == new["w"].tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"sigma": math.nan},
        {"sigma": 0.0},
        {"warmup_steps": 9},
        {"warmup_steps": 1},
        {"max_consecutive": 0},
    ],
)
def test_a_rule_that_cannot_work_is_refused(changes):
    arguments = {"window_steps": 8, "sigma": 3.0, "warmup_steps": 4, "max_consecutive": 5} | changes
    with expect_error(ValueError):
        SkipRule(**arguments)
