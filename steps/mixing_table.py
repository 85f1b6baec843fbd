"""Mixing table: the same phase under several mixing policies and seeds, side by side, as one page of Markdown."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, StepContext, step
from steps.ema_eval import EmaEvalResult
from steps.phase_result import TrainPhaseResult

TABLE_FILE = "table.md"


class MixingTableConfig(BaseModel, frozen=True, extra="forbid"):
    """Policies by name, each with one run a seed; every policy with the same seeds."""

    phases: dict[str, dict[str, Input[TrainPhaseResult]]]
    evaluations: dict[str, dict[str, Input[EmaEvalResult]]]
    baseline: str
    """The policy that the others are compared with, seed by seed."""
    prior: dict[str, float] = Field(min_length=1)
    """Weights of the mixture as it is written, by source."""


class Compared(BaseModel, frozen=True, extra="forbid"):
    """One figure of one policy over the seeds."""

    mean: float
    standard_error: float | None
    """Of the mean over seeds; None of a single one, which tells nothing about others."""
    against_baseline: float
    """Mean over seeds of the difference to the baseline's run with the same seed."""
    against_baseline_error: float | None


class MixingTableResult(BaseModel, frozen=True, extra="forbid"):
    """Held-out bits per byte; lower is better."""

    table: str
    mean_of_sources: dict[str, Compared]
    """By policy; each source counts the same."""
    mean_by_prior: dict[str, Compared]
    """By policy; each source counts by its written share."""
    by_source: dict[str, dict[str, Compared]]
    """By source, then policy."""
    shares: dict[str, dict[str, float]]
    """By source, then policy: share of all sequences that were drawn from it, mean over seeds."""


class _Runs(NamedTuple):
    values: dict[str, dict[str, float]]
    """Policy -> seed -> figure."""
    baseline: str

    def compared(self) -> dict[str, Compared]:
        return {policy: self._of(policy) for policy in self.values}

    def _of(self, policy: str) -> Compared:
        own, base = self.values[policy], self.values[self.baseline]
        differences = [own[seed] - base[seed] for seed in sorted(own)]
        return Compared(
            mean=statistics.fmean(own.values()),
            standard_error=_standard_error(list(own.values())),
            against_baseline=statistics.fmean(differences),
            against_baseline_error=_standard_error(differences),
        )


def _check(config: MixingTableConfig) -> None:
    if config.baseline not in config.phases:
        raise ValueError(f"baseline is {config.baseline!r}, none of the policies {sorted(config.phases)}; name one.")
    seeds = sorted(config.phases[config.baseline])
    for field, runs in (("phases", config.phases), ("evaluations", config.evaluations)):
        for policy in sorted({*config.phases, *config.evaluations}):
            own = sorted(runs.get(policy, {}))
            if not own or own != seeds:
                raise ValueError(
                    f"{field}[{policy!r}] has the seeds {own}, and the baseline has {seeds}; figures are compared seed "
                    "by seed, so give every policy a phase and an evaluation of each."
                )


@step(policy="tracked", check=_check)
def mixing_table(config: MixingTableConfig, context: StepContext) -> MixingTableResult:
    """Every figure is of the hot weights at the end of the phase."""
    import fsspec

    bits = {
        policy: {seed: evaluation.result.hot for seed, evaluation in seeds.items()}
        for policy, seeds in config.evaluations.items()
    }
    sources = sorted(config.prior)
    total = math.fsum(config.prior.values())

    def runs(figure: Mapping[str, float]) -> dict[str, Compared]:
        """`figure` weighs the sources."""
        values = {
            policy: {
                seed: math.fsum(found[source] * weight for source, weight in figure.items())
                for seed, found in seeds.items()
            }
            for policy, seeds in bits.items()
        }
        return _Runs(values, config.baseline).compared()

    result = MixingTableResult(
        table=TABLE_FILE,
        mean_of_sources=runs(dict.fromkeys(sources, 1 / len(sources))),
        mean_by_prior=runs({source: weight / total for source, weight in config.prior.items()}),
        by_source={source: runs({source: 1.0}) for source in sources},
        shares=_shares(config, sources),
    )
    with fsspec.open(f"{context.output_path}/{TABLE_FILE}", "w", encoding="utf-8") as file:
        file.write(rendered(result, config.baseline))
    return result


def _shares(config: MixingTableConfig, sources: Sequence[str]) -> dict[str, dict[str, float]]:
    from runtime.tracking.source_losses import SourceLossesTable
    from runtime.training import checkpoint

    drawn: dict[str, dict[str, list[float]]] = {source: {policy: [] for policy in config.phases} for source in sources}
    for policy, seeds in config.phases.items():
        for phase in seeds.values():
            name = phase.result.source_losses
            data = checkpoint.read_beside(phase.join(phase.result.checkpoint), name)
            table = SourceLossesTable.from_parquet(data, file=phase.join(name))
            counts = table.num_sequences_by_source()
            for source in sources:
                drawn[source][policy].append(counts.get(source, 0) / sum(counts.values()))
    return {
        source: {policy: statistics.fmean(values) for policy, values in by_policy.items()}
        for source, by_policy in drawn.items()
    }


def rendered(result: MixingTableResult, baseline: str) -> str:
    """Three tables of Markdown."""
    policies = list(result.mean_of_sources)
    summary = _rows(
        ("policy", "mean of sources", f"against {baseline}", "mean by written shares", f"against {baseline}"),
        (
            (policy, *_figures(result.mean_of_sources[policy]), *_figures(result.mean_by_prior[policy]))
            for policy in policies
        ),
    )
    of_sources = _rows(
        ("source", *policies),
        (
            (source, *(f"{by_policy[policy].mean:.3f}" for policy in policies))
            for source, by_policy in result.by_source.items()
        ),
    )
    shares = _rows(
        ("source", *policies),
        ((source, *(f"{by_policy[policy]:.1%}" for policy in policies)) for source, by_policy in result.shares.items()),
    )
    return f"{summary}\n\nBits per byte by source:\n\n{of_sources}\n\nShares drawn:\n\n{shares}\n"


def _figures(compared: Compared) -> tuple[str, str]:
    return (
        f"{compared.mean:.4f}{_spread(compared.standard_error)}",
        f"{compared.against_baseline:+.4f}{_spread(compared.against_baseline_error)}",
    )


def _spread(error: float | None) -> str:
    return "" if error is None else f" ± {error:.4f}"


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _standard_error(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
