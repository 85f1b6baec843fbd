"""Fit scaling law: the law of a ladder's rungs, its intervals, and its errors for rungs that are held out."""

import functools
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.step import Input, StepContext, step
from runtime.evaluation.task_score import TaskScore, leading_of_each_task
from steps.ema_eval import EmaEvalResult
from steps.lm_eval import LmEvalResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.scaling.bootstrap import Bootstrap, Interval
    from runtime.scaling.law import Rung
    from runtime.scaling.task_curve import TaskCurve

REPLICATES_FILE = "replicates.parquet"
MIN_RUNGS = 6
MIN_SIZES = 3
MIN_SCORED = 4
"""Limits of `runtime.scaling`; a plan does not import them from there, since that needs NumPy. A test compares both."""


class FitScalingLawConfig(BaseModel, frozen=True, extra="forbid"):
    """The rungs by name, and what is held out."""

    evaluations: dict[str, Input[EmaEvalResult]]
    """Evaluation of each rung, at the end of its cooldown."""
    num_parameters: dict[str, int]
    """Parameters of each rung's model that multiply every token: all but an input embedding that is not the head."""
    held_out: tuple[str, ...] = ()
    """Rungs that the first fit has to predict. The law that predicts larger runs is fitted to all rungs."""
    scores: dict[str, Input[LmEvalResult]] = {}
    """Scores of rungs, for the curve of each task's accuracy over bits per byte."""
    num_replicates: int = Field(default=400, ge=20)
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Share of the replicates inside an interval."""
    seed: int = Field(default=0, ge=0)


class Estimate(BaseModel, frozen=True, extra="forbid"):
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float


class RungResult(BaseModel, frozen=True, extra="forbid"):
    """A rung and its predicted loss: a held-out rung's by the fit of the others, else by the fit of all rungs."""

    name: str
    num_parameters: int
    num_tokens: int
    loss: float
    """Mean bits per byte over the held-out domains."""
    predicted: Estimate
    is_held_out: bool

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted.value / self.loss - 1


class IsoFlopResult(BaseModel, frozen=True, extra="forbid"):
    """An IsoFLOP curve; see `runtime.scaling.isoflop`."""

    flops: float
    num_parameters: tuple[float, ...]
    losses: tuple[float, ...]
    optimum: float | None
    """Parameters at the minimum; None where the curve has none between its sizes."""


class TaskResult(BaseModel, frozen=True, extra="forbid"):
    """Accuracy of a task over bits per byte: chance + height / (1 + exp((bits per byte - middle) / width))."""

    measure: str
    """Task, number of worked examples and metric."""
    chance: float
    height: float
    middle: float
    width: float


class FitScalingLawResult(BaseModel, frozen=True, extra="forbid"):
    """The law of all rungs, L(N, D) = E + A / N^alpha + B / D^beta in bits per byte, and its checks."""

    irreducible: Estimate
    """E."""
    parameter_factor: Estimate
    """A."""
    token_factor: Estimate
    """B."""
    alpha: Estimate
    beta: Estimate
    size_exponent: Estimate
    """The compute-optimal size grows as FLOPs to this power, by the law."""
    isoflop_size_exponent: float | None
    """The same by the IsoFLOP curves; None where fewer than two of them have a minimum."""
    isoflop_curves: tuple[IsoFlopResult, ...]
    rungs: tuple[RungResult, ...]
    tasks: tuple[TaskResult, ...]
    confidence: float
    share_at_bounds: float
    """Share of the bootstrap's laws with alpha or beta at a bound of the fit, which the rungs hardly determine."""
    replicates: str = REPLICATES_FILE
    """Parquet with a row for each replicate of the bootstrap; see `runtime.scaling.replicates`."""


def check_rung_names(config: FitScalingLawConfig) -> None:
    """Raise ValueError for a rung without a size, and for a name that is no rung."""
    rungs = set(config.evaluations)
    if missing := sorted(rungs.symmetric_difference(config.num_parameters)):
        raise ValueError(
            f"num_parameters: {', '.join(missing)} must be in both num_parameters and evaluations; add or remove it."
        )
    for field, names in (("held_out", config.held_out), ("scores", config.scores)):
        if unknown := sorted(set(names) - rungs):
            known = ", ".join(config.evaluations)
            raise ValueError(f"{field}: {', '.join(unknown)} is no rung; use names of evaluations: {known}.")
    fitted = rungs - set(config.held_out)
    num_sizes = len({config.num_parameters[name] for name in fitted})
    if len(fitted) < MIN_RUNGS or num_sizes < MIN_SIZES:
        raise RefusedConfigError(
            f"held_out leaves {len(fitted)} rungs of {num_sizes} sizes for a law with {MIN_RUNGS - 1} coefficients; "
            f"leave at least {MIN_RUNGS} rungs of {MIN_SIZES} sizes.",
            {"held_out": "[]"},
        )
    if config.scores and len(config.scores) < MIN_SCORED:
        raise ValueError(
            f"scores has {len(config.scores)} rungs for the curve of a task; score at least {MIN_SCORED}, or none."
        )


