"""A step's result in a store, without running the step."""

from pydantic import BaseModel

from marin_dag.graph.step import Step
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import FileEntry, Record, Records, attempt_path
from marin_dag.store.store import Store


def commit(
    store: Store,
    step: Step,
    result: BaseModel,
    output_path: str | None = None,
    manifest: tuple[FileEntry, ...] = (),
) -> Record:
    """Record `result` as that of the step; return the record."""
    attempt = "20260101-000000-00000000"
    provenance = Provenance(git_commit=None, is_dirty=None, argv=(), host="h", environment="e")
    record = Record(
        key=step.key, digest=step.digest, name=step.name, kind=step.kind.name, identity=step.identity,
        result=result.model_dump(mode="json"), output_path=output_path or attempt_path(step.name, step.digest, attempt),
        attempt=attempt, manifest=manifest, provenance=provenance,
    )  # fmt: skip
    Records(store).commit(record)
    return record
