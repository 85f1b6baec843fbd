"""Training of a byte-level BPE tokenizer with Llama 3's pre-tokenisation; equal documents give equal bytes."""

import re
from collections.abc import Iterable, Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# Llama 3's pattern (Meta's llama3 repository, llama/tokenizer.py): words keep their leading space, digits form groups
# of up to three, and white space keeps its last space for the next word.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BEGIN_OF_TEXT = "<|begin_of_text|>"
END_OF_TEXT = "<|end_of_text|>"
SPECIAL_TOKENS = (BEGIN_OF_TEXT, END_OF_TEXT)
LONGEST_RUN = 1 << 13
"""Characters."""
_RUN = re.compile(r"\s+|\S+")


def train(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Train a tokenizer; the special tokens have the ids 0 and 1, then come 256 bytes, then merges as learned."""
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
    tokenizer.train_from_iterator((piece for text in texts for piece in _cut(text)), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"vocab_size is {vocab_size}, but the texts hold only {tokenizer.get_vocab_size()} tokens: give more text "
            f"(bytes_per_source says how much of each source is read), or set vocab_size={tokenizer.get_vocab_size()}."
        )
    return tokenizer


def _cut(text: str) -> Iterator[str]:
    """Yield pieces without long runs of blanks or other characters: the trainer's time is quadratic in the longest."""
    begin = 0
    for run in _RUN.finditer(text) if len(text) > LONGEST_RUN else ():
        for end in range(run.start() + LONGEST_RUN, run.end(), LONGEST_RUN):
            yield text[begin:end]
            begin = end
    yield text[begin:]
