"""Gold requests: the right answer of each item of lm-eval's tasks, in the prompt and the tokens of its scores."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from runtime.evaluation.gold_answers import GoldAnswer
from runtime.evaluation.loaded_tasks import loaded_tasks
from runtime.evaluation.request_tokens import RequestTokens, check_parts
from runtime.evaluation.task import Task
from runtime.evaluation.tasks import TaskFiles, TaskItemsError, right_choice

if TYPE_CHECKING:
    import numpy as np

CHOICE, LIKELIHOOD = "multiple_choice", "loglikelihood"


def gold_answers(
    tasks: Sequence[Task], files: TaskFiles, tokens: RequestTokens, token_bytes: "np.ndarray", *, limit: int | None
) -> dict[str, list[GoldAnswer]]:
    """Return the right answers of the first items of each task, by the task's label.

    Args:
        tasks: tasks with choices, or with one continuation.
        files: paths of their rows.
        tokens: the model's tokenizer.
        token_bytes: bytes of text of each token id.
        limit: number of items of each task, for a group in equal shares of its tasks; None takes all.

    Raises:
        TaskItemsError: a task has no given answers, or an item's right choice is not among its choices.
    """
    with loaded_tasks(tasks, files, limit=limit) as loaded:
        found: dict[str, list[GoldAnswer]] = {}
        for task in tasks:
            of_task = found.setdefault(task.label, [])
            labels = loaded.labels[task.label]
            for number, label in enumerate(labels):
                share = None if limit is None else (limit + number) // len(labels)
                for context, answer in _requests(label, loaded.by_label[label], share):
                    before, after = tokens.split(context, answer)
                    check_parts(before, after, label)
                    of_task.append(GoldAnswer(before, after, token_bytes[after].tolist()))
    return found


def _requests(label: str, task: Any, limit: int | None) -> Iterator[tuple[str, str]]:
    """Yield prompt and right answer of each item of one of lm-eval's tasks."""
    if task.OUTPUT_TYPE not in (CHOICE, LIKELIHOOD):
        raise TaskItemsError(f"{label}: its output is {task.OUTPUT_TYPE}, without an answer to score; use other tasks.")
    if limit == 0:
        return
    task.build_all_requests(limit=limit)
    for request in task.instances:
        if request.idx == (right_choice(label, task, request.doc) if task.OUTPUT_TYPE == CHOICE else 0):
            yield request.args[:2]
