"""TaskScore: one metric of one task, with what is needed to judge it; a plain value."""

import dataclasses
from typing import Literal

SUSPICIOUS_NUM_ITEMS = 500
NEXT_TO_NOTHING = 0.02
"""Of answers that are written and not chosen."""


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """Value and standard error over the scored items, and how they came about."""

    task: str
    num_fewshot: int
    metric: str
    """lm-eval's name, with its answer filter after a comma where a task has several: "exact_match,strict-match"."""
    value: float
    stderr: float | None
    """Of the mean over items; None for metrics that are no mean."""
    num_items: int
    chance: float | None
    """What guessing would score, for metrics that are an accuracy."""
    fewshot_from: Literal["none", "the definition", "rows of their own", "the scored rows"]
    """Where worked examples came from: a task's definition may hold them itself; from the scored rows, the item itself
    is left out."""
    num_truncated: int
    """Prompts whose beginning did not fit into the model's context."""
    num_unparsed: int
    """Generated answers in which the task found nothing to compare."""
    warning: str | None
    """Why not to trust the value, where there is a reason."""


def implausible(*, value: float, chance: float | None, num_items: int) -> str | None:
    """A reason why no model would have the score, or hardly one, or None."""
    if num_items <= SUSPICIOUS_NUM_ITEMS:
        return None
    if chance is None and value < NEXT_TO_NOTHING:
        return (
            f"{value:.4f} is next to nothing on {num_items} items: the model cannot do it yet, or what it writes is "
            "not read as an answer; look at the samples"
        )
    if chance is not None and value < chance / 2:
        return (
            f"{value:.3f} is below half of chance ({chance:.3f}) on {num_items} items: labels or choices are "
            "probably read wrongly; look at the samples"
        )
    return None


def suspicion(
    *,
    value: float,
    chance: float | None,
    num_items: int,
    num_truncated: int,
    num_requests: int,
    num_unparsed: int,
    num_tasks: int = 1,
    num_members: int = 1,
) -> str | None:
    """A reason to look at the samples before believing the value, or None."""
    if num_truncated * 2 > num_requests:
        said = (
            f"{num_truncated} of {num_requests} prompts did not fit into the model's context and lost their beginning"
        )
    elif num_unparsed * 2 > num_items:
        said = f"no answer was found in {num_unparsed} of {num_items} generated texts"
    elif num_tasks < num_members:
        said = f"over {num_tasks} of the {num_members} tasks that it stands for: there are no items of the others"
    else:
        said = ""
    if (found := implausible(value=value, chance=chance, num_items=num_items)) is not None:
        return f"{found} ({said})" if said else found
    return said or None
