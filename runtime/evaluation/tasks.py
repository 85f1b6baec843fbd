"""Tasks: lm-eval's definitions, and those of users, over local files, without the network.

A definition includes the installed one by its absolute path, so prompts, choices and metrics are exactly lm-eval's;
only the rows come from elsewhere. `read_rows` reads them, since the `datasets` loaders leave a cache for each file and
look for newer versions on a hub.
"""

import collections
import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import fsspec

from runtime.evaluation.definitions import read_facts
from runtime.evaluation.registry import installed
from runtime.evaluation.task import Definition, Task
from runtime.text.extraction.extracted import DamagedFileError
from runtime.text.extraction.limits import bounded_lines, memory_bound

if TYPE_CHECKING:
    import datasets
    from lm_eval.api.task import ConfigurableTask
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
    """Paths of files by the name of their items."""

    scored: Mapping[str, str]
    fewshot: Mapping[str, str] = {}
    """Separate rows for worked examples, for the tasks that have them."""
    definitions: Mapping[str, str] = {}
    """Files of the user's own definitions, by their paths below the folder of definitions."""
    sentence_model: str | None = None
    """The package for tasks that check instructions."""


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
    return {split: _dataset(path, _rows(path, limits[split])) for split, path in files.items()}


def _dataset(path: str, rows: list[dict[str, Any]]) -> "datasets.Dataset":
    import datasets
    import pyarrow as pa

    columns = dict.fromkeys(column for row in rows for column in row)
    try:
        # `from_list` takes the columns of the first row alone.
        return datasets.Dataset.from_list([{column: row.get(column) for column in columns} for row in rows])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TaskItemsError(f"{path}: a column has values of different types ({error}); make them alike.") from error


def _rows(path: str, limit: int | None) -> list[dict[str, Any]]:
    rows = _parquet_rows(path, limit) if path.endswith(".parquet") else _json_rows(path, limit)
    if not rows:
        raise TaskItemsError(f"{path}: no items; remove the task, or rerun the items step.")
    return rows


def _parquet_rows(path: str, limit: int | None) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with fsspec.open(path, "rb") as file, memory_bound(f"{path}: its items"):
            rows: list[dict[str, Any]] = pq.read_table(file).slice(0, limit).to_pylist()
    except (pa.ArrowInvalid, OSError, DamagedFileError) as error:
        raise TaskItemsError(f"{path}: no Parquet file that can be read ({error}); rerun the items step.") from error
    return rows


