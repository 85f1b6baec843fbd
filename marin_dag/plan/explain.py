"""Explanations: what `why` and `diff` print, and the records that a digest, a name or a milestone stands for."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.identity.canonical import canonical
from marin_dag.identity.diff import CodeChanged, InputChanged, code_difference, differences, shown
from marin_dag.ledger.records import Record, Records
from marin_dag.ledger.source_archive import SourceArchive
from marin_dag.plan.causes import Causes, Siblings
from marin_dag.plan.plan import Plan
from marin_dag.plan.planned import PlannedStep, Verdict
from marin_dag.plan.reasons import Changed, Drifted, Reason, Running, render_changed, render_difference
from marin_dag.quantities import counted
from marin_dag.record_key import short_key
from marin_dag.store.store import Store

MAX_SOURCE_LINES = 40
SHORTEST_PREFIX = 6
"""Fewer digits of a digest would often match two records, or be the name of a step."""
MAX_SHOWN = 6


def explain(plan: Plan, name: str, store: Store) -> str:
    return "\n".join(_lines(plan, plan[name], store))


def _lines(plan: Plan, planned: PlannedStep, store: Store) -> Iterator[str]:
    step = planned.step
    yield f"{step.name} is {planned.verdict}"
    if planned.compared is not None:
        compared = planned.compared
        others = f", the nearest of {compared.num_compared}" if compared.num_compared > 1 else ""
        yield f"  compared with the output made {compared.finished} under this name ({short_key(compared.key)}{others})"
    sources = SourceArchive(store, plan.graph.steps)
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
        changes = ", ".join(f"{field}={shown(canonical(value, 'changes'))}" for field, value in step.changes.items())
        yield f"  derived   {step.base.name}.{step.derivation}({changes})"
    for field, item in step.inputs:
        milestone = "" if item.milestone is None else f" at step {item.milestone:,}"
        yield f"  input     {field} = {item.step.name}{milestone} ({item.digest[:8]}, {plan[item.step.name].verdict})"


def _reason(name: str, reason: Reason, sources: SourceArchive) -> Iterator[str]:
    yield str(reason)
    yield from (f"  {line}" for line in reason.details())
    if isinstance(reason, Changed | Drifted):
        yield from _definitions(reason.difference, sources)
    if isinstance(reason, Drifted):
        yield f'  accept {name} --because "..." if it makes the same output; bump {name} to make it again'
    if isinstance(reason, Running) and not reason.is_queued and not reason.does:
        yield f"  `log {reason.name or name}` prints its log"


def _definitions(difference: object, sources: SourceArchive) -> Iterator[str]:
    if isinstance(difference, CodeChanged):
        for what, names in (("~", difference.changed), ("+", difference.added), ("-", difference.removed)):
            yield from (f"    {what} {definition}" for definition in names)
        lines = list(sources.diff(difference))
        yield from (f"    {line}" for line in lines[:MAX_SOURCE_LINES])
        if len(lines) > MAX_SOURCE_LINES:
            yield f"    ... {len(lines) - MAX_SOURCE_LINES} more lines; `diff STEP` shows all"


class Side(NamedTuple):
    """A side of a comparison."""

    name: str
    what: str
    """Its origin: "now", or when the record was made."""
    key: str
    document: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name} ({self.what}, {short_key(self.key)})"


def of_step(step: Step[Any]) -> Side:
    return Side(step.name, "now", step.key, step.identity)


def of_record(record: Record) -> Side:
    return Side(record.name, f"made {record.provenance.finished}", record.key, record.identity)


def find_record(records: Records, text: str) -> Record | None:
    """Return the record whose key begins with `text`; None if `text` is no beginning of a key, or no record has it.

    Raises:
        UserError: several records match.
    """
    digest, at, milestone = text.partition("@")
    if len(digest) < SHORTEST_PREFIX or set(digest) - set("0123456789abcdef"):
        return None
    found = sorted(key for key in records.committed_keys() if key.startswith(digest))
    if at:
        found = [key for key in found if key.partition("@")[2] == milestone]
    elif found and all(key.startswith(f"{found[0]}@") for key in found[1:]):
        found = found[:1]  # the output itself, before its milestones
    if len(found) > 1:
        listed = ", ".join(short_key(key) for key in found[:MAX_SHOWN])
        raise UserError(f"{text}: matches {len(found)} records ({listed}); give more digits, or the @milestone.")
    return records.get(found[0]) if found else None


def record_named(records: Records, graph: Graph, text: str) -> Record | None:
    """Return the record that `text` names by digest or as STEP@MILESTONE; None for a step's name, or if none matches.

    Raises:
        UserError: the step has not published this milestone, or several records match.
    """
    name, at, milestone = text.partition("@")
    if text in graph:
        return None
    if not at or name not in graph:
        return find_record(records, text)
    digest = graph.step(name).digest
    published = records.milestone_steps(digest)
    if milestone not in map(str, published):
        steps = ", ".join(map(str, published)) or "none"
        raise UserError(f"{text}: {name} has not published this milestone. Published with the present recipe: {steps}.")
    return records.get(f"{digest}@{milestone}")


def newest_hint(records: Records, name: str, command: str) -> str:
    """Return a sentence with the command for the newest output under `name`; "" if there is none."""
    made = newest_made(records, name)
    return "" if made is None else f" `{command} {short_key(made)}` shows the newest output under this name."


def newest_made(records: Records, name: str) -> str | None:
    """Return the key of the newest output under a name, whatever its identity."""
    keys = Siblings(records, records.labels(), records.committed_keys()).keys(name)
    return keys[0] if keys else None


def compare(old: Side, new: Side, graph: Graph, store: Store) -> Iterator[str]:
    """Yield the lines that `diff` prints: declarations, config, inputs down to what changed in them, and the source."""
    yield f"- {old}"
    yield f"+ {new}"
    found = differences(old.document, new.document)
    code = code_difference(old.document, new.document)
    if not found and code is None:
        yield "no difference"
        return
    causes = Causes(graph, Records(store))
    for difference in found:
        if isinstance(difference, InputChanged):
            above = causes.above(new.name, difference)
            if [cause.step for cause in above] == [new.name]:  # another input was chosen here
                yield f"  {render_difference(above[0].difference)}"
                continue
            yield f"  {render_difference(difference)}"
            yield from (f"      {render_changed((cause.step,), cause.difference)}" for cause in above)
        elif not isinstance(difference, CodeChanged):
            yield f"  {render_difference(difference)}"
    if code is not None:
        note = "" if any(isinstance(item, CodeChanged) for item in found) else " (not part of the identity)"
        yield f"  {render_difference(code)}{note}"
        yield ""
        yield from SourceArchive(store, graph.steps).diff(code)
