"""The step fits a ladder's evaluations, predicts rungs that its first fit has not seen, and draws curves of tasks."""

import logging
from types import SimpleNamespace

import pytest

from marin_dag.errors import RefusedConfigError
from marin_dag.values.walk import references_in
from runtime.evaluation.task_score import TaskScore
from runtime.scaling.curves import TaskCurve
from runtime.scaling.law import ScalingLaw
from runtime.scaling.replicates import curves_in, replicates_in
from runtime.tables.parquet_bytes import from_parquet
from steps.ema_eval import EmaEvalResult
from steps.fit_scaling_law import (
    FitScalingLawConfig,
    FitScalingLawResult,
    check_rung_names,
    fit_scaling_law,
)
from steps.lm_eval import LmEvalResult
from tests.catalogue import expect_error
from tests.steps.report_inputs import made

TRUTH = ScalingLaw(0.6, 30.0, 60.0, 0.35, 0.37)
PIQA = TaskCurve(chance=0.5, height=0.4, middle=0.75, width=0.05)
SIZES = {"s": 10**7, "m": 3 * 10**7, "l": 10**8, "xl": 3 * 10**8}
LENGTHS = (10**9, 3 * 10**9, 10**10)
RUNGS = [(f"{size}/{length}", size, length) for size in SIZES for length in LENGTHS]


def evaluation(folder, name, loss, tokens):
    counts = {"num_bytes": {"web": 1}, "num_tokens": {"web": 1}}
    result = EmaEvalResult(step=1, consumed_tokens=tokens, hot={"web": loss}, hot_mean=loss, averages=(), **counts)
    return made(folder, name, result)


def scores(folder, name, accuracy):
    facts = {"fewshot_from": "none", "num_truncated": 0, "num_unparsed": 0}
    perplexity = TaskScore("wikitext", 0, "bits_per_byte", 1.0, None, 10, None, **facts)
    found = TaskScore("piqa", 0, "acc_norm", accuracy, 0.01, 100, 0.5, **facts)
    result = LmEvalResult(scores=(perplexity, found), samples="", weights="hot", step=1, consumed_tokens=1)
    return made(folder, f"scores/{name}", result)


def config(folder, *, held_out=(), factor=1.0, **fields):
    """Return the config of a ladder on `TRUTH`; losses of the held-out rungs are multiplied by `factor`."""
    losses = {name: TRUTH.loss(SIZES[size], length) for name, size, length in RUNGS}
    measured = {name: loss * (factor if name in held_out else 1) for name, loss in losses.items()}
    return FitScalingLawConfig(
        evaluations={name: evaluation(folder, name, measured[name], length) for name, _, length in RUNGS},
        num_parameters={name: SIZES[size] for name, size, _ in RUNGS},
        scores={name: scores(folder, name, PIQA.accuracy(loss)) for name, loss in losses.items()},
        held_out=held_out,
        num_replicates=20,
        **fields,
    )


def run(config, folder) -> FitScalingLawResult:
    context = SimpleNamespace(output_path=str(folder), log=logging.getLogger("test"), name="law")
    return fit_scaling_law.function(config, context)


def test_a_held_out_rung_is_predicted_by_a_fit_that_has_not_seen_it(tmp_path):
    found = run(config(tmp_path, held_out=("xl/10000000000",), factor=1.25), tmp_path / "output")
    *seen, largest = found.rungs
    assert largest.is_held_out and not any(rung.is_held_out for rung in seen)
    assert largest.predicted.value == pytest.approx(TRUTH.loss(3e8, 1e10), rel=1e-3)
    assert largest.error == pytest.approx(1 / 1.25 - 1, abs=1e-3)


def test_the_result_has_the_law_its_intervals_and_the_curves_beside_it(tmp_path):
    found = run(config(tmp_path), tmp_path / "output")
    for name, value in vars(TRUTH).items():
        estimate = getattr(found, name)
        assert estimate.value == pytest.approx(value, rel=1e-3)
        assert estimate.low <= estimate.value * (1 + 1e-6) and estimate.value * (1 - 1e-6) <= estimate.high
    assert found.size_exponent.value == pytest.approx(TRUTH.beta / (TRUTH.alpha + TRUTH.beta), rel=1e-3)
    assert all(len(curve.num_parameters) >= 3 for curve in found.isoflop_curves)
    (piqa,) = found.tasks
    assert piqa == "piqa, 0-shot, acc_norm", "the metric without a chance level has no curve"
    table = from_parquet((tmp_path / "output" / found.replicates).read_bytes())
    assert len(replicates_in(table)) == 20
    curves = curves_in(table, piqa)
    assert [curve.accuracy(0.8) for curve in curves] == pytest.approx([PIQA.accuracy(0.8)] * 20, abs=0.01)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"held_out": ("xxl/1",)}, ValueError),
        ({"held_out": tuple(name for name, *_ in RUNGS[:7])}, RefusedConfigError),
        ({"held_out": tuple(name for name, *_ in RUNGS[6:])}, RefusedConfigError),
        ({"num_parameters": {}}, ValueError),
    ],
    ids=["unknown rung", "too many held out", "two sizes left", "no size"],
)
def test_rungs_that_do_not_fit_together_are_refused_before_anything_runs(tmp_path, fields, error):
    wrong = config(tmp_path).model_copy(update=fields)
    with expect_error(error):
        check_rung_names(wrong)


def test_too_few_scored_rungs_are_refused_before_anything_runs(tmp_path):
    whole = config(tmp_path)
    with expect_error(ValueError):
        check_rung_names(whole.model_copy(update={"scores": dict([*whole.scores.items()][:3])}))
    check_rung_names(whole.model_copy(update={"scores": dict([*whole.scores.items()][:4])}))


def test_evaluations_and_scores_are_inputs(tmp_path):
    assert len(references_in(config(tmp_path))) == 2 * len(RUNGS)
