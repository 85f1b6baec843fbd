"""Parts: finished parts of an output that is still being made, for a step that started on the first of them.

A part is an immutable record of its own, `commits/<digest>@<number>.json`, numbered from 1 in the order of publication.
The whole output follows under `commits/<digest>.json`, complete in itself.
"""

from typing import Any

from marin_dag.graph.context import Parts
from marin_dag.graph.inputs import Input
from marin_dag.ledger.lease import Leases
from marin_dag.ledger.records import COMMITS, Records, key_at
from marin_dag.store.store import Store


def parts_of(growing: Input[Any], store: Store, *, after: int) -> Parts:
    """Return the parts numbered above `after`, and the whole if it is committed.

    Two listings, and a read for each new record.
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
