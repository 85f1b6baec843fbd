"""predict: the law of a ladder, the loss of a larger run with its interval, and the best size for a budget."""

import argparse
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from marin_dag.cli.parser import number
from marin_dag.cli.session import NOTHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record
from marin_dag.quantities import count_typed, in_short
from marin_dag.store.store import Store
from pipelines.finished import finished
from pipelines.machines import MACHINES, resources_named
from pipelines.output import aligned, value
from runtime.cost.chips import REACHED_SHARE_OF_PEAK, slice_of
from runtime.scaling.curves import Interval
from runtime.scaling.law import FLOPS_PER_PARAMETER_AND_TOKEN
from steps.fit_scaling_law import FitScalingLawResult, fit_scaling_law

if TYPE_CHECKING:
    from runtime.scaling.bootstrap import Bootstrap

above_zero = number("a number above 0; use one such as 1e18", least=5e-324)
"""The type of an option for argparse; the limit is the least float above 0."""
HOUR_SECONDS = 3_600
MAX_SIZE_RATIO = 100
"""Largest ratio of the ends of a best size's interval; beyond it the law does not choose a size."""
COUNTED = "without the input embedding"
"""Unit of the law's N. Names of scales, such as 125m, leave out the head too."""


class Target(NamedTuple):
    """A run to predict."""

    num_parameters: float
    num_tokens: float


@dataclasses.dataclass(frozen=True)
class FittedLaw:
    """A finished fit: its result, and the bootstrap in its output."""

    result: FitScalingLawResult
    bootstrap: "Bootstrap"
    replicates: Any
    """The Parquet table of the replicates."""


def target(text: str) -> Target:
    """Return the target that `text` names, such as 125M:2.5B, for argparse."""
    parts = text.split(":")
    values = [value for part in parts if (value := count_typed(part)) is not None]
    if len(values) != 2 or len(parts) != 2:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not PARAMETERS:TOKENS; write both such as 125M or 2e9: 125M:2.5B"
        )
    return Target(*values)


def law_step(graph: Graph) -> Step[Any]:
    """Return the step of the graph that fits the law."""
    return next(step for step in graph.steps if step.kind is fit_scaling_law)


def read_law(store: Store, record: Record) -> FittedLaw:
    """Return the law of a finished fit."""
    from runtime.scaling.bootstrap import Bootstrap
    from runtime.scaling.replicates import replicates_in
    from runtime.tables.parquet_bytes import from_parquet

    result = FitScalingLawResult.model_validate(record.result)
    table = from_parquet(store.read(f"{record.output_path}/{result.replicates}"))
    return FittedLaw(result, Bootstrap(result.law, replicates_in(table), result.confidence), table)


def describe(result: FitScalingLawResult) -> Iterator[str]:
    """Yield the law, its warnings, and the losses that it gives to the rungs."""
    yield (
        f"loss = {result.irreducible.value:.4g} + {result.parameter_factor.value:.4g} / N^{result.alpha.value:.3f} + "
        f"{result.token_factor.value:.4g} / D^{result.beta.value:.3f} bits per byte, from {len(result.rungs)} rungs"
    )
    alpha, beta = (f"{each.low:.3f} to {each.high:.3f}" for each in (result.alpha, result.beta))
    yield f"{result.confidence:.0%} intervals: exponent of N {alpha}, exponent of D {beta}"
    yield from at_bounds(result.share_at_bounds)
    isoflop = "no minimum" if result.isoflop_size_exponent is None else f"{result.isoflop_size_exponent:.2f}"
    yield (
        f"best size grows as FLOPs^{result.size_exponent.value:.2f} ({result.size_exponent.low:.2f} to "
        f"{result.size_exponent.high:.2f}); by IsoFLOP curves: {isoflop}"
    )
    yield ""
    rows = [["rung", "N", "D", "measured", "predicted", "interval", "error", ""]]
    for rung in result.rungs:
        predicted = rung.predicted
        figures = [f"{rung.loss:.4f}", f"{predicted.value:.4f}", f"{predicted.low:.4f} to {predicted.high:.4f}"]
        place = [rung.name, in_short(rung.num_parameters), in_short(rung.num_tokens)]
        rows.append([*place, *figures, f"{rung.error:+.2%}", "held out" if rung.is_held_out else ""])
    yield from aligned(rows, left=(0, 7))


def at_bounds(share: float) -> Iterator[str]:
    """Yield a warning where the exponents of some replicates are at a bound of the fit."""
    if share:
        yield (
            f"warning: {share:.1%} of the bootstrap's laws have an exponent at a bound of the fit: the rungs hardly "
            "determine it. Train sizes and lengths that lie further apart."
        )


