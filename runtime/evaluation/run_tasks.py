"""Runs of tasks: lm-eval's definitions and metrics over one model, offline, with scores and a few samples."""

import contextlib
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.evaluation.definitions import GENERATED
from runtime.evaluation.generated_code import local_code_eval
from runtime.evaluation.instructions import checks_instructions, sentence_model
from runtime.evaluation.item_scores import ItemScores, item_scores
from runtime.evaluation.task import Task
from runtime.evaluation.task_score import TaskScore, suspicion
from runtime.evaluation.tasks import (
    TaskFiles,
    check_examples,
    check_runs_no_code,
    copy_definitions,
    fewshot_from,
    offline,
    task_manager,
    write_definitions,
)

if TYPE_CHECKING:
    from runtime.evaluation.harness import LlamaHarness

FEWSHOT_SEED = 1234
"""Seed of the worked examples; lm-eval's default."""
SAMPLES_PER_TASK = 5
UNPARSED = "[invalid]"
"""Answer of lm-eval's filters where they find none."""


class TaskRun(NamedTuple):
    """Scores in the order of the tasks, and the first items of each task with the model's responses."""

    scores: tuple[TaskScore, ...]
    samples: tuple[dict[str, Any], ...]
    items: tuple[ItemScores, ...] = ()
    """Every item's value of each score that is a mean over items."""


def run_tasks(
    make_harness: "Callable[[], LlamaHarness]",
    tasks: Sequence[Task],
    files: TaskFiles,
    *,
    limit: int | None,
    run_generated_code: bool = False,
) -> TaskRun:
    """Score the first `limit` items of each task, or all.

    `make_harness` is called after the network is shut off, since the adapter's module imports lm-eval.

    Raises:
        GeneratedCodeError: a task runs generated code, and `run_generated_code` is false.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lm-eval-") as folder,
        offline(f"{folder}/cache"),
        _quiet(),
        sentence_model(files.sentence_model, Path(folder, "nltk"))
        if any(map(checks_instructions, tasks))
        else contextlib.nullcontext(),
    ):
        import datasets
        import lm_eval.evaluator

        datasets.disable_progress_bars()
        loaded = _load(Path(folder), tasks, files, limit=limit, run_generated_code=run_generated_code)
        harness = make_harness()
        for label, task in loaded.by_label.items():
            if task.OUTPUT_TYPE == GENERATED:
                harness.check_generation(label, task.config.generation_kwargs)
        # Not `simple_evaluate`, which seeds global generators and runs git, pip and torch. No bootstrap, which forks:
        # a process with JAX must not.
        output = lm_eval.evaluator.evaluate(
            lm=harness,
            task_dict=loaded.manager_output,
            limit=limit,
            bootstrap_iters=0,
            log_samples=True,
            confirm_run_unsafe_code=run_generated_code,
        )
    assert output is not None  # None is for processes of rank above 0
    scores = [score for task in tasks for score in _scores(task, loaded, output, harness.num_truncated)]
    items = [each for task in tasks for each in _item_scores(task, loaded, output)]
    samples = [
        _sample(label, sample)
        for group in loaded.labels.values()
        for label in group
        for sample in sorted(output["samples"][label], key=lambda sample: (sample["doc_id"], sample["filter"]))
        if sample["doc_id"] < SAMPLES_PER_TASK
    ]
    return TaskRun(tuple(scores), tuple(samples), tuple(items))


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

    def chooses(self, label: str) -> bool:
        return bool(self.by_label[label].OUTPUT_TYPE == "multiple_choice")


def _load(
    folder: Path, tasks: Sequence[Task], files: TaskFiles, *, limit: int | None, run_generated_code: bool
) -> LoadedTasks:
    definitions, own = folder / "definitions", folder / "own"
    definitions.mkdir()
    copy_definitions(files.definitions, own)
    if not run_generated_code:
        for task in tasks:
            check_runs_no_code(task, own)
    labels = write_definitions(definitions, tasks, files, own, limit=limit)
    with local_code_eval():
        loaded = task_manager(definitions).load([label for group in labels.values() for label in group])
    for label, task in loaded["tasks"].items():
        check_examples(label, task)
        task.set_fewshot_seed(seed=FEWSHOT_SEED)
    return LoadedTasks(labels, loaded["tasks"], {task.label: fewshot_from(task, files, own) for task in tasks}, loaded)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence lm-eval's warnings of intended settings: own rows, default aggregations."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _scores(
    task: Task, loaded: LoadedTasks, output: Mapping[str, Any], num_truncated: Mapping[str, int]
) -> list[TaskScore]:
    """Return one score for each metric and filter; a group's is over the items of all its tasks."""
    labels = loaded.labels[task.label]
    samples = [sample for label in labels for sample in output["samples"][label]]
    by_item = {each.metric: each for each in _item_scores(task, loaded, output)}
    truncated = sum(num_truncated.get(label, 0) for label in labels)
    scores = []
    for key in output["results"][labels[0]]:
        metric, comma, answer_filter = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        picked = [sample for sample in samples if sample["filter"] == answer_filter]
        name = metric if answer_filter == "none" else key
        if name in by_item:
            value, stderr = math.fsum(by_item[name].values) / len(picked), by_item[name].stderr
        elif len(labels) == 1:
            value, stderr = float(output["results"][labels[0]][key]), None
        else:
            raise ValueError(f"{task.label}: {metric} is no mean over items, so a group has none; score its tasks.")
        if not math.isfinite(value):
            raise ValueError(f"{task.label}: {metric} is {value}; the model has diverged, or an item is empty.")
        chance = _chance(picked) if metric.startswith("acc") and loaded.chooses(labels[0]) else None
        num_unparsed = sum(UNPARSED in map(str, sample["filtered_resps"]) for sample in picked)
        scores.append(
            TaskScore(
                task=task.name,
                num_fewshot=task.num_fewshot,
                metric=name,
                value=value,
                stderr=stderr,
                num_items=len(picked),
                chance=chance,
                fewshot_from=loaded.fewshot_from[task.label],
                num_truncated=truncated,
                num_unparsed=num_unparsed,
                warning=suspicion(
                    value=value,
                    chance=chance,
                    num_items=len(picked),
                    num_truncated=truncated,
                    num_requests=sum(len(sample["arguments"]) for sample in picked),
                    num_unparsed=num_unparsed,
                    num_tasks=len(labels),
                    num_members=len(task.definitions),
                ),
            )
        )
    return scores


