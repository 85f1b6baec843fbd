"""EMA eval: bits per byte of a phase's weights, hot and averaged, on held-out text of each domain."""

from typing import Literal

from pydantic import BaseModel, Field

from marin_dag.errors import RefusedConfigError
from marin_dag.resources import Resources
from marin_dag.step import Input, Runtime, StepContext, step
from runtime.evaluation.window_batch import WINDOWS_PER_BATCH, window_batch
from runtime.optim.ema import Ema, average_named
from steps.joined_mesh import joined_mesh
from steps.machine_checks import mesh_on, refuse_kernels, shape_on
from steps.phase_checks import (
    imported_by,
    refuse_several_tokenizers,
    refuse_unkept_average,
    tokenizers_of,
    tokenizers_of_phase,
)
from steps.tokenize import TokenizeResult
from steps.train_phase import TrainPhaseConfig, TrainPhaseResult


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
    """Raises where the phase is trained under another tokenizer than that of the text, or keeps no such
    average."""
    phase = config.phase.config_of(TrainPhaseConfig)
    if config.average == "hot":
        raise RefusedConfigError(
            "average: 'hot' are the weights as last trained, which are measured in any case; leave it out, or name an "
            "average to measure beside them.",
            {"average": "null"},
        )
    refuse_several_tokenizers(tokenizers_of_phase("phase", config.phase, phase) | tokenizers_of(config.caches))
    refuse_unkept_average("average", config.phase, phase, config.average, instead="null")


def check_machines(config: EmaEvalConfig, resources: Resources) -> None:
    """What can be known before the phase is trained.

    Raises:
        ValueError: the machines cannot share the model, or the attention kernel cannot run on them, or not at the
            phase's length and head size.
    """
    phase = config.phase.config_of(TrainPhaseConfig) or imported_by(config.phase)
    if phase is None:
        return
    mesh = mesh_on(resources, phase.model, replica_parallel=config.replica_parallel)
    try:
        shape = shape_on(
            resources,
            phase.model,
            num_rows=window_batch(config.windows_per_batch, mesh.batch_parts),
            sequence_length=phase.sequence_length,
            compute_dtype=config.compute_dtype,
        )
        refuse_kernels(shape, attention_kernel=config.attention_kernel)
    except ValueError as error:
        raise ValueError(f"on {resources}: {error} Or name another one: attention_kernel='chunked'.") from None


@step(policy="tracked", packages=("jax",), check=check_phase, check_on=check_machines)
def ema_eval(config: EmaEvalConfig, context: StepContext) -> EmaEvalResult:
    """All sets of weights see the same windows through the same compiled program, over all devices of all hosts."""
    import numpy as np

    from runtime.data.cache import TokenCache
    from runtime.evaluation.bits_per_byte import BitsPerByte, bits_per_byte, held_out_windows, macro_average
    from runtime.evaluation.trained_model import TrainedModel
    from runtime.kernels.choice import chosen_kernels, described_blocks, kernel_shape
    from runtime.parallel.host_rows import host_rows
    from runtime.parallel.mesh import num_batch_parts
    from runtime.training.eval_step import build_eval_step

    mesh = joined_mesh(context, replica_parallel=config.replica_parallel)
    windows_per_batch = window_batch(config.windows_per_batch, num_batch_parts(mesh))
    rows = None if context.host.num_hosts == 1 else host_rows(mesh, windows_per_batch)
    phase = config.phase.result
    model = TrainedModel.open(config.phase.join(phase.checkpoint))
    sequence_length = model.description.sequence_length
    shape = kernel_shape(
        mesh,
        model.description.config,
        num_rows=windows_per_batch,
        sequence_length=sequence_length,
        compute_dtype=config.compute_dtype,
    )
    kernels = chosen_kernels(shape, attention_kernel=config.attention_kernel)
    blocks = described_blocks(kernels.attention, kernels.loss, shape)
    context.log.info(
        "%d windows a batch on %d devices; attention %s: %s; loss %s: %s; %s",
        *(windows_per_batch, mesh.size, kernels.attention, blocks["attention"], kernels.loss, blocks["loss"]),
        kernels.reason,
    )
    eval_step = build_eval_step(
        model.description.config,
        model.description.rope,
        mesh,
        attention_kernel=kernels.attention,
        loss_kernel=kernels.loss,
        compute_dtype=config.compute_dtype,
    )
    domains = {}
    for domain, source in sorted(config.caches.items()):
        cache = TokenCache.open(source.join(source.result.validation))
        windows = held_out_windows(
            cache, sequence_length=sequence_length, max_tokens=config.max_tokens_per_domain, rows=rows
        )
        domains[domain] = (windows, np.asarray(cache.token_bytes))
    averages = phase.averages
    if config.average is not None:
        averages = (average_named(phase.averages, config.average, owner=f"average: {config.phase.name}"),)
    kinds = ["hot", *(average.name for average in averages)]
    scores: dict[str, dict[str, BitsPerByte]] = {}
    for place, which in enumerate(kinds):
        params = model.params(which, mesh)
        scores[which] = {}
        for number, (domain, (windows, token_bytes)) in enumerate(domains.items()):
            scores[which][domain] = bits_per_byte(
                eval_step, params, windows, token_bytes, windows_per_batch=windows_per_batch, rows=rows
            )
            bits = scores[which][domain].bits_per_byte
            context.log.info("%s weights, %s: %.4f bits per byte", which, domain, bits)
            context.progress(place * len(domains) + number + 1, len(kinds) * len(domains), "domains")
    values = {
        which: {domain: score.bits_per_byte for domain, score in by_domain.items()}
        for which, by_domain in scores.items()
    }
    return EmaEvalResult(
        step=phase.step,
        consumed_tokens=phase.consumed_tokens,
        hot=values["hot"],
        hot_mean=macro_average(values["hot"]),
        averages=tuple(
            AverageResult(average=average, by_domain=values[average.name], mean=macro_average(values[average.name]))
            for average in averages
        ),
        num_bytes={domain: score.num_bytes for domain, score in scores["hot"].items()},
        num_tokens={domain: score.num_tokens for domain, score in scores["hot"].items()},
    )
