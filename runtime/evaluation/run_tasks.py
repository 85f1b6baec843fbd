"""Runs of tasks: lm-eval's definitions and metrics over one model, offline, with scores and a few samples."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.evaluation.item_scores import ItemScores, item_scores
from runtime.evaluation.loaded_tasks import LoadedTasks, loaded_tasks
from runtime.evaluation.task import Task
from runtime.evaluation.task_score import TaskScore, suspicion
from runtime.evaluation.tasks import TaskFiles, right_choice

if TYPE_CHECKING:
    from runtime.evaluation.harness import LlamaHarness

SAMPLES_PER_TASK = 5
ROUNDING = {"float32": 1e-3, "bfloat16": 0.15}
"""Compute dtype -> bound on the difference of one log-likelihood, in nats, between devices and layouts of batches.

In bfloat16, answers of 1, 4 and 16 tokens differed by up to 0.03, 0.10 and 0.13 (12 layers, layouts on a CPU).
"""
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
    apply_chat_template: bool = False,
    compute_dtype: str = "float32",
) -> TaskRun:
    """Score the first `limit` items of each task, or all.

    `make_harness` is called after the network is shut off, since the adapter's module imports lm-eval, and after the
    items are checked, since it may load a large model. With `apply_chat_template`, prompts are conversations, worked
    examples are turns of them, and the harness must have a chat template.

    Raises:
        ValueError: a task runs generated code, and `run_generated_code` is false; or a request has no room on a device.
    """
    with loaded_tasks(tasks, files, limit=limit) as loaded:
        import lm_eval.evaluator

        for label, task in loaded.by_label.items():
            # A definition with a function for results need not name a right choice.
            if loaded.is_multiple_choice(label) and not callable(task.config.process_results):
                for doc in itertools.islice(task.eval_docs, limit):
                    right_choice(label, task, doc)
        harness = make_harness()
        for task in loaded.by_label.values():
            task.build_all_requests = _checked(task, harness)
        # Not `simple_evaluate`, which seeds global generators and runs git, pip and torch. No bootstrap, which forks:
        # a process with JAX must not.
        output = lm_eval.evaluator.evaluate(
            lm=harness,
            task_dict=loaded.manager_output,
            limit=limit,
            bootstrap_iters=0,
            log_samples=True,
            confirm_run_unsafe_code=run_generated_code,
            apply_chat_template=apply_chat_template,
            fewshot_as_multiturn=apply_chat_template,
        )
    assert output is not None  # None is for processes of rank above 0
    items = {task.label: list(_item_scores(task, loaded, output)) for task in tasks}
    scores = [
        score
        for task in tasks
        for score in _scores(task, loaded, output, items[task.label], harness.num_truncated, ROUNDING[compute_dtype])
    ]
    samples = [
        _sample(label, sample)
        for group in loaded.labels.values()
        for label in group
        for sample in sorted(output["samples"][label], key=lambda sample: (sample["doc_id"], sample["filter"]))
        if sample["doc_id"] < SAMPLES_PER_TASK
    ]
    return TaskRun(tuple(scores), tuple(samples), tuple(each for of_task in items.values() for each in of_task))


def _checked(task: Any, harness: "LlamaHarness") -> Callable[..., None]:
    """Return a function that builds and checks a task's requests; lm-eval builds all before it sends the first."""
    build = task.build_all_requests

    def build_and_check(**options: Any) -> None:
        build(**options)
        harness.check_requests(task.instances)

    return build_and_check


def _scores(
    task: Task,
    loaded: LoadedTasks,
    output: Mapping[str, Any],
    items: Iterable[ItemScores],
    num_truncated: Mapping[str, int],
    rounding: float,
) -> Iterator[TaskScore]:
    """Yield one score for each metric and filter; a group's is over the items of all its tasks."""
    labels = loaded.labels[task.label]
    samples = [sample for label in labels for sample in output["samples"][label]]
    by_item = {each.metric: each for each in items}
    truncated = sum(num_truncated.get(label, 0) for label in labels)
    for key, metric, answer_filter in _metrics(labels, output):
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
        chance = _chance(picked) if metric.startswith("acc") and all(map(loaded.is_multiple_choice, labels)) else None
        score = TaskScore(
            task=task.name,
            num_fewshot=task.num_fewshot,
            metric=name,
            value=value,
            stderr=stderr,
            num_items=len(picked),
            chance=chance,
            fewshot_from=loaded.fewshot_from[task.label],
            num_truncated=truncated,
            num_unparsed=sum(UNPARSED in map(str, sample["filtered_resps"]) for sample in picked),
            num_close=0 if chance is None else sum(_is_close(sample, metric, rounding) for sample in picked),
        )
        num_requests = sum(len(sample["arguments"]) for sample in picked)
        warning = suspicion(score, num_requests=num_requests, num_tasks=len(labels), num_members=len(task.definitions))
        yield dataclasses.replace(score, warning=warning)


def _metrics(labels: Sequence[str], output: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return key, metric and filter of the scores that all tasks of a group have."""
    first, *others = (output["results"][label] for label in labels)
    shared = [key for key in first if "," in key and all(key in each for each in others)]
    found = []
    for key in shared:
        metric, _, answer_filter = key.partition(",")
        if not metric.endswith("_stderr"):
            found.append((key, metric, answer_filter))
    if not found and not others:
        raise ValueError(f"{labels[0]}: this task has no metric; add a metric_list to its definition.")
    if not found:
        raise ValueError(f"{', '.join(labels)}: these tasks of a group have no metric in common; name the tasks.")
    return found


def _item_scores(task: Task, loaded: LoadedTasks, output: Mapping[str, Any]) -> Iterator[ItemScores]:
    """Yield the values of all items for each metric and filter that is a mean over items."""
    labels = loaded.labels[task.label]
    for key, metric, answer_filter in _metrics(labels, output):
        if loaded.is_mean(labels[0], metric):
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


def _is_close(sample: Mapping[str, Any], metric: str, rounding: float) -> bool:
    """Return whether the two best choices of an item are closer than what rounding may change."""
    num_choices = len(sample["arguments"]) // (2 if "acc_mutual_info" in sample["metrics"] else 1)
    values = [float(response[0][0]) for response in sample["resps"]]
    choices = [choice.strip() for _, choice in sample["arguments"][:num_choices]]
    lengths = [1] * num_choices
    if metric == "acc_mutual_info":  # the second half is without the question
        values = [asked - alone for asked, alone in zip(values[:num_choices], values[num_choices:], strict=True)]
    elif metric in ("acc_norm", "acc_bytes"):
        lengths = [max(1, len(choice if metric == "acc_norm" else choice.encode())) for choice in choices]
    best = sorted((value / length for value, length in zip(values[:num_choices], lengths, strict=True)), reverse=True)
    return num_choices > 1 and best[0] - best[1] < rounding / min(lengths)


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