def predictions(law: FittedLaw, wanted: Target) -> Iterator[str]:
    """Yield the loss of a run and the accuracies of the ladder's tasks, with their intervals."""
    from runtime.scaling.bootstrap import interval_around
    from runtime.scaling.replicates import curves_in

    result, fitted = law.result, law.bootstrap
    loss = fitted.prediction(*wanted)
    yield (
        f"{in_short(wanted.num_parameters)} parameters, {COUNTED}, on {in_short(wanted.num_tokens)} tokens: "
        f"{_shown(loss)} bits per byte ({result.confidence:.0%} interval of one run)"
    )
    yield f"  {_distance(result, FLOPS_PER_PARAMETER_AND_TOKEN * wanted.num_parameters * wanted.num_tokens)}"
    yield from at_bounds(fitted.share_at_bounds)
    for measure, curve in result.tasks.items():
        losses = [each.law.loss(*wanted) for each in fitted.replicates]
        found = [each.accuracy(at) for each, at in zip(curves_in(law.replicates, measure), losses, strict=True)]
        accuracy = interval_around(curve.accuracy(loss.value), found, result.confidence)
        yield f"  {measure}: {_shown(accuracy)}; guessing gives {curve.chance:.4f}"


def optimum(law: FittedLaw, flops: float) -> Iterator[str]:
    """Yield the best size and length for a number of FLOPs, with their intervals."""
    fitted = law.bootstrap
    if not fitted.determines_optimum:
        yield (
            f"no best size for {flops:.3g} FLOPs: {fitted.share_at_bounds:.1%} of the bootstrap's laws have an "
            f"exponent at a bound of the fit, and at most {(1 - fitted.confidence) / 2:.1%} may. Train sizes and "
            "lengths that lie further apart."
        )
        return
    size = fitted.interval(lambda law: law.optimum(flops).num_parameters)
    if size.high > MAX_SIZE_RATIO * size.low:
        yield (
            f"no best size for {_distance(law.result, flops)}: its interval is {in_short(size.low)} to "
            f"{in_short(size.high)} parameters. Train larger sizes and lengths, or ask for fewer FLOPs."
        )
        return
    best = fitted.law.optimum(flops)
    length = fitted.interval(lambda law: law.optimum(flops).num_tokens)
    loss = fitted.prediction(best.num_parameters, best.num_tokens)
    yield f"{_distance(law.result, flops)}, are best spent on"
    for what, each in ((f"parameters, {COUNTED}", size), ("tokens", length)):
        yield f"  {in_short(each.value)} {what} ({in_short(each.low)} to {in_short(each.high)})"
    yield f"  {_shown(loss)} bits per byte ({law.result.confidence:.0%} interval of one run)"


def _distance(result: FitScalingLawResult, flops: float) -> str:
    largest = max(FLOPS_PER_PARAMETER_AND_TOKEN * rung.num_parameters * rung.num_tokens for rung in result.rungs)
    return f"{flops:.3g} FLOPs, {flops / largest:.3g} times the largest rung of the ladder"


def budget_flops(parsed: argparse.Namespace) -> float | None:
    """Return the FLOPs of --flops, or of --money at --price an hour for the machines of --on; None without a budget.

    Raises:
        UserError: two budgets, or money without a price and a machine with a known peak.
    """
    options = {"--money": parsed.money, "--price": parsed.price, "--on": parsed.on}
    given = [name for name, value in options.items() if value is not None]
    if parsed.flops is not None and given:
        raise UserError(f"--flops and {given[0]}: both are budgets. Remove one of them.")
    if parsed.flops is not None or not given:
        return None if parsed.flops is None else float(parsed.flops)
    if missing := [name for name in options if name not in given]:
        raise UserError(f"{given[0]} without {missing[0]}: give all three, such as --money 300 --price 24 --on H100:8.")
    machine = resources_named(parsed.on)
    if isinstance(machine, Cpu):
        raise UserError(f"--on {parsed.on}: the peak of a CPU is not known. Name GPUs or a TPU slice, or use --flops.")
    try:
        chips = slice_of(str(machine))
    except ValueError as error:
        raise UserError(f"--on {parsed.on}: {error}") from None
    generation = chips.generation
    reached = generation.peak_flops("bfloat16") * REACHED_SHARE_OF_PEAK[generation.platform]
    return float(parsed.money / parsed.price * HOUR_SECONDS * chips.num_chips * reached)


def _shown(interval: Interval) -> str:
    return f"{interval.value:.4f} ({interval.low:.4f} to {interval.high:.4f})"


@command(
    "predict [N:D...]",
    "the loss of N parameters on D tokens by the ladder's law, or the best size for a budget",
    "--set",
    own={
        "--flops": value("F", "the best size for F FLOPs", type=above_zero),
        "--money": value("M", "the best size for M of money", type=above_zero),
        "--price": value("P", "price of an hour of the machine, in the same money", type=above_zero),
        "--on": value("MACHINE", f"machine that the money buys: {MACHINES}"),
    },
)
def predict(session: Session) -> int:
    parsed = session.parsed
    flops = budget_flops(parsed)
    try:
        targets = [target(name) for name in parsed.names]
    except argparse.ArgumentTypeError as error:
        raise UserError(f"predict: {error}.") from None
    fit = law_step(session.graph())
    law = read_law(session.store, finished(session.store, fit, "predict", line=session.line("--until", fit.name)))
    lines = [line for wanted in targets for line in predictions(law, wanted)]
    if flops is not None:
        lines += optimum(law, flops)
    print("\n".join(lines or describe(law.result)))
    return NOTHING_WOULD_RUN
