"""Loaded tasks: lm-eval's own objects for tasks over local rows, offline."""

import contextlib
import functools
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runtime.evaluation.definitions import read_definition
from runtime.evaluation.generated_code import METRIC, GeneratedCodeError, local_code_eval
from runtime.evaluation.instructions import checks_instructions, sentence_model
from runtime.evaluation.task import Task
from runtime.evaluation.tasks import (
    FEWSHOT_SPLIT,
    SCORED_SPLIT,
    TaskFiles,
    TaskItemsError,
    check_examples,
    copy_definitions,
    fewshot_from,
    offline,
    task_manager,
    write_definitions,
)

FEWSHOT_SEED = 1234
"""Seed of the worked examples; lm-eval's default."""


class LoadedTasks(NamedTuple):
    """lm-eval's tasks, ready to score."""

    labels: Mapping[str, Sequence[str]]
    """Label of a task -> labels of its definitions."""
    by_label: Mapping[str, Any]
    """Label of a definition -> lm-eval's task."""
    fewshot_from: Mapping[str, Any]
    """Label of a task -> where its worked examples come from."""
    manager_output: Any = None

    def is_mean(self, label: str, metric: str) -> bool:
        """Return whether a metric is a mean over items, as lm-eval computes metrics without a named aggregation."""
        import numpy as np
        from lm_eval.api.metrics import mean

        return self.by_label[label].aggregation().get(metric, mean) in (mean, np.mean)

    def is_multiple_choice(self, label: str) -> bool:
        return bool(self.by_label[label].OUTPUT_TYPE == "multiple_choice")


@contextlib.contextmanager
def loaded_tasks(tasks: Sequence[Task], files: TaskFiles, *, limit: int | None) -> Iterator[LoadedTasks]:
    """Shut off the network, then import lm-eval and load the tasks."""
    logger = logging.getLogger("lm_eval")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lm-eval-")))
        stack.enter_context(offline(f"{folder}/cache"))
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)  # its warnings are about intended settings: own rows, default aggregations
        if any(map(checks_instructions, tasks)):
            stack.enter_context(sentence_model(files.sentence_model, folder / "nltk"))
        import datasets

        datasets.disable_progress_bars()
        yield _load(folder, tasks, files, limit=limit)


def _load(folder: Path, tasks: Sequence[Task], files: TaskFiles, *, limit: int | None) -> LoadedTasks:
    definitions, own = folder / "definitions", folder / "own"
    definitions.mkdir()
    copy_definitions(files.definitions, own)
    labels = write_definitions(definitions, tasks, files, own, limit=limit)
    for task in tasks:
        if task.is_own:
            _check_metrics(task, own)
    with local_code_eval():
        loaded = _from_definitions(definitions, [label for group in labels.values() for label in group])
    for label, task in loaded["tasks"].items():
        check_examples(label, task)
        task.set_fewshot_seed(seed=FEWSHOT_SEED)
        task.build_all_requests = _named(label, "write the prompts", task.build_all_requests)
        task.process_results = _named(label, "score an answer", task.process_results)
    return LoadedTasks(labels, loaded["tasks"], {task.label: fewshot_from(task, files, own) for task in tasks}, loaded)


def _check_metrics(task: Task, own: Path) -> None:
    """Raise TaskItemsError for a metric that lm-eval lacks, which it would look for on a hub, and for no list."""
    import lm_eval.api.metrics  # noqa: F401 -- registers the metrics
    from lm_eval.api.registry import metric_registry

    for definition in task.definitions:
        settings = json.loads(definition.settings) if definition.settings else {}
        listed = (read_definition(own / definition.yaml) | settings).get("metric_list") or []
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise TaskItemsError(
                f"{definition.name}: metric_list is {listed!r}; write a list of mappings: [{{metric: acc}}]."
            )
        for name in (each.get("metric") for each in listed):
            if type(name) is str and name not in metric_registry and name != METRIC:  # else a function
                raise TaskItemsError(
                    f"{definition.name}: metric_list has {name!r}, which lm-eval does not have. Use one of "
                    f"{', '.join(sorted(metric_registry))}, or a function: !function FILE.FUNCTION."
                )


def _from_definitions(folder: Path, labels: Sequence[str]) -> Any:
    """Return lm-eval's tasks and groups; raise TaskItemsError, with its name, for a task that lm-eval cannot load."""
    manager = task_manager(folder)
    classes = {label for label in labels if "class" in read_definition(folder / f"{label}.yaml")}
    given = [
        _named(label, "make the class", _from_class)(label, folder / f"{label}.yaml") if label in classes else label
        for label in labels
    ]
    try:
        return manager.load(given)
    except TaskItemsError:
        raise
    except Exception:
        for label, each in zip(labels, given, strict=True):
            _named(label, "load the definition", manager.load)([each])
        raise


def _from_class(label: str, path: Path) -> Any:
    """Return the task of a definition's Python class, with the definition's rows in place of the class's own."""
    from lm_eval.tasks._yaml_loader import load_yaml

    definition = load_yaml(path)
    rows = definition["custom_dataset"](**definition["dataset_kwargs"])
    scored = rows[SCORED_SPLIT]
    examples = rows.get(FEWSHOT_SPLIT, scored)

    class OverRows(definition["class"]):  # type: ignore[misc, valid-type]
        def download(self, *arguments: Any, **options: Any) -> None:
            self.dataset = {"train": examples, "validation": scored, "test": scored}

        def fewshot_docs(self) -> Any:
            return examples

        # lm-eval 0.4.13 passes worked examples with a second argument, which its own classes do not take.
        def doc_to_text(self, doc: Any, *_: Any) -> Any:
            return super().doc_to_text(doc)

        def doc_to_target(self, doc: Any, *_: Any) -> Any:
            return super().doc_to_target(doc)

    task = OverRows()
    task.config.task, task.config.num_fewshot = label, definition["num_fewshot"]
    return task


def _named(label: str, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of lm-eval's task whose errors name the task."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (TaskItemsError, GeneratedCodeError):
            raise
        except Exception as error:
            raise TaskItemsError(
                f"{label}: lm-eval cannot {what} ({type(error).__name__}: {error}). Correct the definition, or the "
                "rows if they lack a column that it reads."
            ) from error

    return call
