"""Sample: text that a phase writes after the prompts of a recipe."""

from typing import Literal

from pydantic import BaseModel, Field

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.step import Input, StepContext, step
from steps.machine_checks import check_one_host
from steps.phase_checks import check_average_exists, check_one_tokenizer, described_by, tokenizers_of_phase
from steps.phase_result import TrainPhaseResult
from steps.tokenizer import TokenizerResult


class SampleConfig(BaseModel, frozen=True, extra="forbid"):
    """Prompts, and the weights that write after them."""

    phase: Input[TrainPhaseResult]
    tokenizer: Input[TokenizerResult]
    weights: str
    """ "hot" for the trained weights, or the name of EMA weights."""
    prompts: tuple[str, ...] = Field(min_length=1)
    max_new_tokens: int = Field(default=64, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    """0: the likeliest tokens."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Tokens are drawn from the likeliest ones whose shares together reach this."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    compute_dtype: Literal["bfloat16", "float32"] = "float32"


class SampleText(BaseModel, frozen=True, extra="forbid"):
    """The text after a prompt."""

    prompt: str
    text: str
    is_whole: bool
    """Whether the model ended the text."""


class SampleResult(BaseModel, frozen=True, extra="forbid"):
    """A text for each prompt, in the order of the config."""

    step: int
    consumed_tokens: int
    weights: str
    texts: tuple[SampleText, ...]


def check_phase(config: SampleConfig) -> None:
    """Raise ValueError where tokenizer, weights or length do not suit the phase."""
    check_one_tokenizer(tokenizers_of_phase("phase", config.phase) | {"tokenizer": config.tokenizer})
    check_average_exists("weights", config.phase, config.weights)
    writes = described_by(config.phase)
    if writes is not None and config.max_new_tokens >= (most := writes.model.max_position_embeddings):
        raise RefusedConfigError(
            f"max_new_tokens is {config.max_new_tokens:,}, and the context of {config.phase.name!r} is {most:,} tokens "
            "with the prompt; use fewer.",
            {"max_new_tokens": str(most // 2)},
        )


@step(policy="tracked", packages=("jax", "tokenizers"), check=check_phase, check_on=check_one_host)
def sample(config: SampleConfig, context: StepContext) -> SampleResult:
    """Write after all prompts at once, on all devices of one host; equal configs give equal texts."""
    import fsspec
    from tokenizers import Tokenizer

    from runtime.evaluation.sampling import Sampling
    from runtime.evaluation.writing import writer_of_checkpoint
    from runtime.interop.huggingface import SpecialTokens
    from runtime.parallel.jax_settings import settle_jax

    settle_jax()
    phase, tokenizer = config.phase.result, config.tokenizer.result
    with fsspec.open(config.tokenizer.join(tokenizer.tokenizer), "rb") as file:
        text_of_tokenizer = file.read().decode()
    writer = writer_of_checkpoint(
        config.phase.join(phase.checkpoint),
        config.weights,
        Tokenizer.from_str(text_of_tokenizer),
        SpecialTokens(tokenizer.eos_token_id, tokenizer.bos_token_id),
        compute_dtype=config.compute_dtype,
    )
    sampling = None
    if config.temperature:
        sampling = Sampling(config.temperature, top_p=config.top_p, seed=config.seed)
    texts = writer.write(config.prompts, max_new_tokens=config.max_new_tokens, sampling=sampling)
    return SampleResult(
        step=phase.step,
        consumed_tokens=phase.consumed_tokens,
        weights=config.weights,
        texts=tuple(SampleText(**text._asdict()) for text in texts),
    )
