"""Item scores: the value of a metric for each item of a task, to compare two models item by item."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runtime.evaluation.uncertainty import Difference, paired_difference, standard_error

PASSAGE_COLUMNS = ("passage", "article", "paragraph", "story", "context")
"""Columns of lm-eval's rows with the text that several questions may be about."""
ITEM_SCORES = "item_scores.jsonl"


@dataclasses.dataclass(frozen=True)
class ItemScores:
    """The values of a metric that is a mean over the items of a task, in the order of the items."""

    task: str
    num_fewshot: int
    metric: str
    items: tuple[str, ...]
    """Task and number of each item."""
    groups: tuple[int, ...]
    """Group of each item; items about one passage share a group."""
    values: tuple[float, ...]

    @property
    def key(self) -> tuple[str, int, str]:
        """Task, number of worked examples and metric: two models' scores with equal keys are comparable."""
        return self.task, self.num_fewshot, self.metric

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean, by groups."""
        return standard_error(self.values, self.groups)

    def minus(self, other: "ItemScores") -> Difference | None:
        """Return the paired difference; None if the items are not the same."""
        if (self.key, self.items, self.groups) != (other.key, other.items, other.groups):
            return None
        return paired_difference(self.values, other.values, self.groups)


def item_scores(
    task: str, num_fewshot: int, metric: str, name: str, samples: Sequence[tuple[str, Mapping[str, Any]]]
) -> ItemScores:
    """Return the values of `metric`, named `name`, for lm-eval's samples, each with the label of its task."""
    passages: dict[object, int] = {}
    groups = []
    for index, (label, sample) in enumerate(samples):
        passage = next((text for column in PASSAGE_COLUMNS if isinstance(text := sample["doc"].get(column), str)), None)
        groups.append(passages.setdefault(index if passage is None else (label, passage), len(passages)))
    items = tuple(f"{label}/{sample['doc_id']}" for label, sample in samples)
    values = tuple(float(sample[metric]) for _, sample in samples)
    return ItemScores(task, num_fewshot, name, items, tuple(groups), values)


def to_json_lines(scores: Iterable[ItemScores]) -> bytes:
    """Return the scores as JSON lines, one for each metric."""
    return "".join(json.dumps(dataclasses.asdict(each), sort_keys=True) + "\n" for each in scores).encode()


def read_item_scores(data: bytes) -> list[ItemScores]:
    """Return the scores in the JSON lines of `to_json_lines`."""
    documents = [json.loads(line) for line in data.splitlines()]
    fields = ("items", "groups", "values")
    return [ItemScores(**document | {name: tuple(document[name]) for name in fields}) for document in documents]
