"""Figures of the report's tables that take more than a look-up; templates/tables.html shows them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from runtime.evaluation.uncertainty import is_noise
from runtime.evaluation.window_noise import difference_stderr
from runtime.optim.ema import HOT
from runtime.report.contents import Evaluation, Phase, Report, mean


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
