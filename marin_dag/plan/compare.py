"""Comparison: two identities side by side, and the lookup of records by digest, name or milestone."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.identity.diff import CodeChanged, InputChanged, code_difference, differences
from marin_dag.ledger.records import Record, Records
from marin_dag.ledger.source_archive import SourceDiffs
from marin_dag.plan.causes import Causes, Siblings
from marin_dag.plan.reasons import render_changed, render_difference, short_key
from marin_dag.store.store import Store

SHORTEST_PREFIX = 6
"""Fewer digits of a digest would often match two records, or be the name of a step."""
MAX_SHOWN = 6


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
    """Return a step with its present code and config."""
    return Side(step.name, "now", step.key, step.identity)


def of_record(record: Record) -> Side:
    """Return the identity that an output was made from."""
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
        yield from SourceDiffs(store, graph.steps).of(code)
