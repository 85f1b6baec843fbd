"""Tasks: lm-eval's own definitions, re-pointed at local jsonl files, with nothing asked of the network.

A definition is included from the installed package by its absolute path, so prompts, choices and metrics are
lm-eval's to the letter; only where the rows come from is ours. Rows are read by `read_rows` and never pass through the
`datasets` loaders, which would leave a cache behind for each file and look for newer versions on a hub.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec

from runtime.evaluation.suites import DEFINITIONS, TaskSpec, members

if TYPE_CHECKING:
    import datasets
    from lm_eval.tasks import TaskManager

SCORED_SPLIT = "test"
FEWSHOT_SPLIT = "fewshot"
FEWSHOT_SUFFIX = ".fewshot"
"""`mmlu_anatomy.fewshot` names the rows that worked examples for `mmlu_anatomy` are drawn from."""

OFFLINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class TaskItemsError(ValueError):
    """The items at hand do not fit the tasks asked for."""


@contextlib.contextmanager
def offline(cache_folder: str) -> Iterator[None]:
    """Keeps the Hugging Face libraries off the network and their caches inside `cache_folder`.

    They read these variables once, when first imported: enter this before anything imports `datasets`, `evaluate` or
    `lm_eval`. The variables are put back on leaving, so that an in-process run of other steps is not affected.
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


def read_rows(files: Mapping[str, str], **metadata: object) -> "dict[str, datasets.Dataset]":
    """The rows of each split, in file order; lm-eval calls this by the name in the generated definition."""
    import datasets

    return {split: datasets.Dataset.from_list(_rows(path)) for split, path in files.items()}


def _rows(path: str) -> list[dict[str, Any]]:
    rows = []
    with fsspec.open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TaskItemsError(f"{path}, line {number}: not JSON ({error}); make the items again.") from error
            if not isinstance(row, dict):
                raise TaskItemsError(f"{path}, line {number}: a {type(row).__name__}; each line is one JSON object.")
            rows.append(row)
    if not rows:
        raise TaskItemsError(f"{path}: no items; leave the task out, or make the items again.")
    return rows


def write_definitions(folder: Path, specs: Sequence[TaskSpec], items: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Writes one definition a task and number of shots; returns spec label -> labels of its tasks.

    Args:
        folder: an empty folder for the definitions.
        specs: what to score.
        items: task name -> path of its rows, and optionally task name + ".fewshot" -> rows for worked examples.
    """
    import lm_eval.tasks

    installed = Path(lm_eval.tasks.__file__).parent
    labels: dict[str, tuple[str, ...]] = {}
    for spec in specs:
        if spec.label in labels:
            raise TaskItemsError(f"tasks: {spec.label} is asked for twice; leave one out.")
        names = [name for name in members(spec.task) if name in items]
        if not names:
            raise TaskItemsError(
                f"tasks: no items for {spec.task!r}; there are items for "
                f"{sorted(name for name in items if not name.endswith(FEWSHOT_SUFFIX))}. "
                "Leave it out of `tasks`, or have the items step make it."
            )
        subtasks = [TaskSpec(name, spec.num_fewshot) for name in names]
        for subtask in subtasks:
            document = _definition(subtask, installed / DEFINITIONS[subtask.task].yaml, items)
            (folder / f"{subtask.label}.yaml").write_text(document)
        labels[spec.label] = tuple(subtask.label for subtask in subtasks)
    return labels


def _definition(spec: TaskSpec, original: Path, items: Mapping[str, str]) -> str:
    files = {SCORED_SPLIT: items[spec.task]}
    if spec.num_fewshot and spec.task + FEWSHOT_SUFFIX in items:
        files[FEWSHOT_SPLIT] = items[spec.task + FEWSHOT_SUFFIX]
    document = {
        "include": str(original),
        "task": spec.label,
        "tag": None,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"files": files},
        "training_split": None,
        "validation_split": None,
        "test_split": SCORED_SPLIT,
        # Without rows of their own, worked examples come from the scored rows, never the row being scored itself.
        "fewshot_split": (FEWSHOT_SPLIT if FEWSHOT_SPLIT in files else SCORED_SPLIT) if spec.num_fewshot else None,
        "num_fewshot": spec.num_fewshot,
    }
    # JSON is YAML; only the tag that names a function is not JSON.
    return (
        json.dumps(document, indent=1)[:-2] + ',\n "custom_dataset": !function runtime.evaluation.tasks.read_rows\n}\n'
    )


def task_manager(folder: Path) -> "TaskManager":
    """Knows the definitions in `folder` and no others: indexing all that lm-eval ships takes 14 s."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(folder), include_defaults=False)
