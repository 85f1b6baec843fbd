"""Row documents: the documents that rows of a token cache come from, found by counting ends of documents."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from runtime.data.cache import TokenCache
from runtime.data.splits import is_validation
from runtime.data.tokenizing import shard_blocks
from runtime.text.documents import read_batches

TOKENS_READ_TOGETHER = 1 << 20


class DocumentsSource(NamedTuple):
    """The documents from which a cache was made."""

    shards: Sequence[str]
    """Paths, in document order."""
    validation_share: float
    shards_per_block: int | None


def document_ids(cache: TokenCache, positions: Int64[np.ndarray, "n"], source: DocumentsSource) -> list[str | None]:
    """Return the id of the document at each position of a training cache.

    The id is None if some document of the shard could not be encoded: counting would then find another document.
    """
    begins = np.cumsum([0, *(shard.num_tokens for shard in cache.shards)])
    shards = np.searchsorted(begins, positions, side="right") - 1
    order = [number for block in shard_blocks(len(source.shards), source.shards_per_block) for number in block]
    found: list[str | None] = [None] * len(positions)
    for shard in np.unique(shards).tolist():
        own = np.flatnonzero(shards == shard)
        numbers = _numbers(cache, int(begins[shard]), positions[own])
        ids, num_documents = _training_ids(source.shards[order[shard]], source.validation_share, {*numbers.tolist()})
        if num_documents == cache.shards[shard].num_documents:
            for place, number in zip(own.tolist(), numbers.tolist(), strict=True):
                found[place] = ids[number]
    return found


def _numbers(cache: TokenCache, begin: int, positions: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """Return the number of documents that end between `begin` and each position."""
    order = np.argsort(positions, kind="stable")
    numbers = np.zeros(len(positions), np.int64)
    here, num_ended = begin, 0
    for place in order.tolist():
        while here < positions[place]:
            end = min(here + TOKENS_READ_TOGETHER, int(positions[place]))
            num_ended += int(np.count_nonzero(cache.read(here, end - here) == cache.eos_token_id))
            here = end
        numbers[place] = num_ended
    return numbers


def _training_ids(path: str, validation_share: float, wanted: Collection[int]) -> tuple[dict[int, str], int]:
    """Return the ids of the `wanted` training documents of a shard by number, and the number of all of them."""
    found = {}
    count = 0
    for documents in read_batches(path):
        for document in documents:
            if not is_validation(document.text.encode(), validation_share):
                if count in wanted:
                    found[count] = document.id
                count += 1
    return found, count
