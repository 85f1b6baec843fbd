"""ls [GLOB...]: matching steps with digest and output, and the forks among them."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, SELECTION, Command, Session
from marin_dag.ledger.records import Record, Records
from marin_dag.plan.planned import PlannedStep, Verdict

NUM_READERS = 16


def _list(session: Session) -> int:
    plan = session.plan()
    patterns = session.parsed.names
    wanted = {name for pattern in patterns for name in plan.graph.matching(pattern, "ls")} if patterns else None
    listed = [planned for planned in plan.steps if planned.is_selected and (wanted is None or planned.name in wanted)]
    names = {planned.name for planned in listed}
    kept = Records(session.store)
    with ThreadPoolExecutor(NUM_READERS) as pool:
        records = list(pool.map(lambda planned: _record(kept, planned), listed))
    forks = [fork for fork in session.forks.all() if fork.name in names]
    if session.parsed.json:
        steps = [_document(session, planned, record) for planned, record in zip(listed, records, strict=True)]
        document = {"schema": "marin_dag.ls/1", "steps": steps, "forks": [fork.model_dump() for fork in forks]}
        print(json.dumps(document, indent=1))
        return NOTHING_WOULD_RUN
    for planned, record in zip(listed, records, strict=True):
        step = planned.step
        where = "" if record is None else f"  {session.store.url(record.output_path)}"
        at = "" if step.until is None else f"@{step.until}"
        print(f"{step.name:<36} {planned.verdict:<8} {step.digest[:8]}{at}{where}")
    for fork in forks:
        changes = ", ".join(f"{field}={text}" for field, text in fork.changes.items())
        because = f": {fork.reason}" if fork.reason else ""
        print(f"fork {fork.name} of {fork.base} with {changes}, by {fork.author}, {fork.created[:10]}{because}")
    print(f"outputs in {session.store.prefix}")
    return NOTHING_WOULD_RUN


def _record(records: Records, planned: PlannedStep) -> Record | None:
    return records.find(planned.step.key) if planned.verdict in (Verdict.DONE, Verdict.DRIFTED) else None


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


COMMAND = Command(
    "ls",
    "[GLOB...]",
    "list steps (those that match GLOB): verdict, digest, output; and how forks were made",
    _list,
    0,
    100,
    options=("--set", "--json", *SELECTION),
)
