"""Joined scores: all scores of one export, from the steps that score its tasks."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from marin_dag.graph.step import Input, Step, StepContext, step
from steps.download import DownloadResult
from steps.hf_export import HfExportResult
from steps.lm_eval import SAMPLES_FILE, LmEvalConfig, LmEvalResult, lm_eval, write_files


class JoinedScoresConfig(BaseModel, frozen=True, extra="forbid"):
    """The parts, each of which scores tasks of the same export."""

    export: Input[HfExportResult | DownloadResult]
    parts: dict[str, Input[LmEvalResult]]
    order: tuple[str, ...]
    """Names of the parts, in the recipe's order."""


def check_parts(config: JoinedScoresConfig) -> None:
    """Raise ValueError for a task that two parts score, or a part that scores another export."""
    parts = {name: part for name in config.order if (part := config.parts[name].config_of(LmEvalConfig)) is not None}
    if others := [name for name, part in parts.items() if part.export.digest != config.export.digest]:
        raise ValueError(
            f"parts: {', '.join(others)} score another export than {config.export.name!r}; make the scores of each "
            "export with recipe.score(export, tasks)."
        )
    labels = [task.label for part in parts.values() for task in part.tasks]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ValueError(f"tasks: two parts score {', '.join(twice)}; remove one.")


@step(policy="tracked", check=check_parts)
def joined_scores(config: JoinedScoresConfig, context: StepContext) -> LmEvalResult:
    """Join the scores, samples and items of the parts."""
    import fsspec

    from runtime.evaluation.item_scores import ITEM_SCORES, ItemScores, read_item_scores

    parts = [config.parts[name] for name in config.order]
    samples: list[Mapping[str, Any]] = []
    items: list[ItemScores] = []
    for part in parts:
        with fsspec.open(part.join(part.result.samples), "rb") as file:
            samples += map(json.loads, file)
        with fsspec.open(part.join(ITEM_SCORES), "rb") as file:
            items += read_item_scores(file.read())
    scores = tuple(score for part in parts for score in part.result.scores)
    write_files(scores, samples, items, context.output_path)
    return parts[0].result.model_copy(update={"scores": scores, "samples": SAMPLES_FILE})


SCORING_KINDS = (lm_eval, joined_scores)
"""Kinds of steps that score an export."""


def whole_scores(steps: Iterable[Step[Any]]) -> list[Step[Any]]:
    """Return the steps with all scores of an export: joined scores, and scores that no other step joins."""
    scores = [step for step in steps if step.kind in SCORING_KINDS]
    parts = {item.step.name for step in scores if step.kind is joined_scores for _, item in step.inputs}
    return [step for step in scores if step.name not in parts]
