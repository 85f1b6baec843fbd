"""Warnings of a phase before it begins, and the identities of its sources."""

import logging
from types import SimpleNamespace

import pytest

from runtime.optim.schedule import Constant, Cycles, Schedule, WsdS
from runtime.optim.skip_rule import SkipRule
from steps.phase_data import loader_of, warn_about_skip_rule
from tests.steps.phase_runs import a_phase, cache_of

CYCLES = WsdS(peak_value=1e-2, end_value=1e-3, warmup_steps=0, cycles=(Cycles(0, 5, 2),))


@pytest.mark.parametrize(
    ("rate", "warmup_steps", "begin", "longest"),
    [
        (CYCLES, 5, 0, 5),
        (CYCLES, 4, 0, None),
        (CYCLES, 4, 11, 4),  # from 11 to 15, from there to 17
        (Constant(1e-2), 5, 0, None),
        (Constant(1e-2), 6, 11, 6),
    ],
)
def test_a_skip_rule_that_restarts_too_often_is_a_warning(
    tmp_path, caplog, rate: Schedule, warmup_steps: int, begin: int, longest: int | None
) -> None:
    rule = SkipRule(window_steps=8, sigma=6.0, warmup_steps=warmup_steps, max_consecutive=3)
    config = a_phase(cache_of(tmp_path, "web", last_id=8), until_step=17, skip=rule, learning_rate=rate)
    warn_about_skip_rule(config, SimpleNamespace(log=logging.getLogger("phase")), begin=begin)
    if longest is None:
        assert not caplog.records
    else:
        assert [record.args for record in caplog.records] == [(longest, warmup_steps)]


def test_the_loader_names_sources_by_the_digests_of_their_caches(tmp_path) -> None:
    config = a_phase(cache_of(tmp_path, "web", last_id=8), until_step=1)
    loader = loader_of(config, SimpleNamespace(log=logging.getLogger("phase")))
    assert loader.names == {config.caches["web"].digest: "web"}
