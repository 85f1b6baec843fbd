"""Averages that a phase will not keep are refused while it is planned, and not by the export behind its last step."""

from typing import Any

import pytest

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.plan.config_checks import check_configs
from runtime.optim.ema import Ema
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.hf_export import HfExportConfig, hf_export
from steps.train_phase import train_phase
from tests.catalogue import expect_error
from tests.steps.phase_runs import a_phase
from tests.steps.test_phase_checks_of_tokenizers import OURS, WIDE, tokenized

CACHE = tokenized(OURS, "first")
KEPT = (Ema(decay=0.9), Ema(decay=0.99, name="slow"))


def phase(*averages: Ema) -> Step[Any]:
    return train_phase("phase", a_phase(CACHE, model=WIDE, averages=averages))


def export(of: Step[Any], weights: str) -> Step[Any]:
    config = HfExportConfig(phase=of, tokenizer=OURS, weights=weights, dtype="float32", model_name="toy")
    return hf_export("hf_export", config)


def evaluation(of: Step[Any], average: str | None) -> Step[Any]:
    config = EmaEvalConfig(phase=of, caches={"code": CACHE}, max_tokens_per_domain=16, average=average)
    return ema_eval("ema_eval", config)


@pytest.mark.parametrize(
    "step",
    [
        export(phase(), "averaged"),
        export(phase(*KEPT), "slo"),
        evaluation(phase(), "hot"),
        evaluation(phase(*KEPT), "slo"),
    ],
)
def test_an_average_that_the_phase_does_not_have_is_an_error(
    step,
) -> None:
    with expect_error(UserError):
        check_configs(Graph([step]).steps)


@pytest.mark.parametrize(
    "step",
    [
        export(phase(), "hot"),
        export(phase(*KEPT), "slow"),
        evaluation(phase(), None),
        evaluation(phase(*KEPT), "averaged"),
    ],
)
def test_an_average_of_the_phase_is_valid(step: Step[Any]) -> None:
    check_configs(Graph([step]).steps)
