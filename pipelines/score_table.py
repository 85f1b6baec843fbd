"""Tables of scores: models beside published values, and two models compared item by item."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, Field, ValidationError

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Record, Records
from marin_dag.plan.plan import Plan
from marin_dag.store.store import Store
from pipelines.output import aligned
from runtime.evaluation.item_scores import ITEM_SCORES, ItemScores, read_item_scores
from runtime.evaluation.task_score import TaskScore, leading_of_each_task
from runtime.evaluation.uncertainty import Difference, is_noise, mean_difference, minimum_detectable_difference
from steps.lm_eval import LmEvalResult, lm_eval


class Published(BaseModel, frozen=True, extra="forbid"):
    """A score that others published, and how they say that it was measured."""

    task: str
    value: float = Field(allow_inf_nan=False)
    metric: str | None = None
    """lm-eval's name; None compares with the metric that leads the task."""
    num_fewshot: int | None = None
    num_items: int | None = None
    split: str | None = None
    form: str | None = None
    """The form of the task, such as "cloze" or "lm-eval 0.4.3"; printed, not compared."""
    model: str | None = None
    """The model's name in this table; None is for every model."""


class PublishedScores(BaseModel, frozen=True, extra="forbid"):
    """The file of `--against`."""

    scores: tuple[Published, ...] = Field(min_length=1)


class Scored(NamedTuple):
    """The scores of one model."""

    name: str
    result: LmEvalResult
    items: Mapping[tuple[str, int, str], ItemScores]


def read_published(path: str) -> tuple[Published, ...]:
    """Return the published scores of a file.

    Raises:
        UserError: the file cannot be read, or holds no published scores.
    """
    try:
        return PublishedScores.model_validate(json.loads(Path(path).read_text())).scores
    except (OSError, ValueError, ValidationError) as error:
        example = '{"scores": [{"task": "piqa", "value": 0.68, "num_fewshot": 0}]}'
        raise UserError(f"--against {path}: {error}\nWrite the published scores as {example}.") from None


def print_table(session: Session, plan: Plan) -> Iterator[str]:
    """Yield the lines of the table of all models that have scores."""
    found = read_scores(plan.graph, session.store)
    if not found:
        return
    published = () if session.parsed.against is None else read_published(session.parsed.against)
    yield from scores_table(found, published)
    for first, second in itertools.combinations(found, 2):
        yield from differences(first, second)


def scores_table(models: Sequence[Scored], published: Sequence[Published] = ()) -> Iterator[str]:
    """Yield a line for each model and score, with the published value and how it was measured otherwise."""
    rows = [["model", "task", "shots", "metric", "score", "±", "items", "published", "difference", "what differs"]]
    for model in models:
        leading = leading_of_each_task(model.result.scores)
        for score in model.result.scores:
            error = "" if score.stderr is None else f"{score.stderr:.4f}"
            theirs = _published_of(score, model.name, published, is_leading=score in leading)
            figures = [f"{score.num_fewshot}", score.metric, f"{score.value:.4f}", error, f"{score.num_items:,}"]
            rows.append(
                [model.name, score.task, *figures, *(["", "", ""] if theirs is None else _beside(score, theirs))]
            )
    width = len(rows[0]) if published else len(rows[0]) - 3
    yield from aligned([row[:width] for row in rows], left=(0, 1, 3, 9))
    for model in models:
        for score in model.result.scores:
            if score.warning is not None:
                yield f"{model.name}, {score.task}, {score.metric}: {score.warning}"
            if score.num_close:
                close = f"{score.num_close:,} of {score.num_items:,} choices are within rounding"
                yield f"{model.name}, {score.task}, {score.metric}: {close}; another device may change them"


