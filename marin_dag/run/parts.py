"""Parts of an output that another step is still making, read from the store."""

from typing import Any

from marin_dag.graph.context import Parts
from marin_dag.graph.inputs import Input
from marin_dag.ledger.lease import Leases
from marin_dag.ledger.records import COMMITS, Records, key_at
from marin_dag.record_key import key_of, milestone_of
from marin_dag.store.store import Store


def parts_of(growing: Input[Any], store: Store, *, after: int) -> Parts:
    """Return the parts numbered above `after`, and the whole if it is committed.

    A part is an immutable record of its own, numbered from 1; the record of the whole is complete in itself.
    """
    records = Records(store)
    digest = growing.digest
    # The lease first: a step that ends in between has committed everything before it released the lease.
    lease = Leases(store).state(digest)
    beat = None if lease is None or lease.is_sealed else f"{lease.number} {lease.updated}"

    def input_of(key: str, number: int | None) -> Input[Any]:
        record = records.get(key)
        result = type(growing.result).model_validate(record.result)
        path = store.url(record.output_path)
        return Input(growing.name, digest, path, result, milestone=number)

    numbers = {milestone_of(key_at(entry.path)) for entry in store.list(COMMITS, digest)}
    whole = input_of(digest, None) if None in numbers else None
    found = sorted(number for number in numbers if number is not None and number > after)
    parts = {number: input_of(key_of(digest, number), number) for number in found}
    return Parts(parts, whole, beat)
