"""Commands why, diff, show, log and ls: facts about steps and their outputs."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, SELECTION, Session, command
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.identity.diff import config_fields
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import Record, Records, attempt_path
from marin_dag.plan.explain import Side, compare, explain, newest_hint, newest_made, of_record, of_step, record_named
from marin_dag.plan.planned import PlannedStep, Verdict
from marin_dag.quantities import counted
from marin_dag.record_key import short_key
from marin_dag.store.store import Entry, Store


@command("why STEP", "explain STEP's verdict, down to the changed field or function", "--set", *SELECTION)
def why(session: Session) -> int:
    plan = session.plan(session.step)
    print(explain(plan, session.step, session.store))
    for what, line in session.publish_commands([plan[session.step]]):
        print(f"  {what:<9} {line}")
    return NOTHING_WOULD_RUN


@command("diff A [B]", "what differs between two steps or digests; without B, STEP now from its last output", "--set")
def diff(session: Session) -> int:
    names, graph, records = session.parsed.names, session.graph(), Records(session.store)
    if len(names) == 1:
        step = graph.step(names[0])
        made = newest_made(records, step.name)
        if made is None:
            raise UserError(
                f"diff {step.name}: no output was made under this name; name a second step to compare with."
            )
        old, new = of_record(records.get(made)), of_step(step)
    else:
        old, new = (_side(text, graph, records) for text in names)
    for line in compare(old, new, graph, session.store):
        print(line)
    return NOTHING_WOULD_RUN


def _side(text: str, graph: Graph, records: Records) -> Side:
    record = record_named(records, graph, text)
    return of_step(graph.step(text)) if record is None else of_record(record)


@command("show STEP", "show the config, files and provenance of a finished step; --json: its record", "--set --json")
def show(session: Session) -> int:
    graph, records = session.graph(), Records(session.store)
    record = _found(records, graph, session.step)
    if record is None:
        step = graph.step(session.step)
        hint = newest_hint(records, step.name, "show")
        raise UserError(f"show {step.name}: no output ({step.key[:8]}); `why {step.name}` says why.{hint}")
    print(record.model_dump_json(indent=1) if session.parsed.json else "\n".join(_lines(record, session.store)))
    return NOTHING_WOULD_RUN


def _found(records: Records, graph: Graph, text: str) -> Record | None:
    """Return the record that `text` names, or that of the step with this name; None if the step is not done."""
    named = record_named(records, graph, text)
    return records.find(graph.step(text).key) if named is None else named


def _lines(record: Record, store: Store) -> Iterator[str]:
    made, code = record.provenance, record.identity["code"]
    at = "" if record.milestone is None else f" at step {record.milestone:,}"
    yield f"{record.name}{at}"
    yield f"  digest       {record.digest}"
    yield f"  kind         {record.identity['kind']}"
    version = "" if code["policy"] == "tracked" else f", version {code['version']}"
    yield f"  code         {code['policy']}{version}; fingerprint {code['fingerprint'][:12]}"
    yield from (f"  package      {name} {version}" for name, version in code["packages"].items())
    yield "config"
    yield from (f"  {field} = {value}" for field, value in config_fields(record.identity))
    yield "result"
    yield from (f"  {field} = {json.dumps(value, ensure_ascii=False)}" for field, value in record.result.items())
    for warning in record.warnings:
        yield from ("warning", *(f"  {line}" for line in warning.lines(store.url(record.output_path))))
    size = sum(file.size_in_bytes for file in record.manifest)
    yield f"output  {store.url(record.output_path)}"
    yield from (f"  {file.size_in_bytes:>14,}  {file.crc32c}  {file.path}" for file in record.manifest)
    yield f"  {size:>14,}  in {counted(len(record.manifest), 'file')}"
    yield "made"
    yield f"  started      {made.started}"
    yield f"  finished     {made.finished}"
    yield f"  host         {made.host}"
    yield from (f"  {name.replace('_', ' '):<12} {how}" for name, how in made.computed_with.items())
    yield f"  attempt      {record.attempt}, lease epoch {made.lease_epoch}"
    yield f"  git commit   {made.git_commit or 'none: the script lies in no repository'}{dirty_note(made)}"
    yield f"  lock file    {made.lock or 'none'}"
    yield f"  environment  {store.url(made.environment)}"
    yield f"  command      {' '.join(made.argv)}"


def dirty_note(made: Provenance) -> str:
    if not made.is_dirty:
        return ""
    return f", with changes (sha256 {(made.dirty_diff or 'unknown')[:16]})"


@command("log STEP", "print the log of the attempt that made the output, or of the newest attempt", "--set")
def log(session: Session) -> int:
    graph, records = session.graph(), Records(session.store)
    found = _found(records, graph, session.step)
    if found is None:
        step = graph.step(session.step)
        newest = newest_log(session.store, step.name, step.digest)
        path = None if newest is None else newest.path
    else:
        # The folder's name has the digest of the attempt, which may differ from the step's digest now.
        path = f"{found.output_path.partition(found.attempt)[0]}{found.attempt}.log"
    try:
        data = None if path is None else session.store.read(path)
    except FileNotFoundError:
        data = None
    if path is None or data is None:
        gone = f"; {session.store.url(path)} is gone" if path else ""
        before = newest_hint(records, session.step, "log") if session.step in graph else ""
        raise UserError(f"log {session.step}: no attempt has left a log here{gone}.{before}")
    print(session.store.url(path), file=sys.stderr)
    print(data.decode(errors="replace"), end="")
    return NOTHING_WOULD_RUN


def newest_log(store: Store, name: str, digest: str) -> Entry | None:
    """Return the log of a step's newest attempt; None if there is none."""
    folder = attempt_path(name, digest, "")
    entries = store.list(folder.rstrip("/"))
    logs = [entry for entry in entries if entry.path.endswith(".log") and "/" not in entry.path.removeprefix(folder)]
    return max(logs, key=lambda entry: (entry.updated, entry.path), default=None)


