"""Losses of two runs are compared over the same tokens, whatever their batches."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tracking.curves import Curves, curves_of
from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.tracking.reference_curve import COMPARED_UPDATES, compare_losses, mean_loss


def run_of(losses, tokens=None, *, after_step=0) -> Curves:
    """Return a run of one update a loss, of 1,000 tokens or up to each of `tokens`; NaN is a skipped update."""
    table = MetricsTable()
    for row, loss in enumerate(losses, start=1):
        at = row * 1000 if tokens is None else tokens[row - 1]
        table.append(MetricsRow(row, at, 4, 28, 1e-3, loss, 0.0, 1.0, 0.1, 10.0, 3.4, int(math.isnan(loss))))
    return curves_of(table.to_parquet(), after_step=after_step)


def mean_token_by_token(losses, tokens, begin, end):
    """Return the mean by its definition: each token has the loss of its update; skipped updates have none."""
    by_token = [
        loss
        for (first, last), loss in zip(itertools.pairwise(tokens), losses[1:], strict=True)
        for token in range(first, last)
        if begin <= token < end and not math.isnan(loss)
    ]
    return np.mean(by_token) if by_token else math.nan


LOSS = st.one_of(st.floats(0.5, 12.0), st.just(math.nan))
RUN = st.lists(st.tuples(st.integers(1, 9), LOSS), min_size=2, max_size=12)


@given(run=RUN, edges=st.lists(st.integers(0, 100), min_size=2, max_size=2, unique=True).map(sorted))
def test_a_mean_over_tokens_agrees_with_its_definition(run, edges):
    losses, tokens = [loss for _, loss in run], np.cumsum([width for width, _ in run]).tolist()
    found = mean_loss(run_of(losses, tokens), *edges)
    np.testing.assert_allclose(found, mean_token_by_token(losses, tokens, *edges), rtol=1e-9)


@given(
    losses=st.lists(st.floats(0.5, 12.0), min_size=2, max_size=300),
    gap=st.floats(-1.0, 1.0),
)
def test_a_constant_gap_is_the_difference(losses, gap):
    run, reference = run_of([loss + gap for loss in losses]), run_of(losses)
    found = compare_losses(run, reference)
    assert found.difference == pytest.approx(gap, abs=1e-9)
    assert found.tokens == 1000 * len(losses)
    num_updates = min(COMPARED_UPDATES, len(losses) - 1)
    assert found.num_tokens == 1000 * num_updates
    assert found.reference_loss == pytest.approx(np.mean(losses[-num_updates:]))


@given(losses=st.lists(st.floats(0.5, 12.0), min_size=4, max_size=60), parts=st.integers(1, 4), ahead=st.integers(0, 9))
def test_batch_sizes_and_the_length_of_the_reference_change_nothing(losses, parts, ahead):
    whole = [loss for loss in losses for _ in range(parts)]
    tokens = [1000 * (row + 1) // parts for row in range(len(whole))]
    reference = run_of([*whole, *[20.0] * ahead], [*tokens, *range(tokens[-1] + 7, tokens[-1] + 7 + ahead)])
    run = run_of([loss + 0.25 for loss in losses])
    found = compare_losses(run, reference)
    assert found.difference == pytest.approx(0.25)
    # Now the run is ahead, by up to nine tokens that are not compared.
    assert compare_losses(reference, run).difference == pytest.approx(-0.25)


def test_a_phase_is_compared_over_its_own_updates():
    run, reference = run_of([9.0] * 50 + [3.0] * 11, after_step=50), run_of([2.0] * 61)
    assert compare_losses(run, reference)[1:] == (10_000, 3.0, 2.0)


def test_runs_without_common_updates_are_not_compared():
    run = run_of([3.0] * 20)
    assert compare_losses(run, run_of([3.0] * 30, after_step=20)) is None
    assert compare_losses(run, run_of([3.0] * 30, after_step=19)) is None, "one ends where the other begins"
    assert compare_losses(run, run_of([3.0])) is None
    assert compare_losses(run, run_of([3.0] + [math.nan] * 19)) is None
    skipped = run_of([3.0] * 10 + [math.nan] * 5 + [3.0] * 5)
    assert compare_losses(skipped, run).difference == 0.0
