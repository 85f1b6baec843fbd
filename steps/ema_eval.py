"""EMA eval: bits per byte of a phase's weights, hot and averaged, on held-out text of each domain."""

import functools
from typing import Literal

from pydantic import BaseModel, Field

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Input, Runtime, StepContext, step
from runtime.evaluation.window_batch import WINDOWS_PER_BATCH, window_batch
from runtime.kernels.kernel_shape import KernelShape
from runtime.optim.ema import HOT, Ema, average_named
from steps.held_out import held_out
from steps.joined_mesh import joined_mesh
from steps.machine_checks import devices_on, mesh_on, refuse_kernels
from steps.phase_checks import (
    imported_by,
    check_one_tokenizer,
    check_average_exists,
    tokenizers_of,
    tokenizers_of_phase,
)
from steps.phase_config import TrainPhaseConfig
from steps.phase_result import TrainPhaseResult
from steps.tokenize import TokenizeResult


class EmaEvalConfig(BaseModel, frozen=True, extra="forbid"):
    """What is measured, on what."""

    phase: Input[TrainPhaseResult]
    caches: dict[str, Input[TokenizeResult]]
    """Domain -> tokenized source, of which the held-out documents are read."""
    max_tokens_per_domain: int = Field(ge=1)
    """Enough of them are spread evenly over the domain's held-out text."""
    average: str | None = None
    """Name of the average to measure beside the hot weights; None measures every one that the phase keeps."""
    compute_dtype: Literal["bfloat16", "float32"] = "float32"
    windows_per_batch: Runtime[int] = Field(default=WINDOWS_PER_BATCH, ge=1)
    """At least so many; as many as there are devices where that is more."""
    replica_parallel: Runtime[int] = Field(default=1, ge=1)
    """Copies of the parameters in each TPU slice, or over all hosts, as `TrainPhaseConfig.replica_parallel`."""
    attention_kernel: Runtime[str | None] = None
    """None takes the fastest that is known to be right where it runs; a name is taken or refused."""
    loss_kernel: Runtime[str | None] = None
    """As `attention_kernel`."""


class AverageResult(BaseModel, frozen=True, extra="forbid"):
    """Bits per byte by domain of one average, and their mean."""

    average: Ema
    by_domain: dict[str, float]
    mean: float


class EmaEvalResult(BaseModel, frozen=True, extra="forbid"):
    """Bits per byte by domain, and means over domains, each counting the same."""

    step: int
    consumed_tokens: int
    hot: dict[str, float]
    hot_mean: float
    averages: tuple[AverageResult, ...]
    """Those of the phase in their order, or the one asked for by name; none where the phase keeps none."""
    num_bytes: dict[str, int]
    """UTF-8 bytes of held-out text that were predicted."""
    num_tokens: dict[str, int]


def check_phase(config: EmaEvalConfig) -> None:
    """Raises where the phase is trained under another tokenizer than that of the text, or keeps no such average, or
    its windows are longer than the text may be."""
    phase = config.phase.config_of(TrainPhaseConfig)
    if config.average == HOT:
        raise RefusedConfigError(
            "average: 'hot' are the weights as last trained, which are measured in any case; leave it out, or name an "
            "average to measure beside them.",
            {"average": "null"},
        )
    check_one_tokenizer(tokenizers_of_phase("phase", config.phase, phase) | tokenizers_of(config.caches))
    check_average_exists("average", config.phase, phase, config.average, instead="null")
    scored = phase or imported_by(config.phase)
    if scored is not None and config.max_tokens_per_domain < scored.sequence_length:
        raise RefusedConfigError(
            f"max_tokens_per_domain is {config.max_tokens_per_domain:,}, and held-out text is measured in windows of "
            f"the sequence_length of {config.phase.name!r}, which is {scored.sequence_length:,}; take at least one.",
            {"max_tokens_per_domain": str(scored.sequence_length)},
        )


def check_machines(config: EmaEvalConfig, resources: Resources) -> None:
    """What can be known before the phase is trained.

    Raises:
        ValueError: the machines cannot share the model, or a kernel cannot run on them, or not at the lengths and
            sizes.
    """
    phase = config.phase.config_of(TrainPhaseConfig) or imported_by(config.phase)
    if phase is None:
        return
    mesh = mesh_on(resources, phase.model, replica_parallel=config.replica_parallel)
    try:
        shape = KernelShape.of(
            devices_on(resources),
            phase.model,
            num_rows=window_batch(config.windows_per_batch, mesh.batch_parts),
            sequence_length=phase.sequence_length,
            compute_dtype=config.compute_dtype,
        )
        refuse_kernels(shape, attention_kernel=config.attention_kernel, loss_kernel=config.loss_kernel)
    except ValueError as error:
        raise ValueError(f"on {resources}: {error} Or name another one: attention_kernel='chunked'.") from None


@step(policy="tracked", packages=("jax",), check=check_phase, check_on=check_machines)
def ema_eval(config: EmaEvalConfig, context: StepContext) -> EmaEvalResult:
    """All sets of weights see the same windows through the same compiled program, over all devices of all hosts."""
    from runtime.evaluation.bits_per_byte import BitsPerByte, macro_average
    from runtime.evaluation.trained_model import TrainedModel
    from runtime.training.watchdog import Watchdog

    mesh = joined_mesh(context, replica_parallel=config.replica_parallel)
    phase = config.phase.result
    model = TrainedModel.open(config.phase.join(phase.checkpoint))
    texts, kernels = held_out(
        config.caches,
        context,
        mesh,
        model.description.config,
        model.description.rope,
        sequence_length=model.description.sequence_length,
        max_tokens_per_domain=config.max_tokens_per_domain,
        windows_per_batch=config.windows_per_batch,
        compute_dtype=config.compute_dtype,
        attention_kernel=config.attention_kernel,
        loss_kernel=config.loss_kernel,
    )
    context.computed_with(**kernels.described())
    averages = phase.averages
    if config.average is not None:
        averages = (average_named(phase.averages, config.average, owner=f"average: {config.phase.name}"),)
    kinds = [HOT, *(average.name for average in averages)]

    def tell(before: int, done: int) -> None:
        context.progress(before + done, len(kinds) * texts.num_batches, "batches")

    scores: dict[str, dict[str, BitsPerByte]] = {}
    watchdog = Watchdog("batch")
    with watchdog.watching():
        for place, which in enumerate(kinds):
            told = functools.partial(tell, place * texts.num_batches)
            scores[which] = texts.scores(model.params(which, mesh), on_batch=told, watchdog=watchdog)
            for domain, score in scores[which].items():
                context.log.info("%s weights, %s: %.4f bits per byte", which, domain, score.bits_per_byte)
    values = {
        which: {domain: score.bits_per_byte for domain, score in by_domain.items()}
        for which, by_domain in scores.items()
    }
    return EmaEvalResult(
        step=phase.step,
        consumed_tokens=phase.consumed_tokens,
        hot=values[HOT],
        hot_mean=macro_average(values[HOT]),
        averages=tuple(
            AverageResult(average=average, by_domain=values[average.name], mean=macro_average(values[average.name]))
            for average in averages
        ),
        num_bytes={domain: score.num_bytes for domain, score in scores[HOT].items()},
        num_tokens={domain: score.num_tokens for domain, score in scores[HOT].items()},
    )
