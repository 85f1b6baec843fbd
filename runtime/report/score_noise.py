"""Score noise: tasks whose best model is better than the next by no more than noise."""

import math
from collections.abc import Sequence

from runtime.evaluation.uncertainty import is_noise, minimum_detectable_difference
from runtime.report.contents import Score, leading

MOST_NAMED = 5


def noise_note(scores: Sequence[Score]) -> str:
    """Return a sentence on the tasks whose best score is within the noise; "" if there are none.

    The errors of both models are added as if their items differed, which overstates the error on shared items.
    """
    by_task: dict[str, list[Score]] = {}
    for score in leading(scores):
        by_task.setdefault(f"{score.label}, {score.metric}", []).append(score)
    compared = {task: sorted(found, key=lambda score: -score.value) for task, found in by_task.items() if found[1:]}
    inside = []
    for task, (best, second, *_) in compared.items():
        difference, stderr = best.value - second.value, _stderr(best, second)
        if difference > 0 and stderr is not None and is_noise(difference, stderr):
            least = minimum_detectable_difference(stderr)
            inside.append(f"{task} ({difference:.3f} above {second.export}; {least:.3f} is the least that shows)")
    if not inside:
        return ""
    more = f" and {len(inside) - MOST_NAMED} more" if len(inside) > MOST_NAMED else ""
    named = "; ".join(inside[:MOST_NAMED])
    return f"The best score is inside the noise in {len(inside)} of {len(compared)} tasks: {named}{more}."


def _stderr(*scores: Score) -> float | None:
    errors = [score.stderr for score in scores if score.stderr is not None]
    return math.hypot(*errors) if len(errors) == len(scores) else None
