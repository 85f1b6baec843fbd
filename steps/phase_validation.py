"""Phase validation: measurements on held-out text of a phase's own sources, and on tasks, while it trains."""

from jax.sharding import Mesh

from marin_dag.graph.step import Input, StepContext
from runtime.evaluation.stored_predictions import PREDICTIONS
from runtime.evaluation.validation import HeldOutValidation
from runtime.evaluation.window_batch import WINDOWS_PER_BATCH
from runtime.same_fields import filled_from
from runtime.tracking.events import EventLog
from runtime.training.observer import Observer
from steps.held_out import EvaluationProgram, open_held_out
from steps.phase_checks import check_vocabulary
from steps.phase_config import TrainPhaseConfig
from steps.tokenize import TokenizeResult


def validation_of(
    config: TrainPhaseConfig, context: StepContext, mesh: Mesh, events: EventLog, observer: Observer
) -> HeldOutValidation | None:
    """Return the validation of a phase; None where it has none, or where no source is fully tokenized.

    A growing cache has no held-out text yet. A later attempt measures its source, and the log says so.

    Raises:
        BitsPerByteError: a source has no held-out text.
    """
    if not config.validate_every_steps:
        return None
    whole = _whole_caches(config, context)
    if not whole:
        if config.validation_tasks:
            context.log.warning("validation: without validation_tasks too, until one source is tokenized")
        return None
    for tasks in config.validation_tasks:
        check_vocabulary(tasks.name, tasks.result.vocab_size, config.model.vocab_size)
    program = filled_from(config, EvaluationProgram, windows_per_batch=WINDOWS_PER_BATCH)
    texts, answers, kernels, predictor = open_held_out(
        whole,
        context,
        mesh,
        program,
        max_tokens_per_domain=config.validation_tokens_per_source,
        sampled_windows_per_domain=config.sampled_windows_per_source,
        answers={task: each.join(file) for each in config.validation_tasks for task, file in each.result.files.items()},
    )
    events.write(
        "held_out", kernels=kernels._asdict(), num_windows=texts.num_windows, windows_per_batch=texts.windows_per_batch
    )
    return HeldOutValidation(
        held_out=texts,
        max_tokens_per_domain=config.validation_tokens_per_source,
        answers=answers,
        num_answers={
            task: number for each in config.validation_tasks for task, number in each.result.num_answers.items()
        },
        every_steps=config.validate_every_steps,
        begin_step=config.begin_step,
        until_step=config.until_step,
        events=events,
        observer=observer,
        predictor=predictor,
        predictions_folder=f"{context.work_path}/{PREDICTIONS}" if context.host.index == 0 else None,
    )


def _whole_caches(config: TrainPhaseConfig, context: StepContext) -> dict[str, Input[TokenizeResult]]:
    """Return the caches that are fully tokenized; log the others."""
    whole = {name: cache for name, cache in config.caches.items() if not cache.is_growing}
    if growing := sorted(config.caches.keys() - whole.keys()):
        context.log.warning(
            "validation: without %s, which are still being tokenized; an attempt that begins later includes them",
            ", ".join(growing),
        )
    return whole
