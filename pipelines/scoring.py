"""Steps for tasks of lm-eval: one for each suite, and one for each task outside a suite or with its own rows."""

import argparse
import contextlib
import contextvars
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from marin_dag.graph.resources import Cpu, Gpu, Tpu
from marin_dag.graph.step import Step
from pipelines.sources import WHEELS, evaluation_items_step
from runtime.evaluation.definitions import files_of
from runtime.evaluation.instructions import checks_instructions
from runtime.evaluation.suites import TaskSpec, tasks_of
from runtime.evaluation.task import Task
from steps.download import DownloadConfig, DownloadResult, download
from steps.fetch import Fetch, files_in
from steps.gold_answers import GoldAnswersConfig, GoldAnswersResult, gold_answers
from steps.lm_eval import LmEvalConfig, LmEvalResult, lm_eval

_RUN_GENERATED_CODE = contextvars.ContextVar("run_generated_code", default=False)


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the option that `generated_code` takes."""
    what = "score tasks that run code which the model writes, such as HumanEval"
    parser.add_argument("--run-generated-code", action="store_true", help=what)


@contextlib.contextmanager
def generated_code(is_allowed: bool) -> Iterator[None]:
    """Set whether steps that are built inside may run code that a model writes, unless their fields set it."""
    token = _RUN_GENERATED_CODE.set(is_allowed)
    try:
        yield
    finally:
        _RUN_GENERATED_CODE.reset(token)


def scoring_parts(
    name: str,
    export: Step[Any],
    suites: Sequence[Sequence[TaskSpec]],
    *,
    items: Step[Any] | None,
    resources: Cpu | Gpu | Tpu | None,
    **fields: Any,
) -> dict[str, Step[LmEvalResult]]:
    """Return the scoring steps by part; the name of a single step is `name`.

    Args:
        name: name of all scores together.
        export: an `hf_export` step.
        suites: tasks that share a step, except tasks with their own rows.
        items: step with the items of tasks without their own rows.
        resources: the machine of each step.
        fields: other fields of `LmEvalConfig`.
    """
    fields = {"run_generated_code": _RUN_GENERATED_CODE.get(), **fields}
    inputs = _task_inputs(PurePosixPath(name).name, suites, items)
    configs = {part: LmEvalConfig(export=export, **of_part, **fields) for part, of_part in inputs.items()}
    return {
        part: lm_eval(name if len(configs) == 1 else f"{name}/{part}", config, resources=resources)
        for part, config in configs.items()
    }


def answer_steps(
    name: str, suites: Sequence[Sequence[TaskSpec]], tokenizer: Step[Any], *, items: Step[Any] | None, limit: int | None
) -> tuple[Step[GoldAnswersResult], ...]:
    """Return the steps with the right answers of tasks, divided as in `scoring_parts`."""
    inputs = _task_inputs(name, suites, items)
    return tuple(
        gold_answers(
            name if len(inputs) == 1 else f"{name}/{part}", GoldAnswersConfig(tokenizer=tokenizer, limit=limit, **each)
        )
        for part, each in inputs.items()
    )


def _task_inputs(name: str, suites: Sequence[Sequence[TaskSpec]], items: Step[Any] | None) -> dict[str, dict[str, Any]]:
    """Return the fields of `TaskInputs` by part; `name` begins the names of downloads."""
    parts: dict[str, dict[str, Any]] = {}
    for suite in suites:
        shared = tuple(task for spec in suite if spec.items is None for task in tasks_of(spec))
        if shared:
            part = _free(_label(shared), parts)
            shared_items = evaluation_items_step() if items is None else items
            parts[part] = {"items": shared_items, "tasks": shared, **_sentence_model(f"{name}/{part}", *shared)}
        for spec in (spec for spec in suite if spec.items is not None):
            tasks = tasks_of(spec)
            part = _free(_label(tasks), parts)
            place = f"{name}/{part}"
            parts[part] = {"tasks": tasks, **_own_inputs(place, spec), **_sentence_model(place, *tasks)}
    return parts


def _label(tasks: Sequence[Task]) -> str:
    return tasks[0].label if len(tasks) == 1 else f"{tasks[0].label}-and-{len(tasks) - 1}"


def _free(label: str, taken: Collection[str]) -> str:
    """Return a name that no other part has."""
    number, found = 1, label
    while found in taken:
        number, found = number + 1, f"{label}-{number + 1}"
    return found


def _sentence_model(name: str, *tasks: Task) -> dict[str, Step[DownloadResult]]:
    if not any(map(checks_instructions, tasks)):
        return {}
    config = DownloadConfig(fetch=WHEELS["llama-index-core"])
    return {"sentence_model": download(f"download/{name}/sentence_model", config)}


def _own_inputs(name: str, spec: TaskSpec) -> dict[str, Step[DownloadResult]]:
    """Return the steps that bring a task's own rows and definitions, by field of the config.

    Each export has its own such steps, since two steps of a graph cannot share a name. Equal steps share an output.
    """
    fetches: dict[str, Fetch] = {"own_items": _rows(str(spec.items))}
    if spec.fewshot_items is not None:
        fetches["own_fewshot_items"] = _rows(spec.fewshot_items)
    if spec.is_own:
        path = Path(spec.task)
        fetches["own_definitions"] = files_in(str(path.parent), *map(str, files_of(path)))
    return {
        field: download(f"download/{name}/{field}", DownloadConfig(fetch=fetch)) for field, fetch in fetches.items()
    }


def _rows(address: str) -> Any:
    if address.startswith("hf://"):
        return address  # the config turns it into a fetch
    path = PurePosixPath(address)
    return files_in(address.removesuffix(path.name).rstrip("/") or ".", path.name)
