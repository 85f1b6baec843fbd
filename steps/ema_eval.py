"""EMA eval: bits per byte of a phase's weights and EMA weights on held-out text of each domain."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Input, Runtime, StepContext, step
from runtime.evaluation.window_batch import WINDOWS_PER_BATCH
from runtime.optim.ema import HOT, Ema, average_named
from runtime.same_fields import filled_from
from steps.held_out import EvaluationProgram, open_held_out
from steps.joined_mesh import LOST_PEER_ERRORS, joined_mesh
from steps.machine_checks import check_evaluation
from steps.phase_checks import (
    check_average_exists,
    check_one_tokenizer,
    described_by,
    tokenizers_of,
    tokenizers_of_phase,
)
from steps.phase_result import TrainPhaseResult
from steps.tokenize import TokenizeResult

if TYPE_CHECKING:
    from runtime.evaluation.bits_per_byte import BitsPerByte
    from runtime.evaluation.token_predictions import Predictions


class EmaEvalConfig(BaseModel, frozen=True, extra="forbid"):
    """The weights and the text to measure."""

    phase: Input[TrainPhaseResult]
    caches: dict[str, Input[TokenizeResult]]
    """Domain -> tokenized source, whose held-out documents are read."""
    max_tokens_per_domain: int = Field(ge=1)
    """Most tokens, spread evenly over the domain's held-out text."""
    average: str | None = None
    """Name of the EMA weights to measure besides the trained weights; None measures all of the phase."""
    compute_dtype: Literal["bfloat16", "float32"] = "float32"
    sampled_windows_per_domain: int = Field(default=2, ge=0)
    """Windows of each domain whose tokens' predictions the output keeps, for `heat-map`."""
    windows_per_batch: Runtime[int] = Field(default=WINDOWS_PER_BATCH, ge=1)
    """Fewest windows of a batch; with more devices, one for each."""
    replica_parallel: Runtime[int] = Field(default=1, ge=1)
    """Copies of the parameters in each TPU slice, or over all hosts, as `TrainPhaseConfig.replica_parallel`."""
    attention_kernel: Runtime[str | None] = None
    """None is the fastest kernel that is known to be right on the devices; an unsuitable name is an error."""
    loss_kernel: Runtime[str | None] = None
    """See `attention_kernel`."""


class AverageResult(BaseModel, frozen=True, extra="forbid"):
    """Bits per byte of one set of EMA weights by domain, and their mean."""

    average: Ema
    by_domain: dict[str, float]
    mean: float


class EmaEvalResult(BaseModel, frozen=True, extra="forbid"):
    """Bits per byte by domain, and means over domains with equal weights."""

    step: int
    consumed_tokens: int
    hot: dict[str, float]
    hot_mean: float
    averages: tuple[AverageResult, ...]
    """The EMA weights of the phase in their order, or the one that the config names."""
    num_bytes: dict[str, int]
    """Predicted UTF-8 bytes of held-out text."""
    num_tokens: dict[str, int]


def check_phase(config: EmaEvalConfig) -> None:
    """Raise ValueError where tokenizer, average or window length do not suit the phase."""
    if config.average == HOT:
        raise RefusedConfigError(
            "average: 'hot' names the trained weights, which are always measured; remove it, or use the name of EMA "
            "weights.",
            {"average": "null"},
        )
    check_one_tokenizer(tokenizers_of_phase("phase", config.phase) | tokenizers_of(config.caches))
    check_average_exists("average", config.phase, config.average, instead="null")
    scored = described_by(config.phase)
    if scored is not None and config.max_tokens_per_domain < scored.sequence_length:
        raise RefusedConfigError(
            f"max_tokens_per_domain is {config.max_tokens_per_domain:,}, less than one window of the sequence_length "
            f"of {config.phase.name!r} ({scored.sequence_length:,} tokens); use at least that.",
            {"max_tokens_per_domain": str(scored.sequence_length)},
        )


def check_machines(config: EmaEvalConfig, resources: Resources) -> None:
    """Raise ValueError where the machines cannot share the model, or a kernel cannot run on them with its shapes."""
    phase = described_by(config.phase)
    if phase is not None:
        check_evaluation(phase, config, resources)


@step(
    policy="tracked", packages=("jax",), check=check_phase, check_on=check_machines, lost_peer_errors=LOST_PEER_ERRORS
)
def ema_eval(config: EmaEvalConfig, context: StepContext) -> EmaEvalResult:
    """Score all sets of weights on the same windows with one compiled program, on all devices of all hosts."""
    from runtime.evaluation.stored_predictions import PREDICTIONS_FILE, write_predictions
    from runtime.evaluation.trained_model import TrainedModel
    from runtime.training.watchdog import Watchdog

    mesh = joined_mesh(context, replica_parallel=config.replica_parallel)
    phase = config.phase.result
    model = TrainedModel.open(config.phase.join(phase.checkpoint))
    found = model.description
    program = filled_from(
        config, EvaluationProgram, model=found.config, rope=found.rope, sequence_length=found.sequence_length
    )
    texts, _, kernels, predictor = open_held_out(
        config.caches,
        context,
        mesh,
        program,
        max_tokens_per_domain=config.max_tokens_per_domain,
        sampled_windows_per_domain=config.sampled_windows_per_domain,
    )
    context.computed_with(**kernels.described())
    averages = phase.averages
    if config.average is not None:
        averages = (average_named(phase.averages, config.average, owner=f"average: {config.phase.name}"),)
    names = [HOT, *(average.name for average in averages)]
    scores: dict[str, dict[str, BitsPerByte]] = {}
    predicted: dict[str, Predictions] = {}
    watchdog = Watchdog("batch")
    with watchdog.watching():
        for index, which in enumerate(names):

            def on_batch(done: int, before: int = index * texts.num_batches) -> None:
                context.progress(before + done, len(names) * texts.num_batches, "batches")

            params = model.params(which, mesh)
            scores[which] = texts.scores(params, on_batch=on_batch, watchdog=watchdog)
            if predictor is not None:
                predicted[which] = predictor.predict(params)
            for domain, score in scores[which].items():
                context.log.info("%s weights, %s: %.4f bits per byte", which, domain, score.bits_per_byte)
    if predictor is not None and context.host.index == 0:
        table = predictor.table(phase.step, phase.consumed_tokens, predicted)
        write_predictions(f"{context.output_path}/{PREDICTIONS_FILE}", table)
    return _result(phase, averages, scores)


def _result(
    phase: TrainPhaseResult, averages: "tuple[Ema, ...]", scores: "Mapping[str, Mapping[str, BitsPerByte]]"
) -> EmaEvalResult:
    from runtime.evaluation.bits_per_byte import macro_average

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
