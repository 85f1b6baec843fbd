"""Finished steps: the records of outputs that commands read."""

from typing import Any

from marin_dag.errors import UserError
from marin_dag.graph.inputs import Input
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.store.store import Store


def finished(store: Store, wanted: Step | Input[Any], command: str) -> Record:
    """Return the record of an output that `command` reads.

    Raises:
        UserError: the output is not there; names the command that makes it.
    """
    record = Records(store).find(wanted.key)
    if record is None:
        raise UserError(
            f"{command}: {wanted.name} is not done as the recipe is now. Run --until {wanted.name}, or see "
            f"`why {wanted.name}`."
        )
    return record
