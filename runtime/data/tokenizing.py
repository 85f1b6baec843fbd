"""Tokenizing: one shard of documents to its tokens, split into training and validation by the text."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np

from runtime.data.cache import ShardRecord, TokenCache, TokenFormat
from runtime.data.cache_writer import ShardWriter, finish_cache
from runtime.data.encoding import EncodedBatch, Encoder
from runtime.data.gates import NAMED_SHARDS, NUMBERS, ShardCounts
from runtime.data.permutation import key_of, permuted
from runtime.data.splits import SPLITS, is_validation
from runtime.text.documents import Document, read_batches

BATCH_BYTES = 4 << 20
"""Text that is encoded together: enough for every core, and several batches fit in memory."""
COUNTED_TOGETHER = 1 << 15
"""Tokens whose intermediate results stay in the cache of a core."""


@dataclass(frozen=True)
class SplitShard:
    """The result of tokenizing one shard of documents."""

    train: ShardRecord
    validation: ShardRecord
    counts: ShardCounts

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict) -> "SplitShard":
        train, validation = (ShardRecord(**document[split]) for split in SPLITS)
        return cls(train, validation, ShardCounts(**document["counts"]))


def tokenize_shard(
    source: str, path: str, relative_path: str, encoder: Encoder, token_format: TokenFormat, validation_share: float
) -> SplitShard:
    """Tokenize one shard of documents into `{path}/train` and `{path}/validation`.

    `relative_path` is the place of `path` as seen from the caches' manifests. The bytes depend only on the contents of
    the arguments, and memory does not grow with the shard.
    """
    writers = {split: ShardWriter(f"{path}/{split}", token_format) for split in SPLITS}
    numbers = dict.fromkeys(NUMBERS, 0)
    unencoded: list[str] = []
    for documents, encoded in _encoded(source, encoder):
        data = [document.text.encode() for document in documents]
        held_out = np.array([is_validation(text, validation_share) for text in data], bool)
        written = []
        for split, writer in writers.items():
            of_split = np.flatnonzero(held_out if split == "validation" else ~held_out).tolist()
            chosen = [index for index in of_split if index not in encoded.failures]
            num_bytes = sum(len(data[index]) for index in chosen)
            written.append(writer.add([encoded.ids[index] for index in chosen], num_bytes=num_bytes))
        for name, value in _counts(documents, data, encoded, written, encoder).items():
            numbers[name] += value
        for index, reason in sorted(encoded.failures.items()):
            unencoded.append(f"{documents[index].id}: {reason}")
    train, validation = (writers[split].close(f"{relative_path}/{split}") for split in SPLITS)
    checksums = f"{train.num_tokens}:{train.tokens_crc32c}:{validation.num_tokens}:{validation.tokens_crc32c}"
    counts = ShardCounts(**numbers, unencoded=unencoded[:NAMED_SHARDS], fingerprint=checksums)
    return SplitShard(train, validation, counts)


def shard_blocks(num_shards: int, shards_per_block: int | None) -> list[list[int]]:
    """Return the numbers of the shards of each block of the cache; None for one block.

    Shards are drawn at random, the same for equal arguments, so that a block of a sorted source (by date, by site) is a
    sample of it all.
    """
    numbers = np.arange(num_shards)
    if shards_per_block is None or shards_per_block >= num_shards:
        return [numbers.tolist()]
    key = np.full(num_shards, key_of("shards of blocks", num_shards), np.uint64)
    order = permuted(numbers, sizes=np.full(num_shards, num_shards), keys=key)
    return [order[start : start + shards_per_block].tolist() for start in range(0, num_shards, shards_per_block)]


class FinishedBlocks:
    """Collects finished shards, in any order, and gives out whole blocks in their order."""

    def __init__(self, blocks: Sequence[Sequence[int]]) -> None:
        """Take the blocks of `shard_blocks`; a shard is named by its place in their order."""
        self._block_of = [block for block, numbers in enumerate(blocks) for _ in numbers]
        self._num_missing = [len(numbers) for numbers in blocks]
        ends = np.cumsum([0, *self._num_missing]).tolist()
        self._places = [range(begin, end) for begin, end in itertools.pairwise(ends)]
        self._shards: dict[int, SplitShard] = {}
        self._num_whole = 0

    def add(self, place: int, shard: SplitShard) -> Iterator[tuple[int, list[SplitShard]]]:
        """Yield number (from 1) and shards of each block that is now whole, with all blocks before it.

        A shard costs the same however many there are.
        """
        self._shards[place] = shard
        self._num_missing[self._block_of[place]] -= 1
        while self._num_whole < len(self._num_missing) and not self._num_missing[self._num_whole]:
            block = self._num_whole
            self._num_whole += 1
            yield block + 1, [self._shards[place] for place in self._places[block]]


def write_caches(
    folder: str,
    token_format: TokenFormat,
    blocks: Sequence[Sequence[SplitShard]],
    lengths: np.ndarray,
    documents_digest: str,
    *,
    below: str = "",
) -> tuple[TokenCache, TokenCache]:
    """Write the caches of both splits over finished shards; return them opened.

    `below` leads from the caches to those of the whole ("../../"), for the caches of one block; one may be empty.
    """
    caches = []
    for split in SPLITS:
        records = [[getattr(shard, split) for shard in block] for block in blocks]
        if below:
            records = [[dataclasses.replace(each, path=f"{below}{each.path}") for each in block] for block in records]
        path = f"{folder}/{split}"
        finish_cache(path, token_format, records, lengths, documents_digest=documents_digest, may_be_empty=bool(below))
        caches.append(TokenCache.open(path))
    return caches[0], caches[1]


def _encoded(source: str, encoder: Encoder) -> Iterator[tuple[list[Document], EncodedBatch]]:
    """Yield documents and their ids, a batch at a time; the next batch is encoded while the caller writes this one."""

    def encode(documents: list[Document]) -> EncodedBatch:
        return encoder.encode([document.text for document in documents], names=[document.id for document in documents])

    with ThreadPoolExecutor(1) as ahead:
        started = ((documents, ahead.submit(encode, documents)) for documents in _batches(source))
        waiting = next(started, None)
        while waiting is not None:
            (documents, encoded), waiting = waiting, next(started, None)
            yield documents, encoded.result()


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


def _counts(
    documents: list[Document], data: list[bytes], encoded: EncodedBatch, written: list[np.ndarray], encoder: Encoder
) -> dict[str, int]:
    token_bytes = num_unknown = 0
    for tokens in written:
        for begin in range(0, len(tokens), COUNTED_TOGETHER):
            part = tokens[begin : begin + COUNTED_TOGETHER]
            token_bytes += int(encoder.token_bytes[part].sum(dtype=np.int64))  # BOS and EOS have no bytes
            num_unknown += 0 if encoder.unknown_id is None else int(np.count_nonzero(part == encoder.unknown_id))
    return {
        "num_documents": len(documents),
        "num_bytes": sum(map(len, data)),
        "num_characters": sum(len(document.text) for document in documents),
        "num_tokens": sum(map(len, encoded.ids)),
        "token_bytes": token_bytes,
        "num_unknown": num_unknown,
        "num_replacement": sum(document.text.count("\ufffd") for document in documents),
        "num_empty_documents": sum(not document.text for document in documents),
        "num_changed": encoded.num_changed,
        "normalizer_bytes": encoded.normalizer_bytes,
        "num_unencoded": len(encoded.failures),
        "num_unencoded_bytes": sum(len(data[index]) for index in encoded.failures),
    }
