"""Phase validation: the held-out text of a phase's own sources, measured while it trains."""

from collections.abc import Mapping

from jax.sharding import Mesh

from marin_dag.graph.step import StepContext
from runtime.evaluation.validation import Validation
from runtime.evaluation.window_batch import WINDOWS_PER_BATCH
from runtime.tracking.events import EventLog
from steps.held_out import held_out
from steps.phase_config import TrainPhaseConfig


def validation_of(config: TrainPhaseConfig, context: StepContext, mesh: Mesh, events: EventLog) -> Validation | None:
    """None where none is asked for, or where no source of the phase has been tokenized to its end.

    A cache that is still growing has no held-out text yet: its source is measured by a later attempt, and the log
    says so.

    Raises:
        BitsPerByteError: a source holds no text out.
    """
    if not config.validate_every_steps:
        return None
    whole = {name: cache for name, cache in config.caches.items() if not cache.is_growing}
    if growing := sorted(config.caches.keys() - whole.keys()):
        context.log.warning(
            "validation: %s still being tokenized; measured by an attempt that begins after that", ", ".join(growing)
        )
    if not whole:
        return None
    wanted = config.validation_tokens_per_source
    there = {name: cache.result.num_validation_tokens for name, cache in sorted(whole.items())}
    if few := [f"{name} {num_tokens:,}" for name, num_tokens in there.items() if num_tokens < wanted]:
        context.log.info(
            "validation: fewer held-out tokens than validation_tokens_per_source (%s): %s",
            *(f"{wanted:,}", ", ".join(few)),
        )

    def tell(step: int, means: Mapping[str, float]) -> None:
        said = ", ".join(f"{mean:.4f} ({which})" for which, mean in means.items())
        context.log.info(
            "step %d: %s bits per byte of held-out text, mean of %d sources, at most %s tokens of each",
            *(step, said, len(whole), f"{wanted:,}"),
        )

    texts, kernels = held_out(
        whole,
        context,
        mesh,
        config.model,
        config.rope,
        sequence_length=config.sequence_length,
        max_tokens_per_domain=wanted,
        windows_per_batch=WINDOWS_PER_BATCH,
        compute_dtype=config.compute_dtype,
        attention_kernel=config.attention_kernel,
        loss_kernel=config.loss_kernel,
    )
    events.write(
        "held_out",
        kernels=kernels._asdict(),
        num_windows=texts.num_windows,
        windows_per_batch=texts.windows_per_batch,
    )
    return Validation(
        held_out=texts,
        every_steps=config.validate_every_steps,
        begin_step=config.begin_step,
        until_step=config.until_step,
        events=events,
        tell=tell,
    )
