"""Plan document: the schema that other programs depend on."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from marin_dag.identity.diff import CodeChanged, Difference
from marin_dag.plan.reasons import OfAttempt, Reason
from tests.marin_dag.workbench import Workbench

PAGE = Path(__file__).parents[3] / "docs/reference/plans.md"
COST = {"work", "bytes_read", "bytes_written"}
STEP = {"name", "kind", "verdict", "is_selected", "will_run", "digest", "milestone", "key", "policy", "version"} | {
    "inputs",
    "reasons",
    "warnings",
    "compared_with",
    "cost",
    "saved",
}


VERDICTS = ["done", "missing", "begun", "stale", "drifted", "running", "queued", "failed", "blocked"]
RUNS_ON: dict[str, Any] = {"host": str, "pid": int, "since": str, "done": int | None}
REASONS: dict[str, dict[str, Any]] = {
    "NeverMade": {},
    "RecordGone": {},
    "NotSelected": {},
    "Forced": {},
    "Changed": {"steps": tuple[str, ...], "difference": Difference, "is_here": bool},
    "Continues": {"milestone": int, "until": int},
    "Resumes": {"milestone": int, "until": int},
    "Follows": {"step": str, "milestone": int},
    "KeptParts": {"count": int},
    "MilestoneMissing": {
        "wanted": int,
        "nearest": int | None,
        "field": str,
        "saved": int | None,
        "stop": str,
    },
    "MilestoneOutsideRun": {"wanted": int, "begin": int, "end": int, "field": str, "stop": str},
    "Drifted": {"version": str, "difference": CodeChanged},
    "Accepted": {"author": str, "because": str, "created": str, "definitions": tuple[str, ...]},
    "RunsAgain": {"host": str, "pid": int, "since": str},
    "Warned": {"text": str, "samples": tuple[str, ...], "file": str},
    "Running": RUNS_ON
    | {"name": str, "total": int | None, "unit": str, "saved": int | None, "parts": int, "is_queued": bool}
    | {"does": str},
    "MilestoneNotRequested": RUNS_ON
    | {"wanted": int, "field": str, "digest": str, "step": str, "takes_requests": bool},
    "Failed": {"attempts": int, "attempt": str, "error": str, "log_path": str},
    "Stopped": {"author": str, "because": str, "requested": str, "answer": str},
    "Silent": {"host": str, "pid": int, "seconds": int, "does": str},
    "BlockedBy": {"steps": tuple[tuple[str, str], ...]},
    "SameAs": {"step": str},
}
"""The reasons of `marin_dag.plan/5`. A change here, other than a new entry, needs a new version of the schema."""


def document(bench: Workbench, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, output = bench("plan", "--json", *arguments)
    return code, json.loads(output)


def test_a_document_has_the_fields_of_its_schema(bench: Workbench) -> None:
    code, plan = document(bench)
    assert (code, plan["exit_code"]) == (2, 2)
    assert list(plan) == [
        *("schema", "pipeline", "prefix", "exit_code", "causes", "steps", "totals"),
        *("open_questions", "opaque", "uncovered", "copies", "commands"),
    ]
    assert plan["schema"] == "marin_dag.plan/5"
    assert all(set(step) == STEP and set(step["cost"]) == set(step["saved"]) == COST for step in plan["steps"])
    assert plan["totals"]["verdicts"]["missing"] == plan["totals"]["will_run"] == 6
    assert plan["totals"]["cost"]["work"]["tokens"] == 30_000 and plan["copies"] is None
    assert [command["what"] for command in plan["commands"]] == ["run it"]
    assert plan["commands"][0]["command"].endswith("--backend local"), "the line runs; it does not plan again"


def test_verdicts_and_reasons_are_those_of_its_schema(bench: Workbench) -> None:
    _, plan = document(bench)
    assert list(plan["totals"]["verdicts"]) == VERDICTS
    kinds = [*Reason.__subclasses__(), *OfAttempt.__subclasses__()]
    fields = {kind.__name__: {field.name: field.type for field in dataclasses.fields(kind)} for kind in kinds}
    assert {name: found for name, found in fields.items() if name != "OfAttempt"} == REASONS


def test_the_reference_lists_each_reason_with_its_fields() -> None:
    listed = {}
    for line in PAGE.read_text(encoding="utf-8").partition("| reason `type` |")[2].splitlines()[2:]:
        if not line.startswith("|"):
            break
        names, fields = (re.findall(r"`(\w+)`", cell) for cell in line.strip("|").split("|"))
        listed |= {name: set(fields) for name in names}
    assert listed == {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): set(fields) for name, fields in REASONS.items()}


def test_a_dry_run_prints_the_same_document_and_writes_nothing(bench: Workbench) -> None:
    assert json.loads(bench("--dry-run", "--json")[1]) == document(bench)[1]
    assert not bench.prefix.exists()


def test_the_exit_code_is_0_for_nothing_to_do_and_1_for_drift(bench: Workbench) -> None:
    bench()
    code, plan = document(bench)
    assert (code, plan["totals"]["will_run"], plan["causes"]) == (0, 0, [])
    bench.edit("FACTOR = 2", "FACTOR = 3")
    code, plan = document(bench)
    assert code == 1
    assert [command["what"] for command in plan["commands"]] == ["ask why", "needs you", "same output", "make again"]
    (drifted,) = [step for step in plan["steps"] if step["verdict"] == "drifted"]
    (reason,) = drifted["reasons"]
    assert reason["type"] == "drifted" and reason["version"] == "1"
    assert reason["difference"]["type"] == "code_changed"
    assert reason["difference"]["changed"] == ["workbench_recipe.FACTOR"]


def test_a_missing_copy_has_exit_code_2(bench: Workbench, tmp_path: Path) -> None:
    assert bench()[0] == 0
    place = str(tmp_path / "there")
    code, plan = document(bench, "--copy-to", place)
    assert (code, plan["exit_code"], plan["totals"]["will_run"]) == (2, 2, 0)
    assert plan["copies"] == {
        "prefix": place,
        "num_outputs": 6,
        "num_left": 6,
    }
    assert [command["what"] for command in plan["commands"]] == ["copy them"]
    assert f"--copy-to {place}" in plan["commands"][0]["command"]
    assert bench("--copy-to", place)[0] == 0
    code, plan = document(bench, "--copy-to", place)
    assert (code, plan["copies"]["num_left"], plan["commands"]) == (0, 0, [])


def test_root_causes_list_the_stale_steps_and_reasons_are_typed(bench: Workbench) -> None:
    bench()
    _, plan = document(bench, "--set", "first.rate=2")
    (cause,) = plan["causes"]
    assert cause == {
        "text": "first: rate: 0.5 -> 2.0",
        "made_at": ["first"],
        "difference": {"type": "field_changed", "field": "rate", "old": "0.5", "new": "2.0"},
        "follow": ["first", "second", "third"],
    }
    steps = {step["name"]: step for step in plan["steps"]}
    (reason,) = steps["third"]["reasons"]
    assert (reason["type"], reason["is_here"], reason["steps"]) == ("changed", False, ["first"])
    assert steps["third"]["inputs"][0] == {"field": "start", "step": "second", "key": steps["second"]["key"]}
    assert steps["first"]["compared_with"]["num_compared"] == 1


def test_unselected_steps_are_marked(bench: Workbench) -> None:
    _, plan = document(bench, "--until", "count")
    assert plan["totals"]["selected"] == 3
    assert [step["name"] for step in plan["steps"] if not step["is_selected"]] == ["first", "second", "third"]
