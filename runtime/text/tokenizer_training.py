"""Training of a byte-level BPE tokenizer with Llama 3's pre-tokenisation; equal documents give equal bytes."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.text.documents import read_documents

# Llama 3's own pattern (Meta's llama3 repository, llama/tokenizer.py): words keep their leading space, digits go
# in groups of up to three, runs of white space keep the last space for the word that follows.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BEGIN_OF_TEXT = "<|begin_of_text|>"
END_OF_TEXT = "<|end_of_text|>"
SPECIAL_TOKENS = (BEGIN_OF_TEXT, END_OF_TEXT)


def train(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Specials have the ids 0 and 1, then come the 256 bytes, then the merges in the order they were learned."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"vocab_size is {vocab_size}, but the texts hold only {tokenizer.get_vocab_size()} tokens; train on more "
            "text or ask for fewer."
        )
    return tokenizer


def sample_texts(shards: Mapping[str, Sequence[str]], *, bytes_per_source: int) -> Iterator[str]:
    """Up to `bytes_per_source` of whole documents of each source: those whose ids hash lowest, in document order.

    What is chosen depends on ids and sizes alone, not on how the documents are cut into shards.
    """
    for _, paths in sorted(shards.items()):
        ranked = sorted(
            (hashlib.blake2b(document.id.encode(), digest_size=8).digest(), len(document.text.encode()))
            for document in read_documents(paths)
        )
        limit, taken = b"", 0
        for key, size in ranked:
            taken += size
            limit = key
            if taken >= bytes_per_source:
                break
        for document in read_documents(paths):
            if hashlib.blake2b(document.id.encode(), digest_size=8).digest() <= limit:
                yield document.text
