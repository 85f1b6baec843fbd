"""Figures of the report's tables that take more than a look-up; templates/tables.html shows them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from runtime.evaluation.uncertainty import is_noise
from runtime.evaluation.window_noise import difference_stderr
from runtime.report.contents import Evaluation, Phase, Report, Stage, mean


def changed_settings(fork: Phase, base: Phase) -> str:
    """Return the settings in which a fork differs from the phase that it repeats."""
    settings = {change.field: change.after for change in base.changes}
    changed = [f"{item.field}: {item.after}" for item in fork.changes if settings.get(item.field) != item.after]
    kept = {item.field for item in fork.changes}
    changed += [f"{item.field}: {item.before}" for item in base.changes if item.field not in kept]
    return "; ".join(changed) or f"ends at step {fork.step:,}"


def gain(fork: Evaluation | None, base: Evaluation | None) -> str | None:
    """Return the difference of two evaluations in bits per byte, and whether it is larger than its noise."""
    if fork is None or base is None:
        return None
    difference = mean(fork.best) - mean(base.best)
    shown = f"{difference:+.4f}"
    ours, theirs, error = fork.windows, base.windows, None
    if ours is not None and theirs is not None:
        error = difference_stderr(ours.losses, theirs.losses, num_tokens=ours.num_tokens, num_bytes=ours.num_bytes)
    if error is not None:
        verdict = "noise" if is_noise(difference, *error) else "worse" if difference > 0 else "better"
        shown += f" ± {error.value:.4f}, {verdict}"
    if fork.best_weights != base.best_weights:  # the difference is also that of averaging
        shown += f": {fork.best_weights} against {base.best_weights}"
    return shown


class MeasuredWeights(NamedTuple):
    """Bits per byte of one set of weights of a phase."""

    weights: str
    values: list[float | None]
    """The mean, then those of the report's domains."""
    competes: bool
    """Whether one would choose these weights: averages, or the trained weights of a phase without averages."""


def weights_of(evaluation: Evaluation, domains: Sequence[str]) -> list[MeasuredWeights]:
    """Return what was measured of each average, then of the trained weights."""

    def values(by_domain: Mapping[str, float]) -> list[float | None]:
        return [mean(by_domain), *map(by_domain.get, domains)]

    found = [MeasuredWeights(name, values(each), True) for name, each in evaluation.averages.items()]
    return [*found, MeasuredWeights("weights", values(evaluation.hot), not found)]


def least_bits(report: Report) -> list[float]:
    """Return the least mean, and the least value of each domain, among weights that one would choose."""
    measured = [each for one in report.evaluations for each in weights_of(one, report.domains) if each.competes]
    columns = zip(*(each.values for each in measured), strict=True)
    return [min((value for value in column if value is not None), default=0.0) for column in columns]


class RuleDrops(NamedTuple):
    """Documents that one rule dropped over all sources."""

    stage: str
    rule: str
    num_documents: int
    of_documents: int
    """Documents that came into the stage."""
    num_bytes: int
    of_bytes: int
    sources: list[tuple[int, str]]
    """Documents by source, most first."""


def drops_by_rule(stages: Sequence[Stage]) -> list[RuleDrops]:
    """Return the drops of each rule, most documents first within a stage."""
    names = dict.fromkeys(stage.stage for stage in stages)
    return [drops for name in names for drops in _drops_of([stage for stage in stages if stage.stage == name])]


def _drops_of(stages: Sequence[Stage]) -> Iterator[RuleDrops]:
    of_documents = sum(stage.num_documents + stage.num_dropped for stage in stages)
    of_bytes = sum(stage.num_bytes + stage.num_bytes_dropped for stage in stages)
    counts: Counter[str] = Counter()
    for stage in stages:
        counts.update(stage.dropped)
    for rule, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        sources = sorted(((stage.dropped.get(rule, 0), stage.source) for stage in stages), reverse=True)
        num_bytes = sum(stage.dropped_bytes.get(rule, 0) for stage in stages)
        shown = [each for each in sources if each[0]]
        yield RuleDrops(stages[0].stage, rule, count, of_documents, num_bytes, of_bytes, shown)
