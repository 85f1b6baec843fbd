"""HF export: a phase's weights and tokenizer as a folder that `transformers` loads."""

from typing import Literal

from pydantic import BaseModel

from marin_dag.graph.step import Input, StepContext, step
from runtime.optim.ema import HOT, Ema, average_named
from steps.machine_checks import check_one_host
from steps.phase_checks import check_average_exists, check_one_tokenizer, tokenizers_of_phase
from steps.phase_result import TrainPhaseResult
from steps.tokenizer import TokenizerResult


class HfExportConfig(BaseModel, frozen=True, extra="forbid"):
    """Weights and form of an export."""

    phase: Input[TrainPhaseResult]
    tokenizer: Input[TokenizerResult]
    weights: str
    """ "hot" for the weights themselves, or the name of an average that the phase keeps ("averaged" by default). There
    is no
    default: they differ, and readers of the export must know which they have."""
    dtype: Literal["float32", "bfloat16"]
    model_name: str
    """Title of the model card."""
    max_shard_size_in_bytes: int = 5_000_000_000


class HfExportResult(BaseModel, frozen=True, extra="forbid"):
    """The folder, relative to the step's output, and its contents."""

    folder: str
    files: tuple[str, ...]
    weights: str
    average: Ema | None = None
    """The average that the weights are; None for "hot"."""
    dtype: Literal["float32", "bfloat16"]
    num_parameters: int
    step: int
    consumed_tokens: int


def check_phase(config: HfExportConfig) -> None:
    """Raise ValueError where the phase is trained with another tokenizer, or keeps no such average."""
    check_one_tokenizer(tokenizers_of_phase("phase", config.phase) | {"tokenizer": config.tokenizer})
    check_average_exists("weights", config.phase, config.weights)


@step(policy="tracked", packages=("safetensors",), check=check_phase, check_on=check_one_host)
def hf_export(config: HfExportConfig, context: StepContext) -> HfExportResult:
    """Export weights, configuration, tokenizer and a model card, in the memory of one host."""
    from runtime.evaluation.trained_model import TrainedModel
    from runtime.interop.huggingface import SpecialTokens, write_model, write_tokenizer
    from runtime.interop.model_card import ModelCard, write_card
    from runtime.training.checkpoint import read_metadata

    phase, tokenizer = config.phase.result, config.tokenizer.result
    average = None
    if config.weights != HOT:
        average = average_named(phase.averages, config.weights, owner=f"weights: {config.phase.name}")
    model = TrainedModel.open(config.phase.join(phase.checkpoint))
    description = model.description
    folder = f"{context.output_path}/model"
    special_tokens = SpecialTokens(tokenizer.eos_token_id, tokenizer.bos_token_id)
    files = write_model(
        folder,
        model.params(config.weights, None),
        description.config,
        description.rope,
        special_tokens,
        dtype=config.dtype,
        max_shard_size_in_bytes=config.max_shard_size_in_bytes,
    )
    files += write_tokenizer(
        folder,
        config.tokenizer.join(tokenizer.tokenizer),
        special_tokens,
        vocab_size=description.config.vocab_size,
        max_length=description.config.max_position_embeddings,
    )
    facts = read_metadata(model.checkpoint)["facts"]
    card = ModelCard(
        name=config.model_name,
        weights=config.weights,
        average_decay=None if average is None else average.decay,
        dtype=config.dtype,
        step=phase.step,
        consumed_tokens=phase.consumed_tokens,
        num_parameters=description.config.num_parameters,
        architecture=description.config.title,
        sequence_length=description.sequence_length,
        phase_digest=config.phase.digest,
        tokenizer_digest=tokenizer.digest,
        num_merged=len(facts.get("merged", ())),
        merged_weights=facts.get("merged_weights"),
    )
    files += write_card(folder, card)
    context.log.info("exported %s weights of step %d: %d files", config.weights, phase.step, len(files))
    return HfExportResult(
        folder="model",
        files=tuple(sorted(files)),
        weights=config.weights,
        average=average,
        dtype=config.dtype,
        num_parameters=card.num_parameters,
        step=phase.step,
        consumed_tokens=phase.consumed_tokens,
    )
