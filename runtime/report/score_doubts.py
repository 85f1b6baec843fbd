"""Score doubts: why not to believe what was measured, figure by figure and of one model beside another."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from runtime.evaluation.task_score import SUSPICIOUS_NUM_ITEMS
from runtime.evaluation.uncertainty import is_noise, minimum_detectable_difference
from runtime.report.contents import Evaluation, Export, Phase, Report, Score, leading, mean

FALLEN_STANDARD_ERRORS = 6.0
FEWEST_TASKS = 4
"""Least number of tasks in common, to compare one with the others."""
RISING_SHARE = 0.75
"""Share of the other tasks that must have risen."""
AVERAGE_BEHIND = 1.05
"""Factor on the bits per byte of the weights. An average of recent weights is within 3 % of them."""
MOST_NAMED = 5
"""Tasks that the sentence on noise names."""


def doubts(report: Report) -> list[str]:
    """Return sentences on single scores in their order, then on pairs of models, then on averages."""
    scores = report.scores
    found = [f"{score.export}, {score.measure}: {score.warning}" for score in scores if score.warning]
    repeated, fallen = _repeated(scores, report.exports), _fallen(scores, report.exports, report.phases)
    return [*found, *repeated, *fallen, *_averages(report.evaluations)]


def noise(scores: Sequence[Score]) -> str:
    """Return a sentence on the tasks whose best model may be no better than the next; "" where there are none."""
    by_task: dict[str, list[Score]] = {}
    for score in leading(scores):
        by_task.setdefault(score.measure, []).append(score)
    compared = {task: sorted(found, key=lambda score: -score.value) for task, found in by_task.items() if found[1:]}
    inside = []
    for task, (best, second, *_) in compared.items():
        difference, stderr = best.value - second.value, _stderr_of_difference(best, second)
        if difference > 0 and stderr is not None and is_noise(difference, stderr):
            least = minimum_detectable_difference(stderr)
            inside.append(f"{task} ({difference:.3f} above {second.export}; {least:.3f} is the least that shows)")
    if not inside:
        return ""
    more = f" and {len(inside) - MOST_NAMED} more" if len(inside) > MOST_NAMED else ""
    named = "; ".join(inside[:MOST_NAMED])
    return f"The best score is inside the noise in {len(inside)} of {len(compared)} tasks: {named}{more}."


def _stderr_of_difference(one: Score, other: Score) -> float | None:
    """Return the error as if the items differed: the difference on the same items is less uncertain."""
    return None if one.stderr is None or other.stderr is None else math.hypot(one.stderr, other.stderr)


def _repeated(scores: Sequence[Score], exports: Sequence[Export]) -> Iterator[str]:
    """Yield pairs of different weights with one block of scores, on so many items that it is no chance."""
    digests = {export.name: export.digest for export in exports}
    blocks: dict[str, dict[tuple[str, str], tuple[float, int]]] = {}
    for score in scores:
        blocks.setdefault(score.export, {})[score.label, score.metric] = score.value, score.num_items
    for (name, block), (other, its) in itertools.combinations(blocks.items(), 2):
        num_items = sum({label: number for (label, _), (_, number) in block.items()}.values())
        if block == its and digests.get(name) != digests.get(other) and num_items > SUSPICIOUS_NUM_ITEMS:
            yield (
                f"{name} and {other} are different weights and have every score in common, on {num_items} items: one "
                "was probably scored under both names"
            )


def _fallen(scores: Sequence[Score], exports: Sequence[Export], phases: Sequence[Phase]) -> Iterator[str]:
    """Yield a task that is far below what it was for the phase that this one started from, while most others rose."""
    by_export: dict[str, dict[str, Score]] = {}
    for score in leading(scores):
        by_export.setdefault(score.export, {})[score.label] = score
    parents = {phase.name: phase.parent for phase in phases}
    for export in exports:
        before = _export_before(export, exports, parents)
        now, then = by_export.get(export.name, {}), by_export.get(before, {})
        rises = {label: score.value - then[label].value for label, score in now.items() if label in then}
        for label, rise in rises.items() if len(rises) >= FEWEST_TASKS else ():
            spread = _stderr_of_difference(now[label], then[label])
            num_risen, num_others = sum(other > 0 for other in rises.values()), len(rises) - 1
            has_fallen = spread is not None and rise < -FALLEN_STANDARD_ERRORS * spread
            if has_fallen and num_risen >= RISING_SHARE * num_others:
                yield (
                    f"{export.name}, {label}, {now[label].metric}: {now[label].value:.3f}, where {before} has "
                    f"{then[label].value:.3f}, and {num_risen} of the {num_others} other tasks rose: look at what the "
                    "model wrote before you believe that it forgot this one"
                )


def _export_before(export: Export, exports: Sequence[Export], parents: Mapping[str, str | None]) -> str:
    """Return the name of the export of the nearest phase on the way to this one's, or ""."""
    by_phase = {other.phase: other.name for other in reversed(exports)}
    phase = parents.get(export.phase)
    while phase is not None and phase not in by_phase:
        phase = parents.get(phase)
    return "" if phase is None else by_phase[phase]


def _averages(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Yield averages far behind the weights that they are to follow."""
    for evaluation in evaluations:
        hot = mean(evaluation.hot)
        for name, values in evaluation.averages.items():
            if mean(values) > AVERAGE_BEHIND * hot:
                yield (
                    f"{evaluation.phase}, average {name!r}: {mean(values):.3f} bits per byte, where the weights have "
                    f"{hot:.3f}: it hardly follows them; look at its decay and at the number of steps"
                )
