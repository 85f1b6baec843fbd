"""TaskScore: one metric of one task with the facts to judge it; a plain value."""

import dataclasses
from collections.abc import Iterable
from typing import Literal, TypeVar

SUSPICIOUS_NUM_ITEMS = 500
NEXT_TO_NOTHING = 0.02
"""Highest suspicious value of generated answers."""


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """Value and standard error over the scored items, with their conditions."""

    task: str
    num_fewshot: int
    metric: str
    """lm-eval's name, with the answer filter where a task has several: "exact_match,strict-match"."""
    value: float
    stderr: float | None
    """Standard error of the mean over items; None for other metrics."""
    num_items: int
    chance: float | None
    """Score of a guess, for accuracies."""
    fewshot_from: Literal["none", "the definition", "rows of their own", "the scored rows"]
    """Source of the worked examples; "the scored rows" exclude the item itself."""
    num_truncated: int
    """Prompts truncated to the model's context."""
    num_unparsed: int
    """Generated texts without an answer that the task could read."""
    warning: str | None = None
    """A reason not to trust the value, if there is one."""

    num_close: int = 0
    """Items whose two best choices are closer than rounding: another device or batch size may change the choice."""

    @property
    def label(self) -> str:
        """Task and number of shots."""
        return f"{self.task}, {self.num_fewshot}-shot"

    @property
    def measure(self) -> str:
        """Label and metric, which no other score of one model has."""
        return f"{self.label}, {self.metric}"


Scored = TypeVar("Scored", bound=TaskScore)
PREFERRED_METRICS = ("acc_norm", "acc", "exact_match")


def leading_of_each_task(scores: Iterable[Scored]) -> list[Scored]:
    """Return one score for each task and number of shots, normalised by answer length where the task has that."""
    found: dict[tuple[str, int], list[Scored]] = {}
    for score in scores:
        found.setdefault((score.task, score.num_fewshot), []).append(score)

    def rank(score: Scored) -> int:
        preferred = [number for number, name in enumerate(PREFERRED_METRICS) if score.metric.startswith(name)]
        return preferred[0] if preferred else len(PREFERRED_METRICS)

    return [min(same, key=rank) for same in found.values()]


def implausible(score: TaskScore) -> str | None:
    """Return why the value is implausible for any model, or None."""
    value, chance, num_items = score.value, score.chance, score.num_items
    if num_items <= SUSPICIOUS_NUM_ITEMS:
        return None
    if chance is None and value < NEXT_TO_NOTHING:
        return (
            f"{value:.4f} is close to zero on {num_items} items: the model cannot do the task yet, or its answers are "
            "not recognized; look at the samples"
        )
    if chance is not None and value < chance / 2:
        return (
            f"{value:.3f} is below half of chance ({chance:.3f}) on {num_items} items: labels or choices are "
            "probably wrong; look at the samples"
        )
    return None


def suspicion(score: TaskScore, *, num_requests: int, num_tasks: int = 1, num_members: int = 1) -> str | None:
    """Return why to look at the samples before trusting the value, or None."""
    truncated, unparsed = score.num_truncated, score.num_unparsed
    if truncated * 2 > num_requests:
        reason = f"{truncated} of {num_requests} prompts were longer than the model's context and lost their start"
    elif unparsed * 2 > score.num_items:
        reason = f"{unparsed} of {score.num_items} generated texts contain no answer"
    elif num_tasks < num_members:
        reason = f"the value covers {num_tasks} of the group's {num_members} tasks; the others have no items"
    else:
        reason = ""
    if (found := implausible(score)) is not None:
        return f"{found} ({reason})" if reason else found
    return reason or None