def differences(first: Scored, second: Scored) -> Iterator[str]:
    """Yield the paired difference of two models in the leading metric of each task, and over all tasks.

    Beside each is the least difference that the items can detect.
    """
    found: list[tuple[TaskScore, Difference]] = []
    rows = [["task", "metric", f"{first.name} − {second.name}", "±", "least detectable", "verdict"]]
    for score in leading_of_each_task(first.result.scores):
        key = (score.task, score.num_fewshot, score.metric)
        mine, other = first.items.get(key), second.items.get(key)
        difference = None if mine is None or other is None else mine.minus(other)
        if difference is not None and difference.stderr is not None:
            found.append((score, difference))
    rows += [[score.task, score.metric, *_figures(each, first.name, second.name)] for score, each in found]
    if len(found) > 1:
        every = mean_difference([(score.task, each) for score, each in found])
        rows.append(["all tasks", "mean", *_figures(every, first.name, second.name)])
    if found:
        yield f"{first.name} beside {second.name} on the same items, at 5 % significance (80 % power):"
        yield from aligned(rows, left=(0, 1, 5))


def _figures(difference: Difference, first: str, second: str) -> list[str]:
    assert difference.stderr is not None
    least = minimum_detectable_difference(difference.stderr)
    figures = [f"{difference.value:+.4f}", f"{difference.stderr:.4f}", f"{least:.4f}"]
    return [*figures, _verdict(difference, first, second)]


def _verdict(difference: Difference, first: str, second: str) -> str:
    if difference.value == difference.stderr == 0:
        return "the same on every item"
    return "inside the noise" if difference.is_noise else f"{first if difference.value > 0 else second} is better"


def read_scores(graph: Graph, store: Store) -> list[Scored]:
    """Return the scores of each model, also where other tasks of it failed."""
    steps = [step for step in graph.steps if step.kind is lm_eval]
    records = Records(store).find_all({step.key for step in steps})
    of_model: dict[str, list[Record]] = {}
    for step in steps:
        if step.key in records:
            of_model.setdefault(step.config.export.name.partition("/")[2], []).append(records[step.key])
    return [_scored(name, done, store) for name, done in of_model.items()]


def _scored(name: str, records: Sequence[Record], store: Store) -> Scored:
    results = [LmEvalResult.model_validate(record.result) for record in records]
    scores = tuple(score for result in results for score in result.scores)
    files = [store.read(f"{record.output_path}/{ITEM_SCORES}") for record in records]
    items = {each.key: each for file in files for each in read_item_scores(file)}
    return Scored(name, results[0].model_copy(update={"scores": scores}), items)


def _published_of(
    score: TaskScore, model: str, published: Sequence[Published], *, is_leading: bool
) -> Published | None:
    """Return the published score to compare with, of the same number of worked examples if possible."""
    fitting = [
        each
        for each in published
        if each.task == score.task
        and each.model in (None, model)
        and (each.metric == score.metric or (each.metric is None and is_leading))
    ]
    return min(fitting, key=lambda each: each.num_fewshot != score.num_fewshot, default=None)


def _beside(score: TaskScore, published: Published) -> list[str]:
    """Return the published value, the difference from it, and how the published score was measured otherwise."""
    difference = score.value - published.value
    is_inside = score.stderr is not None and is_noise(difference, score.stderr)
    distance = f"{difference:+.4f}{' (noise)' if is_inside else ''}"
    return [f"{published.value:.4f}", distance, "; ".join(_differing(score, published))]


def _differing(score: TaskScore, published: Published) -> Iterator[str]:
    """Yield how the published score was measured otherwise, with `split` and `form` as its authors state them."""
    if published.num_fewshot is None:
        yield "unknown shots there"
    elif published.num_fewshot != score.num_fewshot:
        yield f"{published.num_fewshot} shots there"
    if published.num_items not in (None, score.num_items):
        yield f"{published.num_items:,} items there"
    if score.fewshot_from == "the scored rows":
        yield "worked examples from the scored rows here"
    if published.split is not None:
        yield f"split there: {published.split}"
    if published.form is not None:
        yield f"form there: {published.form}"
