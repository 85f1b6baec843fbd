"""Tasks: lm-eval's own definitions, re-pointed at local jsonl files, with nothing asked of the network.

A definition is included from the installed package by its absolute path, so prompts, choices and metrics are
lm-eval's to the letter; only where the rows come from is ours. Rows are read by `read_rows` and never pass through the
`datasets` loaders, which would leave a cache behind for each file and look for newer versions on a hub.
"""

import contextlib
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
    """Paths of jsonl files, by lm-eval's name of the task."""

    scored: Mapping[str, str]
    fewshot: Mapping[str, str]
    """Rows that worked examples are drawn from, for the tasks that have their own."""


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


def read_rows(
    files: Mapping[str, str], limits: Mapping[str, int | None], **metadata: object
) -> "dict[str, datasets.Dataset]":
    """The rows of each split, in file order; lm-eval calls this by the name in the generated definition."""
    import datasets

    return {split: datasets.Dataset.from_list(_rows(path, limits[split])) for split, path in files.items()}


def _rows(path: str, limit: int | None) -> list[dict[str, Any]]:
    rows = []
    with fsspec.open(path, "rb") as file:
        for number, line in enumerate(itertools.islice(file, limit), start=1):
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


def write_definitions(
    folder: Path, specs: Sequence[TaskSpec], files: TaskFiles, *, limit: int | None
) -> dict[str, tuple[str, ...]]:
    """Writes one definition a task and number of shots; returns spec label -> labels of its tasks.

    Args:
        folder: an empty folder for the definitions.
        specs: what to score.
        files: where the rows are.
        limit: rows that will be scored, so that no more are read where no worked examples come from them.
    """
    import lm_eval.tasks

    installed = Path(lm_eval.tasks.__file__).parent
    labels: dict[str, tuple[str, ...]] = {}
    for spec in specs:
        if spec.label in labels:
            raise TaskItemsError(f"tasks: {spec.label} is asked for twice; leave one out.")
        names = [name for name in members(spec.task) if name in files.scored]
        if not names:
            raise TaskItemsError(
                f"tasks: no items for {spec.task!r}; there are items for "
                f"{sorted(files.scored)}. "
                "Leave it out of `tasks`, or have the items step make it."
            )
        subtasks = [TaskSpec(name, spec.num_fewshot) for name in names]
        for subtask in subtasks:
            document = _definition(subtask, installed / DEFINITIONS[subtask.task].yaml, files, limit)
            (folder / f"{subtask.label}.yaml").write_text(document)
        labels[spec.label] = tuple(subtask.label for subtask in subtasks)
    return labels


def _definition(spec: TaskSpec, original: Path, files: TaskFiles, limit: int | None) -> str:
    paths = {SCORED_SPLIT: files.scored[spec.task]}
    # A split would take the place of examples that stand in the definition, and of the way in which they answer.
    draws_examples = spec.num_fewshot and DEFINITIONS[spec.task].num_examples is None
    if draws_examples and spec.task in files.fewshot:
        paths[FEWSHOT_SPLIT] = files.fewshot[spec.task]
    # Without rows of their own, worked examples come from the scored rows, never the row being scored itself.
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
    # By the function itself and not by its name as text: so its code is part of the fingerprint of what runs it.
    reader = f"{read_rows.__module__}.{read_rows.__qualname__}"
    # JSON is YAML; only the tag that names a function is not JSON.
    return json.dumps(document, indent=1)[:-2] + f',\n "custom_dataset": !function {reader}\n}}\n'


def task_manager(folder: Path) -> "TaskManager":
    """Knows the definitions in `folder` and no others: indexing all that lm-eval ships takes 14 s."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(folder), include_defaults=False)
