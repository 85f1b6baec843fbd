"""Data remarks: phases that leave batches of their data out."""

from collections.abc import Mapping

from marin_dag.plan.remarks import Remark
from marin_dag.quantities import in_short
from steps.phase_timeline import RunPhase


def data_remarks(legs: Mapping[str, RunPhase]) -> dict[str, list[Remark]]:
    """By phase; of those that leave nothing out there is no entry."""
    return {name: [_of(leg)] for name, leg in legs.items() if leg.settings.skip_batches}


def _of(leg: RunPhase) -> Remark:
    text = (
        f"skip_batches is {leg.settings.skip_batches:,}: as it begins, {in_short(leg.skipped_tokens)} tokens of its "
        "data are left out, which count as read and make no update"
    )
    return Remark(text, {"skip_batches": "0"})
