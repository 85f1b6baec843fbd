"""tasks: list the tasks that a recipe can name, with form, chance, items and missing settings."""

from collections.abc import Iterable, Mapping
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Session, command
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from pipelines.output import aligned
from runtime.evaluation.definitions import GENERATED, read_facts
from runtime.evaluation.registry import (
    CHOICES,
    definitions,
    groups,
    installed,
    is_packaged,
    items_of,
    members,
)
from runtime.evaluation.suites import SUITES
from steps.lm_eval import LmEvalConfig

FORMS = {"multiple_choice": "choice", GENERATED: "written", "loglikelihood": "likelihood"}


@command("tasks", "list the tasks that a recipe can score: form, shots, chance, items, suites")
def tasks(session: Session) -> int:
    return show_tasks(session, session.graph().steps)


def show_tasks(session: Session, steps: Iterable[Step[Any]]) -> int:
    """Print the usual tasks, those of the steps' own, and what the steps score; return the exit code."""
    configs = [step.config for step in steps if isinstance(step.config, LmEvalConfig)]
    num_items = _num_items(session, configs)
    names = sorted({*groups(), *definitions()} - {member for group in groups().values() for member in group})
    own = {task.name: task for config in configs for task in config.tasks if config.own_items is not None}
    rows = [["task", "form", "shots", "chance", "items", "missing", "suites"]]
    rows += [_row(name, num_items) for name in names if name not in own]
    rows += [[name, "own", str(task.num_fewshot), "", "", "", ""] for name, task in own.items()]
    print("\n".join(aligned(rows, left=(0, 1, 5, 6))))
    scored = dict.fromkeys(task.label for config in configs for task in config.tasks)
    print(f"\nthe recipe scores {', '.join(scored) or 'none'}")
    print("any other task of lm-eval: TaskSpec(NAME, items=FILE); your own task: TaskSpec(FILE.yaml, items=FILE)")
    return NOTHING_WOULD_RUN


def _row(name: str, num_items: Mapping[str, int]) -> list[str]:
    names = members(name)
    facts = read_facts(installed() / definitions()[names[0]])
    choices = facts.num_choices or CHOICES.get(items_of(name))
    there = [items_of(member) for member in names if items_of(member) in num_items]
    has_items = bool(there) or all(map(is_packaged, names))
    missing = {"items=FILE": not has_items, "--run-generated-code": facts.runs_code}
    return [
        name,
        FORMS[facts.output_type],
        f"{facts.num_fewshot}",
        f"{1 / choices:.2f}" if choices else "",
        f"{sum(num_items[each] for each in there):,}" if there else "",
        ", ".join(setting for setting, is_missing in missing.items() if is_missing),
        ", ".join(suite for suite, specs in SUITES.items() if any(spec.task == name for spec in specs)),
    ]


def _num_items(session: Session, configs: Iterable[LmEvalConfig]) -> Mapping[str, int]:
    """Return the number of items by name, from finished steps."""
    records = Records(session.store)
    steps = {item.step for config in configs if (item := getattr(config, "items", None)) is not None}
    done = [record for step in steps if (record := records.find(step.digest)) is not None]
    return {name: number for record in done for name, number in record.result["num_items"].items()}
