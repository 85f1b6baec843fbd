"""Score doubts: why not to believe scores, one by one and of one model beside another."""

import itertools
from collections.abc import Sequence

from runtime.evaluation.task_score import SUSPICIOUS_NUM_ITEMS
from runtime.report.contents import Export, Score


def doubts(scores: Sequence[Score], exports: Sequence[Export]) -> list[str]:
    """Sentences, in the order of the scores; those of two models last."""
    found = [f"{score.export}, {score.label}, {score.metric}: {score.warning}" for score in scores if score.warning]
    return [*found, *_repeated(scores, exports)]


def _repeated(scores: Sequence[Score], exports: Sequence[Export]) -> list[str]:
    """Pairs of different weights with one block of scores, on so many items that it is no chance."""
    digests = {export.name: export.digest for export in exports}
    blocks: dict[str, dict[tuple[str, str], tuple[float, int | None]]] = {}
    for score in scores:
        blocks.setdefault(score.export, {})[score.label, score.metric] = score.value, score.num_items
    found = []
    for (name, block), (other, its) in itertools.combinations(blocks.items(), 2):
        num_items = sum({label: number or 0 for (label, _), (_, number) in block.items()}.values())
        if block == its and digests.get(name) != digests.get(other) and num_items > SUSPICIOUS_NUM_ITEMS:
            found.append(
                f"{name} and {other} are different weights and have every score in common, on {num_items} items: one "
                "was probably scored under both names"
            )
    return found
