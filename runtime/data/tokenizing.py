"""Tokenizing: one shard of documents in, its tokens out, split into training and validation by the text."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import fsspec
import numpy as np
from tokenizers import Tokenizer

from runtime.data.cache import CacheError, ShardRecord, TokenCache, TokenFormat
from runtime.data.cache_writer import ShardWriter, finish_cache
from runtime.data.gates import ShardCounts
from runtime.data.permutation import key_of, permuted
from runtime.data.token_bytes import token_bytes
from runtime.text.documents import Document, read_batches

SPLITS = ("train", "validation")
BATCH_BYTES = 4 << 20
"""Text that is encoded at once: enough for every core, little enough to hold many such."""


class TokenizerMismatchError(ValueError):
    """A tokenizer file that is not the one whose identity the step declares."""


@dataclass(frozen=True)
class SplitShard:
    """What one shard of documents became."""

    train: ShardRecord
    validation: ShardRecord
    counts: ShardCounts

    def to_json(self) -> dict:
        """As JSON data; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict) -> "SplitShard":
        """From what `to_json` gave."""
        train, validation = (ShardRecord(**document[split]) for split in SPLITS)
        return cls(train, validation, ShardCounts(**document["counts"]))


class Encoder:
    """A `tokenizer.json` as a plain function from texts to ids; what a text spells is never a special token."""

    def __init__(self, path: str, token_format: TokenFormat) -> None:
        with fsspec.open(path, "rb") as file:
            content = file.read()
        found = hashlib.sha256(content).hexdigest()
        digest = token_format.tokenizer_digest
        if found != digest:
            raise TokenizerMismatchError(
                f"{path}: recorded sha256: {digest[:12]}…; now: {found[:12]}…. The file was changed after it was "
                "committed; run the step that made the tokenizer with --force."
            )
        self.token_bytes = token_bytes(content.decode())
        if len(self.token_bytes) != token_format.vocab_size:
            raise TokenizerMismatchError(
                f"{path}: has {len(self.token_bytes)} ids, recorded is a vocabulary of {token_format.vocab_size}. "
                "Declare the vocabulary that the file has: a model of another size would index past its embedding."
            )
        self._tokenizer = Tokenizer.from_str(content.decode())
        # A web page that spells out the end-of-text token must not end its document.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self.unknown_id = None if unknown is None else self._tokenizer.token_to_id(unknown)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Bare ids of each text, on all cores."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int64) for encoding in encodings]


def is_validation(text: str, validation_share: float) -> bool:
    """Whether a document is held out: by the hash of its text alone, so that every copy of it is held out alike.

    By its id, the tempting way, a text that two sources hold, or one source twice, would be measured by one copy and
    trained on by the other.
    """
    place = int.from_bytes(hashlib.sha256(b"validation\x00" + text.encode()).digest()[:8], "big")
    return place < int(validation_share * 2**64)


def tokenize_shard(
    source: str, path: str, relative_path: str, encoder: Encoder, token_format: TokenFormat, validation_share: float
) -> SplitShard:
    """Tokenizes one shard of documents into `{path}/train` and `{path}/validation`.

    `relative_path` is where the caches' manifests find `path`. The bytes depend on the arguments' contents
    alone, and memory does not grow with the shard.
    """
    writers = {split: ShardWriter(f"{path}/{split}", token_format) for split in SPLITS}
    numbers = dict.fromkeys((name for name in asdict(ShardCounts()) if name != "fingerprint"), 0)
    for documents in _batches(source):
        encoded = encoder.encode([document.text for document in documents])
        held_out = [is_validation(document.text, validation_share) for document in documents]
        for split, writer in writers.items():
            chosen = [index for index, held in enumerate(held_out) if held == (split == "validation")]
            num_bytes = sum(len(documents[index].text.encode()) for index in chosen)
            writer.add([encoded[index] for index in chosen], num_bytes=num_bytes)
        for name, value in _counts(documents, encoded, encoder).items():
            numbers[name] += value
    train, validation = (writers[split].close(f"{relative_path}/{split}") for split in SPLITS)
    checksums = f"{train.num_tokens}:{train.tokens_crc32c}:{validation.num_tokens}:{validation.tokens_crc32c}"
    return SplitShard(train, validation, ShardCounts(**numbers, fingerprint=checksums))


def shard_blocks(num_shards: int, shards_per_block: int | None) -> list[list[int]]:
    """Numbers of the shards of documents that make each block of the cache; None for all of them in one.

    Drawn at random, the same for equal numbers, so that a block of a source that is sorted (by date, by site) is a
    sample of it all.
    """
    numbers = np.arange(num_shards)
    if shards_per_block is None or shards_per_block >= num_shards:
        return [numbers.tolist()]
    key = np.full(num_shards, key_of("shards of blocks", num_shards), np.uint64)
    order = permuted(numbers, sizes=np.full(num_shards, num_shards), keys=key)
    return [order[start : start + shards_per_block].tolist() for start in range(0, num_shards, shards_per_block)]


def write_block(
    folder: str, token_format: TokenFormat, shards: Sequence[SplitShard], lengths: np.ndarray
) -> tuple[TokenCache, TokenCache]:
    """Makes the caches of one block, two folders below those of the whole, which may be empty."""
    caches = []
    for split in SPLITS:
        records = [getattr(shard, split) for shard in shards]
        records = [dataclasses.replace(record, path=f"../../{record.path}") for record in records]
        finish_cache(f"{folder}/{split}", token_format, [records], lengths, may_be_empty=True)
        caches.append(TokenCache.open(f"{folder}/{split}"))
    return caches[0], caches[1]


def write_split(
    folder: str, split: str, token_format: TokenFormat, blocks: Sequence[Sequence[SplitShard]], lengths: np.ndarray
) -> TokenCache:
    """Makes the cache of one split, `{folder}/{split}`, of the finished shards of its blocks; returns it opened."""
    shards = [shard for block in blocks for shard in block]
    records: list[list[ShardRecord]] = [[getattr(shard, split) for shard in block] for block in blocks]
    if not any(getattr(shard, split).num_documents for shard in shards):
        total = sum(shard.counts.num_documents for shard in shards)
        raise CacheError(
            f"{folder}/{split}: none of the {total} documents fall into this split, which is drawn by the hash of "
            "their texts. Change `validation_share`, or split the source into more documents."
        )
    finish_cache(f"{folder}/{split}", token_format, records, lengths)
    return TokenCache.open(f"{folder}/{split}", tokenizer_digest=token_format.tokenizer_digest)


def _batches(source: str) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for documents in read_batches(source):
        for document in documents:
            batch.append(document)
            size += len(document.text)
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _counts(documents: Sequence[Document], encoded: Sequence[np.ndarray], encoder: Encoder) -> dict[str, int]:
    tokens = np.concatenate(encoded)
    unknown = 0 if encoder.unknown_id is None else int(np.count_nonzero(tokens == encoder.unknown_id))
    return {
        "num_documents": len(documents),
        "num_bytes": sum(len(document.text.encode()) for document in documents),
        "num_characters": sum(len(document.text) for document in documents),
        "num_tokens": len(tokens),
        "token_bytes": int(encoder.token_bytes[tokens].sum(dtype=np.int64)),
        "num_unknown": unknown,
        "num_replacement": sum(document.text.count("\ufffd") for document in documents),
        "num_empty_documents": sum(not document.text for document in documents),
    }
