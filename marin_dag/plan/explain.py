"""Explanation: everything known about one step's verdict, down to the config field or the function that changed."""

import json
from collections.abc import Iterator
from typing import Any

from marin_dag.graph.step import OutputRef, Step
from marin_dag.identity.canonical import canonical
from marin_dag.identity.diff import CodeChanged, shown
from marin_dag.ledger.records import Records
from marin_dag.ledger.source_archive import SourceDiffs
from marin_dag.plan.plan import Plan
from marin_dag.plan.planned import PlannedStep, Verdict
from marin_dag.plan.reasons import Changed, Drifted, Reason, Running, short_key
from marin_dag.quantities import counted
from marin_dag.store.store import Store

MAX_SOURCE_LINES = 40


def explain(plan: Plan, name: str, store: Store) -> str:
    """Return the text that `why` prints."""
    return "\n".join(_lines(plan, plan[name], store))


def _lines(plan: Plan, planned: PlannedStep, store: Store) -> Iterator[str]:
    step = planned.step
    yield f"{step.name} is {planned.verdict}"
    if planned.compared is not None:
        compared = planned.compared
        others = f", the nearest of {compared.num_compared}" if compared.num_compared > 1 else ""
        yield f"  compared with the output made {compared.finished} under this name ({short_key(compared.key)}{others})"
    sources = SourceDiffs(store, plan.graph.steps)
    for reason in planned.reasons:
        yield from (f"  {line}" for line in _reason(step.name, reason, sources))
    yield ""
    yield from _identity(plan, step)
    if planned.verdict in (Verdict.DONE, Verdict.DRIFTED):
        record = Records(store).get(step.key)
        provenance = record.provenance
        yield f"  output    {store.url(record.output_path)}"
        commit = (provenance.git_commit or "none")[:12]
        files = counted(len(record.manifest), "file")
        yield f"  made      {provenance.finished} on {provenance.host}, {files}, commit {commit}"
        if record.name != step.name:
            yield f"  made as   {record.name}: the same identity under another name"


def _identity(plan: Plan, step: Step[Any]) -> Iterator[str]:
    yield f"  kind      {step.identity['kind']}"
    at = "" if step.until is None else f" at step {step.until:,}"
    yield f"  digest    {step.digest}{at}"
    policy = step.policy if step.policy == "tracked" else f"versioned, version {step.version}"
    code = step.identity["code"]
    definitions = counted(len(code["definitions"]), "definition")
    yield f"  code      {policy}; {definitions}, fingerprint {code['fingerprint'][:12]}"
    if step.base is not None:
        changes = ", ".join(f"{field}={_value(value)}" for field, value in step.changes.items())
        yield f"  derived   {step.base.name}.{step.derivation}({changes})"
    for field, item in step.inputs:
        milestone = "" if item.milestone is None else f" at step {item.milestone:,}"
        yield f"  input     {field} = {item.step.name}{milestone} ({item.digest[:8]}, {plan[item.step.name].verdict})"


def _value(value: object) -> str:
    """Return a changed field as the recipe writes it; a step by its name."""
    if isinstance(value, OutputRef):
        return value.typed
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_value(item)}" for key, item in value.items()) + "}"
    return shown(canonical(value, "changes"))


def _reason(name: str, reason: Reason, sources: SourceDiffs) -> Iterator[str]:
    yield str(reason)
    yield from (f"  {line}" for line in reason.details())
    if isinstance(reason, Changed | Drifted):
        yield from _definitions(reason.difference, sources)
    if isinstance(reason, Drifted):
        yield f'  accept {name} --because "..." if it makes the same output; bump {name} to make it again'
    if isinstance(reason, Running) and not reason.is_queued and not reason.does:
        yield f"  `log {reason.name or name}` prints its log"


def _definitions(difference: object, sources: SourceDiffs) -> Iterator[str]:
    if isinstance(difference, CodeChanged):
        for what, names in (("~", difference.changed), ("+", difference.added), ("-", difference.removed)):
            yield from (f"    {what} {definition}" for definition in names)
        lines = list(sources.of(difference))
        yield from (f"    {line}" for line in lines[:MAX_SOURCE_LINES])
        if len(lines) > MAX_SOURCE_LINES:
            yield f"    ... {len(lines) - MAX_SOURCE_LINES} more lines; `diff STEP` shows all"
