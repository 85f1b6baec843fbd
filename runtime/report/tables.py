"""Figures of the report's tables that take more than a look-up; templates/tables.html shows them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from runtime.evaluation.window_noise import StandardError, difference_stderr
from runtime.optim.ema import HOT
from runtime.report.contents import Evaluation, Phase, Report, mean


def changed_settings(fork: Phase, base: Phase) -> str:
    """Return the settings in which a fork differs from the phase that it repeats."""
    settings = {change.field: change.after for change in base.changes}
    changed = [f"{item.field}: {item.after}" for item in fork.changes if settings.get(item.field) != item.after]
    kept = {item.field for item in fork.changes}
    changed += [f"{item.field}: {item.before}" for item in base.changes if item.field not in kept]
    return "; ".join(changed) or f"ends at step {fork.step:,}"


def window_noise(fork: Evaluation, base: Evaluation) -> StandardError | None:
    """Return the noise of the difference of two evaluations, where both have windows."""
    return difference_stderr(fork.windows, base.windows, num_tokens=fork.num_tokens, num_bytes=fork.num_bytes)


def bits_row(values: Mapping[str, float], domains: Sequence[str]) -> list[float | None]:
    """Return the mean of bits per byte, then those of the report's domains."""
    return [mean(values), *map(values.get, domains)]


def least_bits(report: Report) -> list[float]:
    """Return the least mean, and the least value of each domain, among weights that one would choose."""
    chosen = [values for one in report.evaluations for values in (one.averages or {HOT: one.hot}).values()]
    columns = zip(*(bits_row(values, report.domains) for values in chosen), strict=True)
    return [min((value for value in column if value is not None), default=0.0) for column in columns]


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of each count, the greatest first."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
