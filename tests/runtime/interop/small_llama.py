"""A Llama small enough for any test, and a byte-level tokenizer that fits it."""

import zlib
from pathlib import Path

import jax
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import Llama, LlamaParams

CONFIG = LlamaConfig(
    vocab_size=320,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
)


def model(config: LlamaConfig = CONFIG) -> LlamaParams:
    """A random model with wide enough weights for attention to matter, and norms that are not all one nor alike."""

    def moved(path: tuple[object, ...], leaf: jax.Array) -> jax.Array:
        if "norm" not in str(path[-1]):
            return 5 * leaf
        # By name: two norms of one shape must differ, or nobody would see them exchanged.
        return leaf + 0.1 * jax.random.normal(jax.random.key(zlib.crc32(str(path).encode())), leaf.shape)

    return jax.tree_util.tree_map_with_path(moved, Llama(config).init(jax.random.key(0)))


def tokenizer_file(path: Path, *, with_bos: bool = False) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|end_of_text|>", "<|begin_of_text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog " * 20, "naïve café"], trainer)
    if with_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 1)]
        )
    tokenizer.save(str(path))
    return path
