"""Mixing table: the same phase under several mixing policies and seeds, side by side, as one page of Markdown."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, StepContext, step
from steps.ema_eval import EmaEvalResult
from steps.phase_result import TrainPhaseResult

TABLE_FILE = "table.md"


class MixingTableConfig(BaseModel, frozen=True, extra="forbid"):
    """Policies by name, each with one run for each seed; all with the same seeds."""

    phases: dict[str, dict[str, Input[TrainPhaseResult]]]
    evaluations: dict[str, dict[str, Input[EmaEvalResult]]]
    baseline: str
    """The policy that the others are compared with, seed by seed."""
    prior: dict[str, float] = Field(min_length=1)
    """Weights of the written mixture, by source."""


class PolicyFigure(BaseModel, frozen=True, extra="forbid"):
    """A figure of a policy over the seeds."""

    mean: float
    standard_error: float | None
    """Standard error of the mean over seeds; None for a single seed."""
    against_baseline: float
    """Mean over seeds of the difference to the baseline's run with the same seed."""
    against_baseline_error: float | None


class MixingTableResult(BaseModel, frozen=True, extra="forbid"):
    """Held-out bits per byte; lower is better."""

    table: str
    mean_of_sources: dict[str, PolicyFigure]
    """Figures by policy; each source counts the same."""
    mean_by_prior: dict[str, PolicyFigure]
    """Figures by policy; each source counts by its written share."""
    by_source: dict[str, dict[str, PolicyFigure]]
    """Figures by source, then policy."""
    shares: dict[str, dict[str, float]]
    """Share of all drawn sequences by source, then policy; mean over seeds."""


def _check(config: MixingTableConfig) -> None:
    if config.baseline not in config.phases:
        raise ValueError(f"baseline: {config.baseline!r} is no policy; name one of {sorted(config.phases)}.")
    seeds = sorted(config.phases[config.baseline])
    for field, runs in (("phases", config.phases), ("evaluations", config.evaluations)):
        for policy in sorted({*config.phases, *config.evaluations}):
            own = sorted(runs.get(policy, {}))
            if not own or own != seeds:
                raise ValueError(
                    f"{field}[{policy!r}] has the seeds {own}, and the baseline has {seeds}. Figures are compared seed "
                    "by seed: give every policy a phase and an evaluation for each."
                )


@step(policy="tracked", check=_check)
def mixing_table(config: MixingTableConfig, context: StepContext) -> MixingTableResult:
    """Compare the weights, not their averages, at the end of each phase."""
    import fsspec

    sources = sorted(config.prior)
    total = math.fsum(config.prior.values())
    result = MixingTableResult(
        table=TABLE_FILE,
        mean_of_sources=_compared(config, dict.fromkeys(sources, 1 / len(sources))),
        mean_by_prior=_compared(config, {source: weight / total for source, weight in config.prior.items()}),
        by_source={source: _compared(config, {source: 1.0}) for source in sources},
        shares=_shares(config, sources),
    )
    with fsspec.open(f"{context.output_path}/{TABLE_FILE}", "w", encoding="utf-8") as file:
        file.write(rendered(result, config.baseline))
    return result


def _compared(config: MixingTableConfig, weights: Mapping[str, float]) -> dict[str, PolicyFigure]:
    """Return the bits per byte of each policy, averaged over sources by `weights`."""
    bits = {
        policy: {
            seed: math.fsum(evaluation.result.hot[source] * weight for source, weight in weights.items())
            for seed, evaluation in by_seed.items()
        }
        for policy, by_seed in config.evaluations.items()
    }
    found = {}
    for policy, own in bits.items():
        differences = [own[seed] - bits[config.baseline][seed] for seed in sorted(own)]
        found[policy] = PolicyFigure(
            mean=statistics.fmean(own.values()),
            standard_error=_standard_error(list(own.values())),
            against_baseline=statistics.fmean(differences),
            against_baseline_error=_standard_error(differences),
        )
    return found


def _shares(config: MixingTableConfig, sources: Sequence[str]) -> dict[str, dict[str, float]]:
    from runtime.tracking.source_losses import SourceLossesTable
    from runtime.training import checkpoint

    drawn: dict[str, dict[str, list[float]]] = {source: {policy: [] for policy in config.phases} for source in sources}
    for policy, seeds in config.phases.items():
        for phase in seeds.values():
            name = phase.result.source_losses
            data = checkpoint.read_beside(phase.join(phase.result.checkpoint), name)
            counts = SourceLossesTable.from_parquet(data, file=phase.join(name)).num_sequences_by_source()
            for source in sources:
                drawn[source][policy].append(counts.get(source, 0) / sum(counts.values()))
    return {
        source: {policy: statistics.fmean(values) for policy, values in by_policy.items()}
        for source, by_policy in drawn.items()
    }


def rendered(result: MixingTableResult, baseline: str) -> str:
    """Return three tables of Markdown."""
    policies = list(result.mean_of_sources)
    against = f"against {baseline}"
    summary = _rows(
        ("policy", "mean of sources", against, "mean by written shares", against),
        [
            (policy, *_cells(result.mean_of_sources[policy]), *_cells(result.mean_by_prior[policy]))
            for policy in policies
        ],
    )
    by_source = {
        source: [f"{figures[policy].mean:.3f}" for policy in policies] for source, figures in result.by_source.items()
    }
    shares = {source: [f"{found[policy]:.1%}" for policy in policies] for source, found in result.shares.items()}
    bits_table, shares_table = (
        _rows(("source", *policies), [(source, *cells) for source, cells in table.items()])
        for table in (by_source, shares)
    )
    return f"{summary}\n\nBits per byte by source:\n\n{bits_table}\n\nShares drawn:\n\n{shares_table}\n"


def _cells(figure: PolicyFigure) -> tuple[str, str]:
    return (
        f"{figure.mean:.4f}{_spread(figure.standard_error)}",
        f"{figure.against_baseline:+.4f}{_spread(figure.against_baseline_error)}",
    )


def _spread(error: float | None) -> str:
    return "" if error is None else f" ± {error:.4f}"


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _standard_error(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
