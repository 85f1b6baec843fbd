"""Training of a byte-level BPE tokenizer with Llama 3's pre-tokenisation; equal documents give equal bytes."""

import hashlib
import heapq
import re
from collections.abc import Iterable, Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.text.documents import Document

# Llama 3's pattern (Meta's llama3 repository, llama/tokenizer.py): words keep their leading space, digits form groups
# of up to three, and white space keeps its last space for the next word.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BEGIN_OF_TEXT = "<|begin_of_text|>"
END_OF_TEXT = "<|end_of_text|>"
SPECIAL_TOKENS = (BEGIN_OF_TEXT, END_OF_TEXT)
EVERY_KEY = 1 << 64
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


def sample_key(document: Document) -> int:
    """Return a document's place in the order in which samples take documents: the hash of its id."""
    return int.from_bytes(hashlib.blake2b(document.id.encode(), digest_size=8).digest(), "big")


def keys_below(num_bytes: int, of_bytes: int) -> int:
    """Return the key below which about `num_bytes` of a source of `of_bytes` are; all keys are below `EVERY_KEY`."""
    return EVERY_KEY if num_bytes >= of_bytes else EVERY_KEY * num_bytes // of_bytes


def sampled(documents: Iterable[Document], *, below: int, num_bytes: int) -> list[Document]:
    """Return the documents with the lowest keys below `below` that make up `num_bytes`, in the order given.

    Memory holds `num_bytes` and one document more. Taking the lowest keys of each shard's sample gives the sample of
    the whole source.
    """
    heap: list[tuple[int, int, Document]] = []
    total = 0
    for place, document in enumerate(documents):
        key = sample_key(document)
        if key < below and document.text:
            heapq.heappush(heap, (-key, place, document))
            total += size_of(document)
            while total - size_of(heap[0][2]) >= num_bytes:
                total -= size_of(heapq.heappop(heap)[2])
    return [document for _, _, document in sorted(heap, key=lambda entry: entry[1])]


def last_key(keys_and_sizes: Iterable[tuple[int, int]], num_bytes: int) -> tuple[int, bool]:
    """Return the last key that a sample of `num_bytes` takes (-1 without documents), and whether there were enough
    bytes."""
    key, taken = -1, 0
    for key, size in sorted(keys_and_sizes):
        taken += size
        if taken >= num_bytes:
            return key, True
    return key, False


def size_of(document: Document) -> int:
    """Return the UTF-8 bytes of the text."""
    return len(document.text.encode())
