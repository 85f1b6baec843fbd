"""`fit_mixture`: shares within limits, and limits that no mixture can have."""

import argparse
import dataclasses
import shlex
from typing import Any

import numpy as np
import pytest

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.inputs import Input
from marin_dag.plan.config_checks import check_configs
from marin_dag.values.changes import changed, text_change
from pipelines import mixture_search
from pipelines.corpus import laptop_corpus
from pipelines.scales import LAPTOP
from pipelines.tootsie import phases
from runtime.data.mixing.offline_search import draw_mixtures
from steps.ema_eval import EmaEvalResult
from steps.fit_mixture import FitMixtureConfig, FitMixtureResult, fit_mixture
from steps.phase_config import TrainPhaseConfig
from steps.tokenize import TokenizeResult
from tests.catalogue import check_message, expect_error

NATURAL = {"code": 0.2, "math": 0.1, "web": 0.7}
TOKENS = {"code": 10_000, "math": 1_000, "web": 1_000_000}


def evaluation(mixture: dict[str, float], index: int) -> Input[EmaEvalResult]:
    """Return a proxy's evaluation: each domain gets better with its own share, mathematics fastest."""
    hot = {name: 1 + float(np.exp(-(8 if name == "math" else 1) * share)) for name, share in mixture.items()}
    counts = dict.fromkeys(hot, 1_000)
    result = EmaEvalResult(
        step=1, consumed_tokens=1, hot=hot, hot_mean=0.0, averages=(), num_bytes=counts, num_tokens=counts
    )
    return Input(name=f"e{index}", digest=f"{index:064x}", path="/nowhere", result=result)


def cache(name: str) -> Input[TokenizeResult]:
    counts = dict.fromkeys((field for field in TokenizeResult.model_fields if field.startswith("num_")), TOKENS[name])
    result = TokenizeResult(train="train", validation="validation", vocab_size=32, eos_token_id=0, **counts)
    return Input(name=name, digest=name[0] * 64, path="/nowhere", result=result)


def config(**changes: Any) -> FitMixtureConfig:
    mixtures = draw_mixtures(NATURAL, 20, seed=0)
    fields = {
        "mixtures": tuple(mixtures),
        "evaluations": tuple(evaluation(mixture, index) for index, mixture in enumerate(mixtures)),
        "caches": {name: cache(name) for name in NATURAL},
        "target_tokens": 20_000,
        "max_epochs": 4.0,
        "num_draws": 20,
    }
    return FitMixtureConfig(**fields | changes)


def test_the_mixture_gains_and_keeps_within_epochs_floors_and_ceilings(run_alone):
    found = run_alone(fit_mixture, config(min_shares={"web": 0.5}), "fit").result
    shares = {name: each.share for name, each in found.shares.items()}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["math"] == pytest.approx(4 * 1_000 / 20_000), "as often as its tokens allow"
    assert found.shares["math"].epochs == pytest.approx(4)
    assert shares["web"] >= 0.5 - 1e-9
    assert found.gain > 0 and found.gain_low <= found.gain <= found.gain_high
    assert all(each.low - 1e-9 <= each.share <= each.high + 1e-9 for each in found.shares.values())
    assert all(found.errors[name] < 0.3 * found.spread[name] for name in NATURAL)


@pytest.mark.parametrize(
    "limits",
    [
        {"min_shares": {"math": 0.3}},
        {"max_shares": dict.fromkeys(NATURAL, 0.3)},
        {"max_shares": {"web": 0.52, "code": 0.2}},
    ],
)
def test_limits_that_no_mixture_has_are_an_error(run_alone, limits):
    with expect_error(ValueError):
        run_alone(fit_mixture, config(**limits), "fit")


@pytest.mark.parametrize(
    "wrong",
    [
        {"evaluations": ()},
        {"caches": {name: cache(name) for name in ("code", "web")}},
        {"mixtures": config().mixtures[:4], "evaluations": config().evaluations[:4]},
        {"min_shares": {"maths": 0.1}},
    ],
)
def test_a_swarm_that_gives_no_law_is_refused_while_planned(wrong):
    with expect_error(UserError):
        check_configs([fit_mixture("fit", config(**wrong))])


def test_the_recipe_searches_for_starling_and_prints_a_fork_that_tootsie_takes():
    (fit,) = mixture_search.build(argparse.Namespace(proxies=12))
    graph = Graph([fit])
    check_configs(graph.steps)
    proxies = [step for step in graph.steps if isinstance(step.config, TrainPhaseConfig)]
    assert len(proxies) == 12
    natural = fit.config.mixtures[0]
    assert fit.config.target_tokens == 100 * 8 * 256
    shares = {
        name: {"natural": share, "share": share, "low": 0.0, "high": 1.0, "epochs": 1.0}
        for name, share in natural.items()
    }
    figures = dict.fromkeys(natural, 0.01)
    result = FitMixtureResult(shares=shares, gain=0.02, gain_low=0.01, gain_high=0.03, errors=figures, spread=figures)

    class Run:
        def result(self, name: str) -> FitMixtureResult:
            return result

    lines = list(mixture_search.summary(Run()))  # type: ignore[arg-type]
    check_message("\n".join(lines))
    words = shlex.split(lines[-1].removeprefix("fork it  "))
    assert words[1:6] == ["pipelines/tootsie.py", "fork", "starling", "--as", "starling-searched"]
    field, _, text = words[-1].partition("=")
    starling = phases(LAPTOP, laptop_corpus(LAPTOP))["starling"]
    forked = changed(starling.config, [text_change(field, text)], owner="starling")
    assert forked.mixture.shares_at(0) == pytest.approx(natural, abs=1e-3)
    check_configs([dataclasses.replace(starling, config=forked)])
