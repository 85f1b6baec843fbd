"""Plan document: a plan as JSON for other programs, under a schema with a version.

Within one version, fields are added but never renamed, retyped or removed, and no verdict is split in two.
docs/reference/plans.md defines each field.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from marin_dag.plan.lint import LintWarning
from marin_dag.plan.plan import Plan, Root
from marin_dag.plan.planned import PlannedStep, Verdict
from marin_dag.plan.reasons import render_changed
from marin_dag.store.store import Store

SCHEMA = "marin_dag.plan/5"


def plan_document(
    plan: Plan,
    *,
    pipeline: str,
    store: Store,
    exit_code: int,
    warnings: Mapping[str, Sequence[LintWarning]],
    copies: Mapping[str, Any] | None,
    commands: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Return the document: root causes, steps with their `warnings`, totals, outputs that a second prefix lacks, and
    the commands to continue."""
    selected = [planned for planned in plan.steps if planned.is_selected]
    return {
        "schema": SCHEMA,
        "pipeline": pipeline,
        "prefix": store.prefix,
        "exit_code": exit_code,
        "causes": [_cause(root) for root in plan.roots],
        "steps": [_step(planned, warnings.get(planned.name, ())) for planned in plan.steps],
        "totals": {
            "steps": len(plan.steps),
            "selected": len(selected),
            "will_run": len(plan.will_run),
            "verdicts": {str(verdict): sum(step.verdict is verdict for step in selected) for verdict in Verdict},
            "cost": dataclasses.asdict(plan.cost),
        },
        "open_questions": dict(plan.open_questions),
        "opaque": sorted({line for planned in plan.steps for line in planned.step.identity["code"]["opaque"]}),
        "uncovered": {name: list(lines) for name, lines in plan.uncovered.items()},
        "copies": copies,
        "commands": [{"what": what, "command": command} for what, command in commands],
    }


def _cause(root: Root) -> dict[str, Any]:
    return {
        "text": render_changed(root.made_at, root.difference),
        "made_at": list(root.made_at),
        "difference": _typed(root.difference),
        "follow": list(root.follow),
    }


def _step(planned: PlannedStep, warnings: Sequence[LintWarning]) -> dict[str, Any]:
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
        "reasons": [{**_typed(reason), "text": str(reason)} for reason in planned.reasons],
        "warnings": [{"text": warning.text, "cure": dict(warning.cure)} for warning in warnings],
        "compared_with": None if planned.compared is None else planned.compared._asdict(),
        "cost": dataclasses.asdict(planned.cost),
        "saved": dataclasses.asdict(planned.saved),
    }


def _typed(value: Any) -> dict[str, Any]:
    """Return the fields of a reason or difference, nested ones too, with its type in snake case."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    plain = {name: _typed(item) if dataclasses.is_dataclass(item) else item for name, item in fields.items()}
    return {"type": re.sub(r"(?<!^)(?=[A-Z])", "_", type(value).__name__).lower(), **plain}
