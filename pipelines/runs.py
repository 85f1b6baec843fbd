"""Runs: every phase, fork and earlier version under some prefixes, with what it changed and what it reached.

They are read from the records alone, so that runs of other recipes and of older code are there too.
"""

import datetime
import math
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.identity.diff import CodeChanged, FieldChanged, differences, input_keys
from marin_dag.ledger.lease import Leases
from marin_dag.ledger.records import Record, Records
from marin_dag.quantities import counted
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from marin_dag.values.fields import added_fields, class_named
from runtime.optim.ema import HOT
from runtime.report.recipe import described

RATE = "learning_rate"
PHASE, EVALUATION, SCORES = "train_phase", "ema_eval", "lm_eval"
UNLISTED = ("start", "until_step", "acknowledge", "caches")
"""Fields whose changes are no setting of a run; a new cache shows in the mixture."""
LONG_NUMBER = re.compile(r"(?<![\w.])\d+\.\d{6,}(?:e[+-]?\d+)?(?![\w.])")


class Run(NamedTuple):
    """A phase that is done, or one that is running, of which only the first fields and the loss are known."""

    prefix: str
    recipe: str
    """The file that ran it."""
    name: str
    key: str
    """Digest, or digest@step."""
    state: str
    """done, or how far it is."""
    base: str = ""
    """Phase to compare the run with: the forked phase, the earlier run of the name, the one that it starts from, or for
    a later run from scratch, the recipe's first one."""
    changed: tuple[str, ...] = ()
    """Settings that differ from the base, as `field: old -> new`."""
    tokens: int | None = None
    loss: float | None = None
    """Mean train loss of the last steps."""
    bits_per_byte: float | None = None
    """Mean over the domains of the evaluation, for the first EMA weights if the run keeps any."""
    evaluation: str = ""
    """Key of that evaluation, or ""."""
    scores: Mapping[str, tuple[float, float | None]] = types.MappingProxyType({})
    """Value of each task of lm-eval, and its standard error where it has one."""
    device: str = ""
    machine: str = ""
    """Its resources, as the recipe names them."""
    attempts: int = 0
    user: str = ""
    hours: float | None = None
    finished: str = ""
    commit: str = ""


def read_runs(
    prefixes: Iterable[str], *, forks: Mapping[str, str], since: datetime.datetime | None = None
) -> list[Run]:
    """Return the runs under all prefixes, the newest first; running ones before all others.

    Args:
        prefixes: where to look.
        forks: fork made on the command line to the phase that it was forked from.
        since: leave out runs that finished earlier.

    Raises:
        UserError: a prefix of several holds no outputs.
    """
    stores = {store.prefix: store for store in map(open_store, prefixes)}
    found = [run for store in stores.values() for run in _runs_in(store, forks, may_be_empty=len(stores) == 1)]
    kept = [run for run in found if since is None or not run.finished or _time(run.finished) >= since]
    return sorted(kept, key=lambda run: (not run.finished, run.finished, run.name), reverse=True)


def _runs_in(store: Store, forks: Mapping[str, str], *, may_be_empty: bool) -> list[Run]:
    records, prefix = Records(store), store.prefix
    found = records.find_all(records.committed_keys())
    if not found and not may_be_empty:
        raise UserError(f"runs: {prefix} holds no outputs. Correct --prefix or --also, or leave it out.")
    phases = {key: record for key, record in found.items() if record.kind == PHASE}
    labels = records.labels()
    earlier = _earlier_versions(labels, phases)
    first = _first_from_scratch(phases[key] for key in earlier)
    newest = {name: phases[keys[-1]] for name, keys in labels.items() if keys[-1] in phases}
    forked = {fork: newest[base] for fork, base in forks.items() if base in newest}
    evaluations, scores = _evaluations(found.values()), _scores(found)
    done = [
        _done(
            prefix,
            record,
            forked.get(record.name) or _base(record, earlier.get(key), phases, first),
            evaluations.get(key),
            scores.get(key, {}),
        )
        for key, record in phases.items()
        if key in earlier  # a milestone that no step of this name ends at is no run
    ]
    return [*done, *_running(prefix, store, records)]


def _earlier_versions(labels: Mapping[str, Sequence[str]], phases: Mapping[str, Record]) -> dict[str, str | None]:
    """Return for each labelled phase the key that had its name before, or None."""
    found: dict[str, str | None] = {}
    for keys in labels.values():
        known = [key for key in keys if key in phases]
        found |= dict(zip(known, [None, *known], strict=False))
    return found


def _first_from_scratch(phases: Iterable[Record]) -> dict[str, Record]:
    """Return for each recipe the phase that finished first of those that start from no other."""
    newest_first = sorted(phases, key=lambda phase: phase.provenance.finished, reverse=True)
    return {_recipe(phase): phase for phase in newest_first if "start" not in input_keys(phase.identity)}


def _base(
    record: Record, earlier: str | None, phases: Mapping[str, Record], first: Mapping[str, Record]
) -> Record | None:
    if earlier is not None:
        return phases[earlier]
    start = input_keys(record.identity).get("start")
    if start is not None:
        return phases.get(start)
    of_recipe = first[_recipe(record)]
    return None if of_recipe.digest == record.digest else of_recipe


def _recipe(record: Record) -> str:
    argv = record.provenance.argv
    return argv[0].rpartition("/")[2] if argv else ""


