"""Parts of an output that another step is still making, read from the store."""

from typing import Any

from marin_dag.graph.context import Parts
from marin_dag.graph.inputs import Input
from marin_dag.ledger.lease import Leases
from marin_dag.ledger.records import COMMITS, Records, key_at
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

    keys = {key_at(entry.path) for entry in store.list(COMMITS, digest)}
    numbers = sorted(int(key.partition("@")[2]) for key in keys if "@" in key)
    whole = input_of(digest, None) if digest in keys else None
    parts = {number: input_of(f"{digest}@{number}", number) for number in numbers if number > after}
    return Parts(parts, whole, beat)
