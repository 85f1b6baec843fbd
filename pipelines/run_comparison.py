"""Run comparison: several finished runs side by side, each against the first: settings, figures, scores and curves.

A difference comes with its standard error where one is known: of bits per byte from repeated seeds, or else from the
held-out windows; of a score from the items of its task.
"""

import collections
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from marin_dag.errors import UserError
from marin_dag.identity.diff import CodeChanged, FieldChanged, differences
from marin_dag.ledger.records import Record, Records
from marin_dag.store.prefix import open_store
from pipelines.runs import Run, evaluated_weights, in_few_digits

if TYPE_CHECKING:
    from runtime.evaluation.window_noise import Losses, StandardError
    from runtime.report.curve_plots import Line

UNCOMPARED = ("start", "acknowledge", "caches")
SAME = "="
SEEDS, WINDOWS, ITEMS = "seeds", "held-out windows", "items"


class RunDifference(NamedTuple):
    """A difference from the first run, with its standard error if that is known."""

    value: float
    stderr: float | None = None
    source: str = ""
    """Where the estimate is from: `SEEDS`, `WINDOWS` or `ITEMS`; empty without one."""
    degrees: int | None = None
    """Degrees of freedom of the estimate; None for many."""

    @property
    def is_noise(self) -> bool | None:
        """Whether the 95 % interval contains 0; None where it is unknown."""
        from runtime.evaluation.uncertainty import is_noise

        return None if self.stderr is None else is_noise(self.value, self.stderr, self.degrees)


class Measure(NamedTuple):
    """A figure of each run; None where a run has none."""

    name: str
    values: tuple[float | None, ...]
    differences: tuple[RunDifference | None, ...]
    """Differences from the first run; None for the first run, and where one of the two has no figure."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Finished runs; each is compared with the first."""

    runs: tuple[Run, ...]
    settings: Mapping[str, tuple[str, ...]]
    """Value of each field that differs, by run; `SAME` where a run has the value of the first."""
    measures: tuple[Measure, ...]
    other_text: tuple[str, ...]
    """Domains whose held-out text is not the same in all evaluations."""


def compare(runs: Sequence[Run], others: Iterable[Run]) -> Comparison:
    """Compare at least two finished runs; `others` are searched for runs that differ from one of them by the seed."""
    others = list(others)
    return comparison([read_run(run, others) for run in runs])


class ReadRun(NamedTuple):
    """A run with what comparisons need of the store."""

    run: Run
    record: Record
    repeats: list[float]
    """Bits per byte of the run and of the runs that differ from it by the seed alone."""
    evaluation: Record | None
    losses: "Losses | None"


def read_run(run: Run, others: Iterable[Run]) -> ReadRun:
    """Return a finished run for a comparison.

    Raises:
        UserError: the predictions that its evaluation keeps are damaged.
    """
    record = _record(run, run.key)
    evaluation = _record(run, run.evaluation) if run.evaluation else None
    shown = None if evaluation is None else evaluated_weights(evaluation)
    losses = None if evaluation is None or shown is None else _losses(run, evaluation, shown[1])
    return ReadRun(run, record, _repeats(run, record, others), evaluation, losses)


def comparison(read: Sequence[ReadRun]) -> Comparison:
    """Compare runs with the first of them; what a run shows does not depend on the others."""
    runs, evaluations = [each.run for each in read], [each.evaluation for each in read]
    measures = [_measure("train loss", [run.loss for run in runs])]
    if any(evaluations):
        measures += _bits_per_byte(read)
    for task in dict.fromkeys(task for run in runs for task in run.scores):
        values, errors = zip(*(run.scores.get(task, (None, None)) for run in runs), strict=True)
        measures.append(_measure(task, values, functools.partial(_joint, errors)))
    return Comparison(tuple(runs), _settings([each.record for each in read]), tuple(measures), _other_text(evaluations))