def _evaluations(records: Iterable[Record]) -> dict[str, Record]:
    """Return the newest evaluation of each phase by its key."""
    every = sorted(records, key=lambda record: record.provenance.finished)
    return {input_keys(record.identity)["phase"]: record for record in every if record.kind == EVALUATION}


def evaluated_weights(evaluation: Record) -> tuple[float, str, Mapping[str, float]]:
    """Return the mean bits per byte of an evaluation, its weights, and their bits per byte by domain.

    The figures are those of the first EMA weights, or of the weights if there are none, as in the report.
    """
    result = evaluation.result
    for each in result["averages"]:
        return each["mean"], each["average"]["name"], each["by_domain"]
    return result["hot_mean"], HOT, result["hot"]


def _scores(records: Mapping[str, Record]) -> dict[str, dict[str, tuple[float, float | None]]]:
    """Return the scores of the exports of each phase by its key, with the first metric of each task."""
    found: dict[str, dict[str, tuple[float, float | None]]] = {}
    for record in records.values():
        if record.kind != SCORES:
            continue
        for export in input_keys(record.identity).values():
            phase = input_keys(records[export].identity).get("phase") if export in records else None
            if phase is not None:
                weights = record.result["weights"]
                values = {
                    _task(score, weights): (score["value"], score["stderr"])
                    for score in reversed(record.result["scores"])
                }
                found[phase] = found.get(phase, {}) | values
    return found


def _task(score: Mapping[str, Any], weights: str) -> str:
    shots = f" {score['num_fewshot']}-shot" if score["num_fewshot"] else ""
    return f"{score['task']}{shots}{'' if weights == HOT else f', {weights}'}"


def _done(
    prefix: str,
    record: Record,
    base: Record | None,
    evaluation: Record | None,
    scores: Mapping[str, tuple[float, float | None]],
) -> Run:
    provenance = record.provenance
    seconds = (_time(provenance.finished) - _time(provenance.started)).total_seconds()
    return Run(
        prefix=prefix,
        recipe=_recipe(record),
        name=record.name,
        key=record.key,
        state="done",
        base="" if base is None else f"{base.name} ({base.digest[:8]})",
        changed=() if base is None else tuple(_changes(base, record)),
        tokens=record.result["consumed_tokens"],
        loss=finite(record.result["final_loss"]),
        bits_per_byte=None if evaluation is None else evaluated_weights(evaluation)[0],
        evaluation="" if evaluation is None else evaluation.key,
        scores=scores,
        device=provenance.computed_with.get("device", provenance.resources),
        machine=provenance.resources,
        attempts=provenance.lease_epoch,
        user=provenance.user,
        hours=seconds / 3600,
        finished=provenance.finished,
        commit=f"{(provenance.git_commit or '')[:8]}{'+' if provenance.is_dirty else ''}",
    )


def finite(value: float | None) -> float | None:
    """Return a figure as JSON can write it: None for one that is not finite."""
    return None if value is None or not math.isfinite(value) else value


def _changes(base: Record, record: Record) -> Iterable[str]:
    for difference in differences(base.identity, record.identity):
        if isinstance(difference, FieldChanged) and difference.field.partition(".")[0] not in UNLISTED:
            shown: tuple[str, ...] = (difference.old, difference.new)
            if difference.field == RATE:  # of another class, so that all its fields differ
                words = tuple(_rate_in_words(each.identity) for each in (base, record))
                shown = words if all(words) and len(set(words)) == 2 else shown
            old, new = in_few_digits(*shown)
            yield f"{difference.field}: {old} -> {new}"
        elif isinstance(difference, CodeChanged):
            yield f"code: {counted(len(difference.changed) + len(difference.added), 'definition')}"


def _rate_in_words(identity: dict[str, Any]) -> str:
    """Return the schedule of an identity as `timeline` writes it; "" for one that this code cannot read."""
    try:
        value = _value(dict(identity["config"][2:])[RATE])
    except (KeyError, TypeError, ValueError):
        return ""
    return described(value)


def _value(node: Any) -> Any:
    match node:
        case ["dataclass", str(name), *fields]:
            owner = class_named(name)
            if owner is None:
                raise KeyError(name)
            return owner(**{field: _value(item) for field, item in (added_fields(owner) | dict(fields)).items()})
        case ["list", *items]:
            return tuple(map(_value, items))
    return node


def in_few_digits(*values: str) -> tuple[str, ...]:
    """Return values with numbers of at most six digits, or as they are where two different ones would look equal."""
    shorter = tuple(LONG_NUMBER.sub(lambda found: f"{float(found[0]):.6g}", value) for value in values)
    return shorter if len(set(shorter)) == len(set(values)) else values


def _running(prefix: str, store: Store, records: Records) -> list[Run]:
    names = {key.partition("@")[0]: name for name, keys in records.labels().items() for key in keys}
    found = []
    for digest, held in Leases(store).at_work().items():
        if (progress := held.progress) is not None and progress.unit == "steps":
            run = Run(
                prefix=prefix,
                recipe="",
                name=held.holder.name or names.get(digest, digest[:8]),
                key=digest,
                state=f"{progress.done:,}/{progress.total:,} {progress.unit}",
                loss=finite(progress.figures.get("loss")),
                scores={},
                device=f"{held.holder.host} pid {held.holder.pid}",
                attempts=held.epoch,
            )
            found.append(run)
    return found


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
