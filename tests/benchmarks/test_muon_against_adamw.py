"""Tokens to equal loss are read off a curve, and every run of the comparison has the same tokens."""

import pytest

from benchmarks.muon_against_adamw import LENGTHS, OPTIMIZERS, SEEDS, comparison, tokens_to

CURVE = {100: 3.0, 200: 2.5, 400: 2.3}


@pytest.mark.parametrize(
    ("loss", "tokens"), [(3.0, 100), (2.75, 100 * 2**0.5), (2.5, 200), (2.3, 400), (2.2, 400 * 2**0.5)]
)
def test_tokens_to_a_loss_lie_on_the_curve_in_logarithms_of_tokens_and_beyond_it_on_its_last_line(loss, tokens):
    assert tokens_to(loss, CURVE) == pytest.approx(tokens)


def test_runs_differ_in_optimizer_rate_and_seed_alone():
    ladders = comparison()
    assert len(ladders) == len(OPTIMIZERS) * len(SEEDS)
    assert {(each.widths, each.tokens_per_parameter) for each in ladders.values()} == {((48,), LENGTHS)}