def lines_of(run: Run, title: str) -> "list[Line]":
    """Return the train loss, gradient norm and learning rate of a finished run over the tokens since its start.

    Raises:
        UserError: the run has no readable metrics.
    """
    import pyarrow as pa

    from runtime.report.curve_plots import GRADIENT, LOSS, RATE, Line
    from runtime.tables.parquet_bytes import TableError, read_parts
    from runtime.tracking.curves import curves_of

    record = _record(run, run.key)
    if "metrics" not in record.result:
        raise UserError(f"{title}: the record of {run.key} names no metrics.")
    path = open_store(run.prefix).url(f"{record.output_path}/{record.result['metrics']}")
    try:
        curves = curves_of(*read_parts(path), after_step=0, file=path)
    except (OSError, TableError, pa.ArrowException) as error:
        raise UserError(f"{title}: its metrics ({path}) are not readable: {error}") from error
    if not len(curves.step):
        raise UserError(f"{title}: {path} has no training step.")
    columns = ((LOSS, "loss"), (GRADIENT, "grad_norm"), (RATE, "learning_rate"))
    return [
        Line(panel, title, title, curves.consumed_tokens, curves.figures[f"train/{column}"])
        for panel, column in columns
    ]


def titles(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run, with the digest where two have the same, and the prefix where two have both."""
    forms = [
        (run.name, f"{run.name} ({_short(run.key)})", f"{run.name} ({_short(run.key)}, {run.prefix})") for run in runs
    ]
    every = collections.Counter(form for each in forms for form in each)
    return [next((form for form in each if every[form] == 1), each[-1]) for each in forms]


def _short(key: str) -> str:
    digest, at, step = key.partition("@")
    return f"{digest[:8]}{at}{step}"


def _record(run: Run, key: str) -> Record:
    return Records(open_store(run.prefix)).get(key)


def _settings(records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    changed: dict[str, dict[int, str]] = {}
    first: dict[str, str] = {}
    for index, record in enumerate(records[1:], start=1):
        for each in differences(records[0].identity, record.identity):
            if isinstance(each, FieldChanged) and each.field.partition(".")[0] not in UNCOMPARED:
                first[each.field] = each.old
                changed.setdefault(each.field, {})[index] = each.new
            elif isinstance(each, CodeChanged):
                first["code"] = records[0].identity["code"]["fingerprint"][:8]
                changed.setdefault("code", {})[index] = record.identity["code"]["fingerprint"][:8]
    places = range(1, len(records))
    return {
        field: in_few_digits(first[field], *(values.get(index, SAME) for index in places))
        for field, values in sorted(changed.items())
    }


def _measure(
    name: str,
    values: Sequence[float | None],
    differ: Callable[[int, float], RunDifference] = lambda index, value: RunDifference(value),
) -> Measure:
    """Return a measure; `differ` adds the standard error to the difference of a run."""
    base = values[0]
    found = [
        None if value is None or base is None or not index else differ(index, value - base)
        for index, value in enumerate(values)
    ]
    return Measure(name, tuple(values), tuple(found))


def _joint(errors: Sequence[float | None], index: int, value: float) -> RunDifference:
    """Return the error as if the items differed; on the same items the difference is less uncertain."""
    mine, other = errors[0], errors[index]
    if mine is None or other is None:
        return RunDifference(value)
    return RunDifference(value, math.hypot(mine, other), ITEMS)


def _repeats(run: Run, record: Record, others: Iterable[Run]) -> list[float]:
    """Return the bits per byte of a run and of the runs that differ from it by the seed alone."""
    found = [run.bits_per_byte]
    for other in others:
        is_candidate = other.prefix == run.prefix and other.key != run.key and other.bits_per_byte is not None
        if is_candidate and other.tokens == run.tokens:
            changed = differences(record.identity, _record(other, other.key).identity)
            if changed and all(isinstance(each, FieldChanged) and each.field == "seed" for each in changed):
                found.append(other.bits_per_byte)
    return [value for value in found if value is not None]


def _bits_per_byte(read: Sequence[ReadRun]) -> list[Measure]:
    """Return the mean over the domains that a run shares with the first, once for each such set, and each domain."""
    shown = [None if each.evaluation is None else evaluated_weights(each.evaluation) for each in read]
    by_domain = [{} if each is None else each[2] for each in shown]
    own = tuple(by_domain[0])
    found, every = [], dict[str, None]()
    for domains, places in _shared_domains(by_domain).items():
        every |= dict.fromkeys(domains)
        means = [
            statistics.fmean(values[domain] for domain in domains) if place in places else None
            for place, values in enumerate(by_domain)
        ]
        # A name for each set, whatever runs stand beside the two.
        name = f"mean of {len(domains)} domains" if domains == own else f"mean of {', '.join(domains)}"
        found.append(_measure(f"bits per byte, {name}", means, functools.partial(_difference_of_means, read, domains)))
    for domain in every:
        found.append(_measure(f"bits per byte, {domain}", [values.get(domain) for values in by_domain]))
    return found


def _shared_domains(by_domain: Sequence[Mapping[str, float]]) -> dict[tuple[str, ...], list[int]]:
    """Return the domains that a run shares with the first, or has where the first has none, with these runs' places."""
    own = by_domain[0]
    found: dict[tuple[str, ...], list[int]] = {}
    for place, values in enumerate(by_domain[1:], start=1):
        domains = tuple(domain for domain in own or values if domain in values)
        if domains:
            found.setdefault(domains, [0] if own else []).append(place)
    return found or ({tuple(own): [0]} if own else {})


def _difference_of_means(read: Sequence[ReadRun], domains: Sequence[str], place: int, value: float) -> RunDifference:
    first, other = read[0], read[place]
    several = [values for values in (first.repeats, other.repeats) if len(values) > 1]
    if several:
        variance = statistics.fmean(statistics.variance(values) for values in several)
        return RunDifference(value, math.sqrt(2 * variance), SEEDS, sum(len(values) - 1 for values in several))
    error = _error_of_windows(first.evaluation, first.losses, other.losses, domains)
    return RunDifference(value) if error is None else RunDifference(value, error.value, WINDOWS, error.degrees)


def _other_text(evaluations: Iterable[Record | None]) -> tuple[str, ...]:
    sizes = collections.defaultdict[str, set[int]](set)
    for record in filter(None, evaluations):
        for domain, num_bytes in record.result["num_bytes"].items():
            sizes[domain].add(num_bytes)
    return tuple(sorted(domain for domain, found in sizes.items() if len(found) > 1))


def _error_of_windows(
    evaluation: Record | None, first: "Losses | None", second: "Losses | None", domains: Sequence[str]
) -> "StandardError | None":
    from runtime.evaluation.window_noise import difference_stderr

    if evaluation is None or first is None or second is None:
        return None
    num_tokens, num_bytes = (
        {domain: evaluation.result[field][domain] for domain in domains} for field in ("num_tokens", "num_bytes")
    )
    return difference_stderr(first, second, num_tokens=num_tokens, num_bytes=num_bytes)


def _losses(run: Run, evaluation: Record, weights: str) -> "Losses | None":
    """Return the losses of the windows whose predictions the evaluation keeps; None if it keeps none."""
    from runtime.evaluation.stored_predictions import PREDICTIONS_FILE, read_predictions
    from runtime.evaluation.window_noise import COLUMNS, window_losses
    from runtime.tables.parquet_bytes import TableError

    if all(entry.path != PREDICTIONS_FILE for entry in evaluation.manifest):
        return None
    try:
        url = open_store(run.prefix).url(f"{evaluation.output_path}/{PREDICTIONS_FILE}")
        return window_losses(read_predictions(url, COLUMNS), weights)
    except TableError as error:
        raise UserError(str(error)) from error