@command(
    "ls [GLOB...]",
    "list steps (those that match GLOB): verdict, digest, output; and how forks were made",
    "--set --json",
    *SELECTION,
)
def ls(session: Session) -> int:
    plan = session.plan()
    patterns = session.parsed.names
    wanted = {name for pattern in patterns for name in plan.graph.matching(pattern, "ls")} if patterns else None
    listed = [planned for planned in plan.steps if planned.is_selected and (wanted is None or planned.name in wanted)]
    names = {planned.name for planned in listed}
    made = {planned.step.key for planned in listed if planned.verdict in (Verdict.DONE, Verdict.DRIFTED)}
    records = Records(session.store).find_all(made)
    forks = [fork for fork in session.forks.all() if fork.name in names]
    if session.parsed.json:
        steps = [_document(session, planned, records.get(planned.step.key)) for planned in listed]
        document = {"schema": "marin_dag.ls/1", "steps": steps, "forks": [fork.model_dump() for fork in forks]}
        print(json.dumps(document, indent=1))
        return NOTHING_WOULD_RUN
    for planned in listed:
        step, record = planned.step, records.get(planned.step.key)
        where = "" if record is None else f"  {session.store.url(record.output_path)}"
        print(f"{step.name:<36} {planned.verdict:<8} {short_key(step.key)}{where}")
    for fork in forks:
        changes = ", ".join(f"{field}={text}" for field, text in fork.changes.items())
        because = f": {fork.reason}" if fork.reason else ""
        print(f"fork {fork.name} of {fork.base} with {changes}, by {fork.author}, {fork.created[:10]}{because}")
    print(f"outputs in {session.store.prefix}")
    return NOTHING_WOULD_RUN


def _document(session: Session, planned: PlannedStep, record: Record | None) -> dict[str, Any]:
    step = planned.step
    return {
        "name": step.name,
        "verdict": str(planned.verdict),
        "digest": step.digest,
        "milestone": step.until,
        "output": None if record is None else session.store.url(record.output_path),
        "size_in_bytes": None if record is None else sum(file.size_in_bytes for file in record.manifest),
        "finished": None if record is None else record.provenance.finished,
        "result": None if record is None else record.result,
    }
