"""Loaded tasks: lm-eval's own objects for tasks over local rows, offline."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runtime.evaluation.generated_code import local_code_eval
from runtime.evaluation.instructions import checks_instructions, sentence_model
from runtime.evaluation.task import Task
from runtime.evaluation.tasks import (
    TaskFiles,
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
        from lm_eval.api.metrics import mean

        return self.by_label[label].aggregation().get(metric, mean) is mean

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
    with local_code_eval():
        loaded = task_manager(definitions).load([label for group in labels.values() for label in group])
    for label, task in loaded["tasks"].items():
        check_examples(label, task)
        task.set_fewshot_seed(seed=FEWSHOT_SEED)
    return LoadedTasks(labels, loaded["tasks"], {task.label: fewshot_from(task, files, own) for task in tasks}, loaded)
