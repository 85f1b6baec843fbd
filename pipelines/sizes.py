"""Sizes of the flagship, from 30 million to 32 billion parameters: a few numbers for each, and rules for the rest.

A size is named after its parameters without embeddings. Rules, all relative to the public 8B run:

- The MLP is 3.5 times as wide as the model, and four query heads share a key-value head.
- The main line has `tokens_per_parameter` tokens; 20 are compute-optimal (arXiv:2203.15556).
- Batches and learning rates follow the Step Law (arXiv:2503.04715): the best batch grows as D^0.571, and the best rate
  as N^-0.713 D^0.307, for N parameters without embeddings and D tokens. At the 8B's N and D, the law gives 17.6 million
  tokens and 1.8e-3; the public run had 12.6 million and 1.7e-3.
- Parts of the run keep their shares of its tokens (`pipelines.length`).
"""

import dataclasses
import math
from typing import Any, NamedTuple

from marin_dag.graph.resources import Gpu, Resources, Tpu
from pipelines.length import lengths_at, main_line_tokens
from pipelines.scales import EIGHT_B, LAPTOP, BatchSize, Scale
from runtime.model.initialization import LEVANTER
from runtime.model.llama.config import LlamaConfig

NEOX_VOCAB_SIZE = 50_432
"""The 50,277 ids of GPT-NeoX's tokenizer, padded to a multiple of 256, which the fastest loss on GPUs needs.

The embeddings of Llama 3's ids would be most parameters of a small model.
"""
RATE_BY_PARAMETERS, RATE_BY_TOKENS, BATCH_BY_TOKENS = -0.713, 0.307, 0.571
LEAST_BATCH = 8
"""Fewest sequences of a batch, so that eight devices can share it."""


def model_of(
    num_hidden_layers: int, hidden_size: int, head_dim: int, *, max_position_embeddings: int, **others: int | bool
) -> LlamaConfig:
    """Return a Llama with the 8B's proportions, except for `others`."""
    num_heads = hidden_size // head_dim
    proportions: dict[str, int | bool] = {
        "vocab_size": NEOX_VOCAB_SIZE,
        "intermediate_size": hidden_size * 7 // 2,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads // 4,
    }
    return LlamaConfig(
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        initialization=LEVANTER,
        **proportions | others,  # type: ignore[arg-type]
    )


SAMPLED_DATA_SETTINGS: dict[str, Any] = {
    "corpus": "shares",
    "reduce_dtype": "float32",
    "validation_share": 0.005,
    "evaluation_tokens": 2**18,
    "validation_tokens_per_source": 2**16,
    "tokenizer_bytes_per_source": 64 << 20,
    "publish_every_steps": 0,
    "training_policy": "tracked",
}
"""Settings of sizes that train on a share of the data sets, on few machines."""


class Size(NamedTuple):
    """The numbers of a size that no rule gives."""

    model: LlamaConfig
    resources: Resources
    """Machines without `--on`."""
    tokens_per_parameter: float = 20.0
    is_published: bool = False
    """Whether it trains on the whole data sets of the public run, with the 8B's tokenizer."""


SIZES = {
    "30m": Size(model_of(8, 512, 64, max_position_embeddings=2048), Gpu("H100", 1)),
    "125m": Size(model_of(16, 768, 64, max_position_embeddings=2048), Gpu("H100", 1)),
    "400m": Size(model_of(18, 1280, 64, max_position_embeddings=2048), Gpu("H100", 1)),
    "1b": Size(model_of(18, 2048, 128, max_position_embeddings=4096), Gpu("H100", 8)),
    "3b": Size(model_of(24, 3072, 128, max_position_embeddings=4096), Gpu("H100", 8)),
    # The shape of Qwen3 32B, with the QK-norm that the public 32B run needed, and that run's tokens: 6.4 trillion.
    "32b": Size(
        model_of(
            64,
            5120,
            128,
            max_position_embeddings=4096,
            vocab_size=EIGHT_B.model.vocab_size,
            intermediate_size=27_648,
            num_key_value_heads=8,
            use_qk_norm=True,
        ),
        Tpu("v5p-512"),
        tokens_per_parameter=205.0,
        is_published=True,
    ),
}


def parameters_without_embeddings(model: LlamaConfig) -> int:
    """Return the number of parameters that a size is named after."""
    return model.num_parameters - model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)


def derived(name: str, tokens: float | None = None) -> Scale:
    """Return the scale of a size of `SIZES`; `tokens` are those of its main line, by default by its parameters."""
    size = SIZES[name]
    num_parameters = parameters_without_embeddings(size.model)
    if tokens is None:
        tokens = size.tokens_per_parameter * num_parameters
    parameter_ratio = num_parameters / parameters_without_embeddings(EIGHT_B.model)
    token_ratio = tokens / main_line_tokens(EIGHT_B)
    rate = float(f"{parameter_ratio**RATE_BY_PARAMETERS * token_ratio**RATE_BY_TOKENS:.2g}")
    length = size.model.max_position_embeddings
    batches = _batches(token_ratio, length)
    return dataclasses.replace(
        EIGHT_B,
        name=name,
        model=size.model,
        sequence_length=length,
        batches=batches,
        float32_num_microbatches=1,
        rate=rate,
        cooled_rate=rate * EIGHT_B.cooled_rate,
        deeply_cooled_rate=rate * EIGHT_B.deeply_cooled_rate,
        kestrel_resources=size.resources,
        kestrel_scatter_kernel="xla",
        main_resources=size.resources,
        branch_resources=size.resources,
        scoring_resources=size.resources if isinstance(size.resources, Gpu) else EIGHT_B.scoring_resources,
        **({} if size.is_published else SAMPLED_DATA_SETTINGS) | lengths_at(EIGHT_B, tokens, batches, length),
    )


def _batches(token_ratio: float, sequence_length: int) -> tuple[BatchSize, BatchSize, BatchSize]:
    """Return the recipe's three batches, in its ratio of 1 to 3 to 4; the first is a power of two near the law's."""
    first = EIGHT_B.batches[0].global_batch_size
    wanted = first * EIGHT_B.sequence_length / sequence_length * token_ratio**BATCH_BY_TOKENS
    sequences = max(LEAST_BATCH, 2 ** round(math.log2(wanted)))
    small, large, largest = (BatchSize(sequences * each.global_batch_size // first, 1) for each in EIGHT_B.batches)
    return small, large, largest


SCALES = {
    scale.name: scale
    for scale in sorted((LAPTOP, EIGHT_B, *map(derived, SIZES)), key=lambda scale: scale.model.num_parameters)
}
"""Scales by name, the smallest first."""


def scale_at(name: str, tokens: float | None) -> Scale:
    """Return a scale at its own length, or with `tokens` in its main line."""
    scale = SCALES[name]
    if tokens is None:
        return scale
    if name in SIZES:
        return derived(name, tokens)
    return dataclasses.replace(scale, **lengths_at(scale, tokens, scale.batches, scale.sequence_length))
