"""Task inputs: tasks of lm-eval with their rows, as configs of steps hold them."""

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.graph.step import Input
from runtime.evaluation.registry import is_packaged
from runtime.evaluation.task import Task
from steps.download import DownloadResult
from steps.evaluation_items import EvaluationItemsConfig, EvaluationItemsResult

if TYPE_CHECKING:
    from runtime.evaluation.tasks import TaskFiles


class TaskInputs(BaseModel, frozen=True, extra="forbid"):
    """The tasks and their items: from a step, or from the user's own files."""

    items: Input[EvaluationItemsResult] | None = None
    own_items: Input[DownloadResult] | None = None
    """A .jsonl or .parquet file for each definition, with the name of its task; a single file may have any name."""
    own_fewshot_items: Input[DownloadResult] | None = None
    """Rows for worked examples, in files with the same names."""
    own_definitions: Input[DownloadResult] | None = None
    """The YAML files of own tasks, with the Python modules that they name."""
    sentence_model: Input[DownloadResult] | None = None
    """The package that splits text into sentences, for IFEval."""
    tasks: tuple[Task, ...] = Field(min_length=1)
    limit: int | None = Field(ge=2)
    """Number of items of each task, from the first; None takes all."""


def check_items(config: TaskInputs) -> None:
    """Check that each task has items, before anything runs.

    Raises:
        ValueError: a task is there twice, or has no items.
    """
    labels = [task.label for task in config.tasks]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ValueError(f"tasks: {', '.join(twice)} listed twice; remove one.")
    if (config.items is None) == (config.own_items is None):
        raise ValueError("items: set either items or own_items.")
    if config.items is None or config.items.config_of(EvaluationItemsConfig) is None:  # the user's own items
        return
    if lacking := sorted(task.name for task in config.tasks if not any(map(is_packaged, _names(task)))):
        raise ValueError(
            f"tasks: the evaluation package of {config.items.name!r} has no items of {', '.join(lacking)}; remove "
            "them, name their rows with TaskSpec(..., items=FILE), or use a step that makes them as `items`."
        )


def _names(task: Task) -> list[str]:
    return [definition.name for definition in task.definitions]


def task_files(config: TaskInputs) -> "TaskFiles":
    """Return the paths of the rows and of own definitions."""
    from runtime.evaluation.tasks import TaskFiles

    package = config.sentence_model
    sentence_model = None if package is None else package.join(package.result.files[0].path)
    if config.own_items is None:
        assert config.items is not None  # as `check_items` has it
        items = config.items.result
        return TaskFiles(
            scored={name: config.items.join(path) for name, path in items.files.items()},
            fewshot={name: config.items.join(path) for name, path in items.fewshot_files.items()},
            sentence_model=sentence_model,
        )
    names = [definition.items for task in config.tasks for definition in task.definitions]
    own = config.own_definitions
    return TaskFiles(
        scored=_own_files("own_items", config.own_items, names),
        fewshot=_own_files("own_fewshot_items", config.own_fewshot_items, names),
        definitions={} if own is None else {file.name: own.join(file.path) for file in own.result.files},
        sentence_model=sentence_model,
    )


def _own_files(field: str, items: Input[DownloadResult] | None, names: list[str]) -> dict[str, str]:
    """Return the file of each task; raise UserError if a task has none."""
    if items is None:
        return {}
    files = items.result.files
    if len(files) == len(names) == 1:
        return {names[0]: items.join(files[0].path)}
    found = {PurePosixPath(file.name).stem: items.join(file.path) for file in files}
    if missing := [name for name in names if name not in found]:
        raise UserError(
            f"{field}: {items.name} has no file of {', '.join(missing)}, only {sorted(found)}; name each file as its "
            "task, such as TASK.jsonl."
        )
    return {name: found[name] for name in names}
