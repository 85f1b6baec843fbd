"""Tasks: lm-eval's own definitions over local jsonl files, without the network.

A definition includes the installed one by its absolute path, so prompts, choices and metrics are exactly lm-eval's;
only the rows come from elsewhere. `read_rows` reads them, since the `datasets` loaders leave a cache for each file and
look for newer versions on a hub.
"""

import contextlib
import importlib.metadata
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fsspec

from runtime.evaluation.suites import DEFINITIONS, TaskSpec, members

if TYPE_CHECKING:
    import datasets
    from lm_eval.tasks import TaskManager

SCORED_SPLIT = "test"
FEWSHOT_SPLIT = "fewshot"

OFFLINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TQDM_DISABLE": "1",
}


class TaskFiles(NamedTuple):
    """Paths of jsonl files by lm-eval's name of the task."""

    scored: Mapping[str, str]
    fewshot: Mapping[str, str]
    """Separate rows for worked examples, for the tasks that have them."""


class TaskItemsError(ValueError):
    """Items that do not fit the tasks."""


@contextlib.contextmanager
def offline(cache_folder: str) -> Iterator[None]:
    """Keep the Hugging Face libraries off the network, and their caches inside `cache_folder`.

    They read these variables at their first import, so enter before anything imports `datasets`, `evaluate` or
    `lm_eval`. The variables are restored on leaving.
    """
    changes = {**OFFLINE_ENVIRONMENT, "HF_HOME": cache_folder}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def read_rows(
    files: Mapping[str, str], limits: Mapping[str, int | None], **metadata: object
) -> "dict[str, datasets.Dataset]":
    """Return the rows of each split in file order; the generated definition names this function."""
    import datasets

    return {split: datasets.Dataset.from_list(_rows(path, limits[split])) for split, path in files.items()}


def _rows(path: str, limit: int | None) -> list[dict[str, Any]]:
    rows = []
    with fsspec.open(path, "rb") as file:
        for number, line in enumerate(itertools.islice(file, limit), start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TaskItemsError(f"{path}, line {number}: not JSON ({error}); rerun the items step.") from error
            if not isinstance(row, dict):
                raise TaskItemsError(f"{path}, line {number}: a {type(row).__name__}; each line is one JSON object.")
            rows.append(row)
    if not rows:
        raise TaskItemsError(f"{path}: no items; remove the task, or rerun the items step.")
    return rows


def write_definitions(
    folder: Path, specs: Sequence[TaskSpec], files: TaskFiles, *, limit: int | None
) -> dict[str, tuple[str, ...]]:
    """Write one definition for each task and number of shots; return spec label -> labels of its tasks.

    Args:
        folder: an empty folder for the definitions.
        specs: tasks to score.
        files: paths of the rows.
        limit: number of scored rows; more are read only for worked examples.
    """
    installed = Path(str(importlib.metadata.distribution("lm_eval").locate_file("lm_eval/tasks")))
    labels: dict[str, tuple[str, ...]] = {}
    for spec in specs:
        if spec.label in labels:
            raise TaskItemsError(f"tasks: {spec.label} is there twice; remove one.")
        names = [name for name in members(spec.task) if name in files.scored]
        if not names:
            raise TaskItemsError(
                f"tasks: there are no items for {spec.task!r}, only for {sorted(files.scored)}; remove it from "
                "`tasks`, or add its items to the items step."
            )
        subtasks = [TaskSpec(name, spec.num_fewshot) for name in names]
        for subtask in subtasks:
            document = _definition(subtask, installed / DEFINITIONS[subtask.task].yaml, files, limit)
            (folder / f"{subtask.label}.yaml").write_text(document)
        labels[spec.label] = tuple(subtask.label for subtask in subtasks)
    return labels


def _definition(spec: TaskSpec, original: Path, files: TaskFiles, limit: int | None) -> str:
    paths = {SCORED_SPLIT: files.scored[spec.task]}
    # A split would replace the examples of the definition, and their way to answer.
    draws_examples = spec.num_fewshot and DEFINITIONS[spec.task].num_examples is None
    if draws_examples and spec.task in files.fewshot:
        paths[FEWSHOT_SPLIT] = files.fewshot[spec.task]
    # Without separate rows, worked examples come from the scored rows except the scored one.
    fewshot_split = (FEWSHOT_SPLIT if FEWSHOT_SPLIT in paths else SCORED_SPLIT) if draws_examples else None
    document = {
        "include": str(original),
        "task": spec.label,
        "tag": None,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {
            "files": paths,
            "limits": {split: limit if split != fewshot_split else None for split in paths},
        },
        "training_split": None,
        "validation_split": None,
        "test_split": SCORED_SPLIT,
        "fewshot_split": fewshot_split,
        "num_fewshot": spec.num_fewshot,
    }
    # Names the function through itself, so that its code is part of the step's fingerprint.
    reader = f"{read_rows.__module__}.{read_rows.__qualname__}"
    # JSON is YAML; only the tag that names a function is not JSON.
    return json.dumps(document, indent=1)[:-2] + f',\n "custom_dataset": !function {reader}\n}}\n'


def task_manager(folder: Path) -> "TaskManager":
    """Return a manager of the definitions in `folder` alone: indexing all of lm-eval's takes 14 s."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(folder), include_defaults=False)
