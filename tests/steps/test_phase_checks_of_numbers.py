"""Numbers that float32 cannot hold are refused while a phase is planned: an update takes them so, and ended the run."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.plan.config_checks import check_configs
from runtime.optim.schedule import Linear, Rewarm
from runtime.optim.skip_rule import SkipRule
from steps.phase_config import TrainPhaseConfig, hyperparameters
from steps.train_phase import train_phase
from tests.catalogue import expect_error
from tests.steps.phase_runs import a_phase
from tests.steps.test_phase_checks_of_tokenizers import OURS, WIDE, tokenized

CACHE = tokenized(OURS, "first")
RULE = SkipRule(window_steps=8, sigma=6.0, warmup_steps=4, max_consecutive=8)
LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))


def checked(**changes: Any) -> TrainPhaseConfig:
    phase = train_phase("phase", a_phase(CACHE, model=WIDE, **changes))
    check_configs(Graph([phase]).steps)
    return phase.config


@pytest.mark.parametrize(
    "changes",
    [
        {"z_loss": 1e300},
        {"z_loss": np.nextafter(LARGEST, np.inf).item()},
        {"weight_decay": float("inf")},
        {"eps": 1e39},
        {"max_norm": 1e39},
        {"learning_rate": Linear(1e-3, 1e39, start_step=0, decay_steps=8)},
        {"learning_rate": Rewarm(1e39, 1e-3, start_step=0, warmup_steps=8)},
        {"skip": dataclasses.replace(RULE, sigma=1e39)},
        {"eps": 1e-39},
        {"learning_rate": Linear(1e-3, 1e-60, start_step=0, decay_steps=8)},
        {"global_batch_size": 10**12},
        {"max_norm": 1e-300},
        {"b1": 1 - 2.0**-25},
        {"b2": 1 - 2.0**-40},
    ],
)
def test_a_number_beyond_float32_is_an_error(
    changes: dict[str, Any],
) -> None:
    with expect_error(UserError):
        checked(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"z_loss": LARGEST, "weight_decay": LARGEST, "eps": LARGEST, "max_norm": LARGEST},
        {"z_loss": 0.0, "weight_decay": 0.0, "eps": SMALLEST, "max_norm": SMALLEST},
        {"b1": BELOW_ONE, "b2": np.nextafter(1 - 2.0**-25, 0).item(), "skip": dataclasses.replace(RULE, sigma=LARGEST)},
    ],
)
def test_numbers_keep_their_range_as_float32(changes: dict[str, Any]) -> None:
    reported = hyperparameters(checked(**changes), 0)
    packed = dict(zip(reported._fields, reported.packed(), strict=False))
    assert all(np.isfinite(packed[name]) for name in changes if name != "skip")
    assert packed["eps"] > 0 and packed["max_norm"] > 0 and packed["b1"] < 1 and packed["b2"] < 1
    if "skip" in changes:
        assert np.isfinite(packed["skip_sigma"])
