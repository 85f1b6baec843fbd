"""LM eval: scores of an exported model, as published, on lm-eval's tasks."""

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from marin_dag.errors import RefusedConfigError, UserError
from marin_dag.graph.resources import Cpu, Resources, Tpu
from marin_dag.graph.step import Input, Runtime, StepContext, step
from runtime.evaluation.device_memory import DeviceRoom
from runtime.evaluation.task_score import TaskScore
from runtime.optim.ema import HOT, Ema
from steps.download import DownloadResult
from steps.hf_export import HfExportConfig, HfExportResult
from steps.joined_mesh import LOST_PEER_ERRORS, check_platform, joined_mesh
from steps.machine_checks import evaluated_mesh, evaluation_room
from steps.phase_checks import described_by
from steps.task_inputs import TaskInputs, check_items, task_files

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from runtime.evaluation.harness import LlamaHarness
    from runtime.evaluation.item_scores import ItemScores
    from runtime.interop.chat_template import ChatTemplate
    from runtime.interop.huggingface import ImportedModel
    from runtime.model.config import ModelConfig
    from runtime.training.watchdog import Watchdog

SAMPLES_FILE = "samples.jsonl"


class LmEvalConfig(TaskInputs, frozen=True, extra="forbid"):
    """The export, and the tasks."""

    export: Input[HfExportResult | DownloadResult]
    """An export, or a model that `model_in(folder)` or `HuggingFaceModel` fetches."""
    compute_dtype: Literal["bfloat16", "float32"] = "float32"
    apply_chat_template: bool = False
    """Whether prompts are conversations by the chat template of a downloaded model, with worked examples as turns."""
    tokens_per_batch: Runtime[int] = 4_096
    run_generated_code: Runtime[bool] = False
    """Whether code that the model writes may run, for tasks whose metric runs it. Execution, since it decides whether
    there is a score and not which."""


class LmEvalResult(BaseModel, frozen=True, extra="forbid"):
    """A score for each task and metric, in the order of the config's tasks."""

    scores: tuple[TaskScore, ...]
    samples: str
    """JSON lines: the first items of each task with their prompts and the model's responses."""
    weights: str
    """The weights of the export: "hot", or the name of EMA weights."""
    average: Ema | None = None
    """The EMA of these weights, if they are EMA weights."""
    step: int
    consumed_tokens: int


def check_tasks(config: LmEvalConfig) -> None:
    """Check the tasks before anything is trained.

    Raises:
        ValueError: a task is there twice, may generate more than the model's context, or has no items; or the model
            has no chat template.
    """
    check_items(config)
    _check_context(config)
    if config.apply_chat_template and config.export.config_of(HfExportConfig) is not None:
        raise ValueError(
            f"apply_chat_template is true, and {config.export.name!r} has no chat template, since exports have none; "
            "set apply_chat_template=False, or score a downloaded model."
        )


def check_machines(config: LmEvalConfig, resources: Resources) -> None:
    """Raise ValueError where the machines cannot share the model, or have no room for its rows and texts."""
    if not isinstance(resources, Cpu) and (model := evaluated_model(config)) is not None:
        room_for(config, resources, model, evaluated_bytes(config, model))


def room_for(config: LmEvalConfig, resources: Resources, model: "ModelConfig", num_bytes: int) -> DeviceRoom:
    """Return the tokens that fit beside the scored model; raise ValueError where rows or texts do not."""
    return evaluation_room(
        resources,
        model,
        num_bytes,
        config.compute_dtype,
        longest_text=longest_text(config),
        tokens_per_batch=config.tokens_per_batch,
    )


def longest_text(config: LmEvalConfig) -> int:
    """Return the new tokens of the longest text that a task may write; 0 if none does."""
    return max((task.max_new_tokens for task in config.tasks), default=0)


def evaluated_model(config: LmEvalConfig) -> "ModelConfig | None":
    """Return the shape of the scored model; None where only the download knows it."""
    export = config.export.config_of(HfExportConfig)
    phase = None if export is None else described_by(export.phase)
    return None if phase is None else phase.model


def evaluated_bytes(config: LmEvalConfig, model: "ModelConfig") -> int:
    """Return the size of the parameters as the export stores them."""
    export = config.export.config_of(HfExportConfig)
    assert export is not None  # else the model is unknown
    return model.num_parameters * (2 if export.dtype == "bfloat16" else 4)


def check_generated_code(config: LmEvalConfig) -> None:
    """Raise RefusedConfigError if a task runs generated code, and the config does not allow it."""
    if running := [task.label for task in config.tasks if task.runs_code and not config.run_generated_code]:
        raise RefusedConfigError(
            f"the metric of {', '.join(running)} runs code that the model writes. If you want that, run the same "
            "command with --run-generated-code.",
            {"run_generated_code": "true"},
        )


def _check_context(config: LmEvalConfig) -> None:
    model = evaluated_model(config)
    context = math.inf if model is None else model.max_position_embeddings
    if too_long := [
        f"{task.label} ({task.max_new_tokens:,})" for task in config.tasks if task.max_new_tokens >= context
    ]:
        raise ValueError(
            f"tasks: {', '.join(too_long)} may generate as many tokens as in brackets, and the context of "
            f"{config.export.name!r}, prompt included, is {context:,}; remove them, or train a model with larger "
            "max_position_embeddings."
        )


