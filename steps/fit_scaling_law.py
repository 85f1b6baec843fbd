"""Fit scaling law: the law of a ladder's rungs, its intervals, and its errors for rungs that are held out."""

import functools
from collections.abc import Mapping

from pydantic import BaseModel, Field

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.step import Input, StepContext, step
from runtime.evaluation.task_score import leading_of_each_task
from runtime.scaling.curves import MIN_SCORED, Interval, IsoFlopCurve, TaskCurve
from runtime.scaling.law import MIN_RUNGS, MIN_VALUES, Rung, ScalingLaw
from steps.ema_eval import EmaEvalResult
from steps.lm_eval import LmEvalResult

REPLICATES_FILE = "replicates.parquet"


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


class RungResult(BaseModel, frozen=True, extra="forbid"):
    """A rung and its predicted loss: a held-out rung's by the fit of the others, else by the fit of all rungs."""

    name: str
    num_parameters: int
    num_tokens: int
    loss: float
    """Mean bits per byte over the held-out domains."""
    predicted: Interval
    is_held_out: bool

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted.value / self.loss - 1


class FitScalingLawResult(BaseModel, frozen=True, extra="forbid"):
    """The law of all rungs, L(N, D) = E + A / N^alpha + B / D^beta in bits per byte, and its checks."""

    irreducible: Interval
    """E."""
    parameter_factor: Interval
    """A."""
    token_factor: Interval
    """B."""
    alpha: Interval
    beta: Interval
    size_exponent: Interval
    """The compute-optimal size grows as FLOPs to this power, by the law."""
    isoflop_size_exponent: float | None
    """The same by the IsoFLOP curves; None where fewer than two of them have a minimum."""
    isoflop_curves: tuple[IsoFlopCurve, ...]
    rungs: tuple[RungResult, ...]
    tasks: dict[str, TaskCurve]
    """Curve of each task over bits per byte, by task, number of worked examples and metric."""
    confidence: float
    share_at_bounds: float
    """Share of the bootstrap's laws with alpha or beta at a bound of the fit, which the rungs hardly determine."""
    replicates: str = REPLICATES_FILE
    """Parquet with a row for each replicate of the bootstrap; see `runtime.scaling.replicates`."""

    @property
    def law(self) -> ScalingLaw:
        """The law without its intervals."""
        factors = (self.irreducible, self.parameter_factor, self.token_factor, self.alpha, self.beta)
        return ScalingLaw(*(each.value for each in factors))


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
    if len(fitted) < MIN_RUNGS or num_sizes < MIN_VALUES:
        raise RefusedConfigError(
            f"held_out leaves {len(fitted)} rungs of {num_sizes} sizes for a law with {MIN_RUNGS - 1} coefficients; "
            f"leave at least {MIN_RUNGS} rungs of {MIN_VALUES} sizes.",
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
    from runtime.scaling.fit import Fit
    from runtime.scaling.isoflop import isoflop_curves, size_exponent
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
        is_held_out = name in config.held_out
        predicted = (partial if is_held_out else whole).prediction(rung.num_parameters, rung.num_tokens)
        found.append(RungResult(name=name, **rung._asdict(), predicted=predicted, is_held_out=is_held_out))
        context.log.info("%s: %.4f bits per byte, predicted %.4f", name, rung.loss, predicted.value)
    curves = isoflop_curves([*rungs.values()])
    tasks = _task_curves(config, rungs)
    replicates = {measure: of_task[1:] for measure, of_task in tasks.items()}
    if not whole.determines_optimum:
        context.log.warning(
            "%.1f %% of the bootstrap's laws have alpha or beta at a bound of the fit: the rungs hardly determine them",
            100 * whole.share_at_bounds,
        )
    with fsspec.open(f"{context.output_path}/{REPLICATES_FILE}", "wb", auto_mkdir=True) as file:
        file.write(to_parquet(replicates_table(whole.replicates, replicates)))
    return FitScalingLawResult(
        irreducible=whole.interval(lambda law: law.irreducible),
        parameter_factor=whole.interval(lambda law: law.parameter_factor),
        token_factor=whole.interval(lambda law: law.token_factor),
        alpha=whole.interval(lambda law: law.alpha),
        beta=whole.interval(lambda law: law.beta),
        size_exponent=whole.interval(lambda law: law.beta / (law.alpha + law.beta)),
        isoflop_size_exponent=size_exponent(curves),
        isoflop_curves=tuple(curves),
        rungs=tuple(found),
        tasks={measure: of_task[0] for measure, of_task in tasks.items()},
        confidence=config.confidence,
        share_at_bounds=whole.share_at_bounds,
    )


def _task_curves(config: FitScalingLawConfig, rungs: Mapping[str, Rung]) -> dict[str, list[TaskCurve]]:
    """Return each task's curve, then its replicates, by the measure of the task; skip tasks without a chance."""
    from runtime.scaling.bootstrap import bootstrap_weights
    from runtime.scaling.task_curve import ScoredModel, fit_task_curve

    chances: dict[str, float] = {}
    models: dict[str, list[ScoredModel]] = {}
    for name, scored in config.scores.items():
        for score in leading_of_each_task(scored.result.scores):
            if score.chance is not None:
                chances[score.measure] = score.chance
                models.setdefault(score.measure, []).append(ScoredModel(rungs[name].loss, score.value))
    found = {}
    for measure, of_task in models.items():
        drawn = bootstrap_weights(len(of_task), num_replicates=config.num_replicates, seed=config.seed)
        found[measure] = [fit_task_curve(of_task, chance=chances[measure], weights=row) for row in (None, *drawn)]
    return found
