"""Runs of tasks: lm-eval's definitions and metrics over one model, offline, with scores and a few samples."""

import contextlib
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.evaluation.item_scores import ItemScores, item_scores
from runtime.evaluation.suites import DEFINITIONS, TaskSpec, members
from runtime.evaluation.task_score import TaskScore, suspicion
from runtime.evaluation.tasks import TaskFiles, offline, task_manager, write_definitions

if TYPE_CHECKING:
    from runtime.evaluation.harness import LlamaHarness

FEWSHOT_SEED = 1234
"""Seed of the worked examples; lm-eval's default."""
SAMPLES_PER_TASK = 5
UNPARSED = "[invalid]"
"""Answer of lm-eval's filters where they find none."""


class TaskRun(NamedTuple):
    """Scores in the order of the specs, and the first items of each task with the model's responses."""

    scores: tuple[TaskScore, ...]
    samples: tuple[dict[str, Any], ...]
    items: tuple[ItemScores, ...] = ()
    """Every item's value of each score that is a mean over items."""


def run_tasks(
    make_harness: "Callable[[], LlamaHarness]",
    specs: Sequence[TaskSpec],
    files: TaskFiles,
    *,
    limit: int | None,
) -> TaskRun:
    """Score the first `limit` items of each task, or all.

    `make_harness` is called after the network is shut off, since the adapter's module imports lm-eval.
    """
    with tempfile.TemporaryDirectory(prefix="lm-eval-") as folder, offline(f"{folder}/cache"), _quiet():
        import datasets
        import lm_eval.evaluator
        from lm_eval.api.metrics import mean

        datasets.disable_progress_bars()
        definitions = Path(folder, "definitions")
        definitions.mkdir()
        labels = write_definitions(definitions, specs, files, limit=limit)
        flat = [label for group in labels.values() for label in group]
        loaded = task_manager(definitions).load(flat)
        for task in loaded["tasks"].values():
            task.set_fewshot_seed(seed=FEWSHOT_SEED)
        harness = make_harness()
        for label, task in loaded["tasks"].items():
            if task.OUTPUT_TYPE == "generate_until":
                harness.check_generation(label, task.config.generation_kwargs)
        # Not `simple_evaluate`, which seeds global generators and runs git, pip and torch. No bootstrap, which forks:
        # a process with JAX must not.
        output = lm_eval.evaluator.evaluate(
            lm=harness, task_dict=loaded, limit=limit, bootstrap_iters=0, log_samples=True
        )
    assert output is not None  # None is for processes of rank above 0
    means = {
        (label, metric): aggregation is mean
        for label, task in loaded["tasks"].items()
        for metric, aggregation in task.aggregation().items()
    }
    scores: list[TaskScore] = []
    items: list[ItemScores] = []
    for spec in specs:
        scores += _scores(spec, labels[spec.label], output, means, harness.num_truncated, files)
        items += _item_scores(spec, labels[spec.label], output, means)
    samples = [
        _sample(label, sample)
        for label in flat
        for sample in sorted(output["samples"][label], key=lambda sample: (sample["doc_id"], sample["filter"]))
        if sample["doc_id"] < SAMPLES_PER_TASK
    ]
    return TaskRun(tuple(scores), tuple(samples), tuple(items))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence lm-eval's warnings of what is intended here: own rows, default aggregations."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _scores(
    spec: TaskSpec,
    labels: Sequence[str],
    output: Mapping[str, Any],
    means: Mapping[tuple[str, str], bool],
    num_truncated: Mapping[str, int],
    files: TaskFiles,
) -> list[TaskScore]:
    """Return one score for each metric and filter; a group's is over the items of all its tasks."""
    samples = [sample for label in labels for sample in output["samples"][label]]
    by_item = {each.metric: each for each in _item_scores(spec, labels, output, means)}
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
            raise ValueError(f"{spec.label}: {metric} is no mean over items, so a group has none; score its tasks.")
        if not math.isfinite(value):
            raise ValueError(f"{spec.label}: {metric} is {value}; the model has diverged, or an item is empty.")
        chance = DEFINITIONS[members(spec.task)[0]].chance if metric.startswith("acc") else None
        num_unparsed = sum(UNPARSED in map(str, sample["filtered_resps"]) for sample in picked)
        scores.append(
            TaskScore(
                task=spec.task,
                num_fewshot=spec.num_fewshot,
                metric=name,
                value=value,
                stderr=stderr,
                num_items=len(picked),
                chance=chance,
                fewshot_from=_fewshot_from(spec, files),
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
                    num_members=len(members(spec.task)),
                ),
            )
        )
    return scores


def _item_scores(
    spec: TaskSpec, labels: Sequence[str], output: Mapping[str, Any], means: Mapping[tuple[str, str], bool]
) -> Iterator[ItemScores]:
    """Yield the items' values of each metric and filter that is a mean over items."""
    for key in output["results"][labels[0]]:
        metric, comma, answer_filter = key.partition(",")
        if comma and not metric.endswith("_stderr") and means[labels[0], metric]:
            every = [(label, sample) for label in labels for sample in output["samples"][label]]
            picked = [(label, sample) for label, sample in every if sample["filter"] == answer_filter]
            name = metric if answer_filter == "none" else key
            yield item_scores(spec.task, spec.num_fewshot, metric, name, picked)


def _fewshot_from(spec: TaskSpec, files: TaskFiles) -> Any:
    if not spec.num_fewshot:
        return "none"
    if DEFINITIONS[members(spec.task)[0]].num_examples is not None:
        return "the definition"
    has_own = all(name in files.fewshot for name in members(spec.task) if name in files.scored)
    return "rows of their own" if has_own else "the scored rows"


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
