"""show STEP: the config, result, files and provenance of an output; --json prints the record."""

import json
from collections.abc import Iterator
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.identity.diff import config_fields
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import Record, Records
from marin_dag.plan.compare import newest_hint, record_named
from marin_dag.quantities import counted
from marin_dag.store.store import Store


def _show(session: Session) -> int:
    graph = session.graph()
    records = Records(session.store)
    record = record_named(records, graph, session.step)
    if record is None:
        step = graph.step(session.step)
        record = records.find(step.key)
        if record is None:
            hint = newest_hint(records, step.name, "show")
            raise UserError(f"show {step.name}: no output ({step.key[:8]}); `why {step.name}` says why.{hint}")
    if session.parsed.json:
        print(record.model_dump_json(indent=1))
    else:
        print("\n".join(_lines(record, session.store)))
    return NOTHING_WOULD_RUN


def _lines(record: Record, store: Store) -> Iterator[str]:
    made = record.provenance
    code = record.identity["code"]
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
    yield from (f"  {field} = {_rendered(value)}" for field, value in _leaves("", record.result))
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


def _leaves(field: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each value of a result under its dotted field."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{field}.{name}" if field else name, inner)
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for index, inner in enumerate(value):
            yield from _leaves(f"{field}[{index}]", inner)
    else:
        yield field, value


def _rendered(value: Any) -> str:
    """Return six digits of a float, and JSON of anything else; the record has all digits."""
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def dirty_note(made: Provenance) -> str:
    """Return the text that follows the commit: how the code differed from it, or nothing."""
    if not made.is_dirty:
        return ""
    return f", with changes (sha256 {(made.dirty_diff or 'unknown')[:16]})"


COMMAND = Command(
    "show",
    "STEP",
    "show the config, files and provenance of a finished step; --json: its record",
    _show,
    1,
    1,
    options=("--set", "--json"),
)
