"""Replicates: a bootstrap as a table, from which predictions are made without another fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from runtime.scaling.bootstrap import Replicate
from runtime.scaling.curves import TaskCurve
from runtime.scaling.law import ScalingLaw

LAW = ("irreducible", "parameter_factor", "token_factor", "alpha", "beta")
CURVE = ("chance", "height", "middle", "width")


def replicates_table(replicates: Sequence[Replicate], curves: Mapping[str, Sequence[TaskCurve]]) -> pa.Table:
    """Return a row for each replicate: the law, the noise of a run, and each task's curve by the task's measure."""
    columns: dict[str, list[float]] = {name: [getattr(each.law, name) for each in replicates] for name in LAW}
    columns["noise"] = [each.noise for each in replicates]
    for measure, of_task in curves.items():
        columns |= {f"{measure}: {name}": [getattr(each, name) for each in of_task] for name in CURVE}
    return pa.table(columns)


def replicates_in(table: pa.Table) -> tuple[Replicate, ...]:
    """Return the replicates of a table."""
    return tuple(Replicate(ScalingLaw(*(row[name] for name in LAW)), row["noise"]) for row in table.to_pylist())


def curves_in(table: pa.Table, measure: str) -> list[TaskCurve]:
    """Return the curve of a task in each replicate."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return [TaskCurve(*(row[f"{measure}: {name}"] for name in CURVE)) for row in rows]