def _item_scores(task: Task, loaded: LoadedTasks, output: Mapping[str, Any]) -> Iterator[ItemScores]:
    """Yield the values of all items for each metric and filter that is a mean over items."""
    labels = loaded.labels[task.label]
    for key in output["results"][labels[0]]:
        metric, comma, answer_filter = key.partition(",")
        if comma and not metric.endswith("_stderr") and loaded.is_mean(labels[0], metric):
            every = [(label, sample) for label in labels for sample in output["samples"][label]]
            picked = [(label, sample) for label, sample in every if sample["filter"] == answer_filter]
            name = metric if answer_filter == "none" else key
            yield item_scores(task.name, task.num_fewshot, metric, name, picked)


def _chance(samples: Sequence[Mapping[str, Any]]) -> float:
    """Return the expected accuracy of guessing among the choices of each item."""
    shares = []
    for sample in samples:
        # The requests of acc_mutual_info ask for each choice once more, without the question.
        doubled = 2 if "acc_mutual_info" in sample["metrics"] else 1
        shares.append(doubled / len(sample["arguments"]))
    return math.fsum(shares) / len(shares)


def _sample(label: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "task": label,
        "doc_id": sample["doc_id"],
        "filter": sample["filter"],
        "target": sample["target"],
        "requests": [list(arguments) for arguments in sample["arguments"]],
        "responses": sample["resps"],
        "answers": sample["filtered_resps"],
        "metrics": {metric: sample[metric] for metric in sample["metrics"]},
    }