def _json_rows(path: str, limit: int | None) -> list[dict[str, Any]]:
    rows = []
    with fsspec.open(path, "rb") as file:
        for number, line in enumerate(itertools.islice(bounded_lines(file, path), limit), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise TaskItemsError(f"{path}, line {number}: not JSON ({error}); correct the line.") from error
            if not isinstance(row, dict):
                raise TaskItemsError(f"{path}, line {number}: a {type(row).__name__}; each line is one JSON object.")
            rows.append(row)
    return rows


def write_definitions(
    folder: Path, tasks: Sequence[Task], files: TaskFiles, own: Path, *, limit: int | None
) -> dict[str, tuple[str, ...]]:
    """Write one definition for each task and number of shots; return label of a task -> labels of its definitions.

    Args:
        folder: an empty folder for the definitions.
        tasks: what to score.
        files: paths of the rows.
        own: folder of the user's own definitions.
        limit: number of scored rows; more are read only for worked examples.
    """
    labels: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        if task.label in labels:
            raise TaskItemsError(f"tasks: {task.label} is listed twice; remove one.")
        found = [each for each in task.definitions if each.items in files.scored]
        if not found:
            raise TaskItemsError(
                f"tasks: there are no items for {task.name!r}, only for {sorted(files.scored)}; remove it from "
                "`tasks`, or add its items to the items step."
            )
        labels[task.label] = tuple(definition_label(task, each) for each in found)
        for each, label in zip(found, labels[task.label], strict=True):
            document = _definition(label, task.num_fewshot, each, _root(task, own), files, limit)
            (folder / f"{label}.yaml").write_text(document)
    return labels


def definition_label(task: Task, definition: Definition) -> str:
    return f"{definition.name}_{task.num_fewshot}shot"


def _definition(
    label: str, num_fewshot: int, definition: Definition, root: Path, files: TaskFiles, limit: int | None
) -> str:
    original = root / definition.yaml
    paths = {SCORED_SPLIT: files.scored[definition.items]}
    # A split would replace the examples of the definition, and their way to answer.
    draws_examples = num_fewshot and not read_facts(original, definition.settings).has_examples
    if draws_examples and definition.items in files.fewshot:
        paths[FEWSHOT_SPLIT] = files.fewshot[definition.items]
    # Without separate rows, worked examples come from the scored rows except the scored one.
    fewshot_split = (FEWSHOT_SPLIT if FEWSHOT_SPLIT in paths else SCORED_SPLIT) if draws_examples else None
    document = {
        "include": str(original),
        **(json.loads(definition.settings) if definition.settings else {}),
        "task": label,
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
        "num_fewshot": num_fewshot,
    }
    # Names the function through itself, so that its code is part of the step's fingerprint.
    reader = f"{read_rows.__module__}.{read_rows.__qualname__}"
    # JSON is YAML; only the tag that names a function is not JSON.
    return json.dumps(document, indent=1)[:-2] + f',\n "custom_dataset": !function {reader}\n}}\n'


def copy_definitions(files: Mapping[str, str], folder: Path) -> None:
    """Write the user's own definitions to a folder, where lm-eval finds each beside its modules."""
    for name, path in files.items():
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with fsspec.open(path, "rb") as file:
            copy.write_bytes(file.read())


def _root(task: Task, own: Path) -> Path:
    return own if task.is_own else installed()


def fewshot_from(
    task: Task, files: TaskFiles, own: Path
) -> Literal["none", "the definition", "rows of their own", "the scored rows"]:
    """Return where the worked examples of a task come from."""
    if not task.num_fewshot:
        return "none"
    first = task.definitions[0]
    if read_facts(_root(task, own) / first.yaml, first.settings).has_examples:
        return "the definition"
    has_own = all(each.items in files.fewshot for each in task.definitions if each.items in files.scored)
    return "rows of their own" if has_own else "the scored rows"


def check_examples(label: str, task: "ConfigurableTask") -> None:
    """Raise TaskItemsError if there are fewer rows than the worked examples of some prompt."""
    wanted = task.config.num_fewshot or 0
    if not wanted:
        return
    rows = _as_texts(task.fewshot_docs())
    split = task.fewshot_cfg.split
    # A class names no split, and may draw from the rows that it scores.
    shares_rows = split == SCORED_SPLIT if split is not None else rows == _as_texts(task.eval_docs)
    # Neither an item nor its copies are worked examples of the item.
    most_copies = max(collections.Counter(rows).values(), default=0) if shares_rows else 0
    if len(rows) - most_copies < wanted:
        besides = " besides the scored one and its copies" if shares_rows else ""
        raise TaskItemsError(
            f"{label}: num_fewshot is {wanted}, and there are {len(rows) - most_copies} rows{besides}; lower "
            "num_fewshot, or name more rows as fewshot_items."
        )


def _as_texts(rows: Iterable[Any]) -> list[str]:
    return [json.dumps(row, sort_keys=True, default=str) for row in rows]


def right_choice(label: str, task: Any, doc: Any) -> int:
    """Return the number of the right choice as lm-eval reads it; of several right ones the first.

    Raises:
        TaskItemsError: the answer is none of the choices. lm-eval would count the item as wrong for every model.
    """
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    choices = task.doc_to_choice(doc)
    first = gold[0] if isinstance(gold, list) and gold else gold
    number = choices.index(first) if first in choices else first
    if not isinstance(number, int) or not 0 <= number < len(choices):
        raise TaskItemsError(f"{label}: the answer {gold!r} is none of the choices {choices}; correct the item {doc}.")
    return number


def task_manager(folder: Path) -> "TaskManager":
    """Return a manager of the definitions in `folder` alone: indexing all of lm-eval's takes 14 s."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(folder), include_defaults=False)