@step(policy="tracked", packages=("numpy", "pyarrow"), check=check_rung_names)
def fit_scaling_law(config: FitScalingLawConfig, context: StepContext) -> FitScalingLawResult:
    """Fit the rungs that are not held out, predict the held-out ones, and fit all."""
    import fsspec

    from runtime.scaling.bootstrap import bootstrap
    from runtime.scaling.isoflop import isoflop_curves, size_exponent
    from runtime.scaling.law import Fit, Rung
    from runtime.scaling.replicates import replicates_table
    from runtime.tables.parquet_bytes import to_parquet

    rungs = {
        name: Rung(config.num_parameters[name], evaluation.result.consumed_tokens, evaluation.result.hot_mean)
        for name, evaluation in config.evaluations.items()
    }
    bootstrapped = functools.partial(
        bootstrap, num_replicates=config.num_replicates, confidence=config.confidence, seed=config.seed
    )
    whole = bootstrapped(Fit([*rungs.values()]))
    seen = [rung for name, rung in rungs.items() if name not in config.held_out]
    partial = bootstrapped(Fit(seen)) if config.held_out else whole
    found = []
    for name, rung in rungs.items():
        found.append(_rung_result(name, rung, partial if name in config.held_out else whole, name in config.held_out))
        context.log.info("%s: %.4f bits per byte, predicted %.4f", name, rung.loss, found[-1].predicted.value)
    curves = isoflop_curves([*rungs.values()])
    tasks = _task_curves(config, rungs)
    replicates = {score.measure: of_task[1:] for score, of_task in tasks.items()}
    if not whole.determines_optimum:
        context.log.warning(
            "%.1f %% of the bootstrap's laws have alpha or beta at a bound of the fit: the rungs hardly determine them",
            100 * whole.share_at_bounds,
        )
    with fsspec.open(f"{context.output_path}/{REPLICATES_FILE}", "wb", auto_mkdir=True) as file:
        file.write(to_parquet(replicates_table(whole.replicates, replicates)))
    return FitScalingLawResult(
        irreducible=_estimate(whole.interval(lambda law: law.irreducible)),
        parameter_factor=_estimate(whole.interval(lambda law: law.parameter_factor)),
        token_factor=_estimate(whole.interval(lambda law: law.token_factor)),
        alpha=_estimate(whole.interval(lambda law: law.alpha)),
        beta=_estimate(whole.interval(lambda law: law.beta)),
        size_exponent=_estimate(whole.interval(lambda law: law.beta / (law.alpha + law.beta))),
        isoflop_size_exponent=size_exponent(curves),
        isoflop_curves=tuple(IsoFlopResult(**vars(curve)) for curve in curves),
        rungs=tuple(found),
        tasks=tuple(TaskResult(measure=score.measure, **vars(of_task[0])) for score, of_task in tasks.items()),
        confidence=config.confidence,
        share_at_bounds=whole.share_at_bounds,
    )


def _rung_result(name: str, rung: "Rung", fitted: "Bootstrap", is_held_out: bool) -> RungResult:
    return RungResult(
        name=name,
        num_parameters=int(rung.num_parameters),
        num_tokens=int(rung.num_tokens),
        loss=rung.loss,
        predicted=_estimate(fitted.prediction(rung.num_parameters, rung.num_tokens)),
        is_held_out=is_held_out,
    )


def _task_curves(config: FitScalingLawConfig, rungs: "Mapping[str, Rung]") -> "dict[TaskScore, list[TaskCurve]]":
    """Return each task's curve, then its replicates, by one of the task's scores; skip tasks without a chance."""
    from runtime.scaling.bootstrap import bootstrap_weights
    from runtime.scaling.task_curve import ScoredModel, fit_task_curve

    scores: dict[str, TaskScore] = {}
    models: dict[str, list[ScoredModel]] = {}
    for name, scored in config.scores.items():
        for score in leading_of_each_task(scored.result.scores):
            if score.chance is not None:
                scores[score.measure] = score
                models.setdefault(score.measure, []).append(ScoredModel(rungs[name].loss, score.value))
    found = {}
    for measure, of_task in models.items():
        chance = scores[measure].chance or 0.0
        drawn = bootstrap_weights(len(of_task), num_replicates=config.num_replicates, seed=config.seed)
        curve = fit_task_curve(of_task, chance=chance)
        found[scores[measure]] = [curve, *(fit_task_curve(of_task, chance=chance, weights=row) for row in drawn)]
    return found


def _estimate(interval: "Interval") -> Estimate:
    return Estimate(value=interval.value, low=interval.low, high=interval.high)
