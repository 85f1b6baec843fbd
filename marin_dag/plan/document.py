"""Plan document: a plan as JSON for other programs, under a schema with a version.

Within one version fields are added, never renamed, retyped or taken away, and no verdict is split in two.
docs/explaining.md says what each means.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from marin_dag.graph.cost import Cost
from marin_dag.plan.plan import Plan, Root
from marin_dag.plan.planned import PlannedStep, Verdict
from marin_dag.plan.reasons import Reason, render, render_changed
from marin_dag.plan.remarks import Remark
from marin_dag.store.store import Store

SCHEMA = "marin_dag.plan/2"


def plan_document(
    plan: Plan,
    *,
    pipeline: str,
    store: Store,
    exit_code: int,
    remarks: Mapping[str, Sequence[Remark]],
    copies: Mapping[str, Any] | None,
    commands: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """The document of `plan`: causes first, then steps, each with its `remarks`, totals, the outputs that a
    second prefix lacks, and the commands to go on."""
    selected = [planned for planned in plan.steps if planned.is_selected]
    return {
        "schema": SCHEMA,
        "pipeline": pipeline,
        "prefix": store.prefix,
        "exit_code": exit_code,
        "causes": [_cause(root) for root in plan.roots],
        "steps": [_step(planned, remarks.get(planned.name, ())) for planned in plan.steps],
        "totals": {
            "steps": len(plan.steps),
            "selected": len(selected),
            "will_run": len(plan.will_run),
            "verdicts": {str(verdict): sum(step.verdict is verdict for step in selected) for verdict in Verdict},
            "cost": _cost(plan.cost),
        },
        "open_questions": dict(plan.open_questions),
        "opaque": sorted({line for planned in plan.steps for line in planned.step.identity["code"]["opaque"]}),
        "copies": None if copies is None else dict(copies),
        "commands": [{"what": what, "command": command} for what, command in commands],
    }


def _cause(root: Root) -> dict[str, Any]:
    return {
        "text": render_changed(root.made_at, root.difference),
        "made_at": list(root.made_at),
        "difference": _typed(root.difference),
        "follow": list(root.follow),
    }


def _step(planned: PlannedStep, remarks: Sequence[Remark]) -> dict[str, Any]:
    step = planned.step
    return {
        "name": step.name,
        "kind": step.identity["kind"],
        "verdict": str(planned.verdict),
        "is_selected": planned.is_selected,
        "will_run": planned.will_run,
        "digest": step.digest,
        "milestone": step.until,
        "key": step.key,
        "policy": step.policy,
        "version": step.version,
        "inputs": [{"field": field, "step": item.step.name, "key": item.key} for field, item in step.inputs],
        "reasons": [_reason(reason) for reason in planned.reasons],
        "remarks": [{"text": remark.text, "cure": dict(remark.cure)} for remark in remarks],
        "compared_with": None if planned.compared is None else planned.compared._asdict(),
        "cost": _cost(planned.cost),
        "saved": _cost(planned.saved),
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {**_typed(reason), "text": render(reason)}


def _typed(value: Any) -> dict[str, Any]:
    """A reason or a difference with its type in snake case; one inside another likewise."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    plain = {name: _typed(item) if dataclasses.is_dataclass(item) else item for name, item in fields.items()}
    return {"type": re.sub(r"(?<!^)(?=[A-Z])", "_", type(value).__name__).lower(), **plain}


def _cost(cost: Cost) -> dict[str, float | None]:
    return dataclasses.asdict(cost)