@step(
    policy="tracked",
    resources=Cpu(2),
    packages=("jax", "lm_eval", "tokenizers"),
    check=check_tasks,
    check_on=check_machines,
    lost_peer_errors=LOST_PEER_ERRORS,
    check_decided=check_generated_code,  # scores that are done need no permission
)
def lm_eval(config: LmEvalConfig, context: StepContext) -> LmEvalResult:
    """Read the exported folder as any user would, and score it on all devices of all hosts."""
    import jax

    from runtime.evaluation.run_tasks import run_tasks
    from runtime.parallel.hosts import limit_threads
    from runtime.parallel.jax_settings import settle_jax
    from runtime.training.watchdog import Watchdog

    settle_jax()
    if context.host.num_hosts > 1:
        joined_mesh(context)  # alone, a host's cores are one device: its products use them together
    elif isinstance(context.resources, Cpu):
        limit_threads(context.resources.num_cpus)
    # As stored, and in the host's memory: one device may not hold the model.
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        model = _read_model(config.export)
    template = _template(config, model)  # raises before the devices are filled
    watchdog = Watchdog("batch")
    with watchdog.watching():
        run = run_tasks(
            functools.partial(_harness, config, context, model, template, watchdog),
            config.tasks,
            task_files(config),
            limit=config.limit,
            run_generated_code=config.run_generated_code,
            apply_chat_template=config.apply_chat_template,
            compute_dtype=config.compute_dtype,
        )
    for score in run.scores if context.host.index == 0 else ():
        context.log.info("%s, %d shots, %s: %.4f", score.task, score.num_fewshot, score.metric, score.value)
        if score.warning:
            context.log.warning("%s, %d shots: %s", score.task, score.num_fewshot, score.warning)
    if context.host.index == 0:
        write_files(run.scores, run.samples, run.items, context.output_path)
    return LmEvalResult(scores=run.scores, samples=SAMPLES_FILE, **_weights(config.export.result))


def _read_model(export: Input[HfExportResult | DownloadResult]) -> "ImportedModel":
    from runtime.interop.huggingface import read_model, read_model_files

    result = export.result
    if isinstance(result, HfExportResult):
        return read_model(export.join(result.folder), as_stored=True)
    return read_model_files({file.name: export.join(file.path) for file in result.files}, export.name, as_stored=True)


def _weights(result: HfExportResult | DownloadResult) -> dict[str, Any]:
    """Return the scored weights; a downloaded model counts as weights before any training step."""
    if isinstance(result, DownloadResult):
        return {"weights": HOT, "step": 0, "consumed_tokens": 0}
    return result.model_dump(include={"weights", "average", "step", "consumed_tokens"})


def _harness(
    config: LmEvalConfig,
    context: StepContext,
    model: "ImportedModel",
    template: "ChatTemplate | None",
    watchdog: "Watchdog",
) -> "LlamaHarness":
    """Return the model for lm-eval; its module imports lm-eval, which must wait until the network is off."""
    import numpy as np

    from runtime.evaluation.answers import Answers
    from runtime.evaluation.harness import LlamaHarness
    from runtime.evaluation.placed_model import PlacedModel

    placed = PlacedModel(
        model.params,
        model.config,
        model.rope,
        compute_dtype=np.dtype(config.compute_dtype),
        mesh=_planned_mesh(context.resources, model),
        watchdog=watchdog,
    )
    kernels = placed.run.kernels
    context.computed_with(**kernels)
    kept = f"{placed.num_devices} devices in {config.compute_dtype}, {placed.devices_of_a_copy} for each copy"
    context.log.info("on %s; %s", kept, "; ".join(f"{name} {kernel}" for name, kernel in kernels.items()))
    return LlamaHarness(
        placed,
        model.tokenizer,
        model.special_tokens,
        end_token_ids=model.end_token_ids,
        template=template,
        tokens_per_batch=config.tokens_per_batch,
        room=room_for(config, context.resources, model.config, _num_bytes(model)),
        answers=Answers(f"{context.work_path}/answers", context.attempt),
        on_progress=lambda done, total: context.progress(done, total, "requests"),
    )


def _template(config: LmEvalConfig, model: "ImportedModel") -> "ChatTemplate | None":
    if not config.apply_chat_template:
        return None
    if model.template is None:
        raise UserError(
            f"apply_chat_template is true, and {config.export.name!r} has no chat template, as most base models; set "
            "apply_chat_template=False."
        )
    return model.template


def _planned_mesh(resources: Resources, model: "ImportedModel") -> "Mesh | None":
    """Return the mesh that a plan has checked and compiled for; None leaves other devices to `PlacedModel`."""
    from runtime.parallel.mesh import make_mesh, present_machines

    if isinstance(resources, Cpu):
        return None
    check_platform(resources)
    _, devices = present_machines(resources.num_slices if isinstance(resources, Tpu) else 1)
    shape = evaluated_mesh(resources, model.config, _num_bytes(model))
    # In the driver's process (`--backend local`) a step computes on the accelerators that are there.
    return make_mesh(shape, devices) if len(devices) == math.prod(shape) else None


def _num_bytes(model: "ImportedModel") -> int:
    import jax

    return sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))


def write_files(
    scores: Iterable[TaskScore], samples: Iterable[Mapping[str, Any]], items: "Iterable[ItemScores]", folder: str
) -> None:
    """Write the scores, the first items with answers, and the values of all items."""
    import fsspec

    from runtime.evaluation.item_scores import ITEM_SCORES, to_json_lines

    with fsspec.open(f"{folder}/{ITEM_SCORES}", "wb") as file:
        file.write(to_json_lines(items))
    with fsspec.open(f"{folder}/{SAMPLES_FILE}", "wb") as file:
        for sample in samples:
            file.write((json.dumps(sample, ensure_ascii=False, sort_keys=True) + "\n").encode())
    # The result has the same scores; a user looks for a file.
    plain = [dataclasses.asdict(score) for score in scores]
    with fsspec.open(f"{folder}/scores.json", "wb") as file:
        file.write((json.dumps(plain, indent=2, sort_keys=True) + "\n").encode())
