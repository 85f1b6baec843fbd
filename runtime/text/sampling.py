"""Samples of documents: those whose ids hash lowest, however the documents are cut into shards."""

import hashlib
import heapq
from collections.abc import Iterable

from runtime.text.documents import Document

EVERY_KEY = 1 << 64
_BYTES_MARGIN, _FEWEST_DOCUMENTS = 4, 1_000


def sample_key(document: Document) -> int:
    """Return a document's place in the order in which samples take documents: the hash of its id."""
    return int.from_bytes(hashlib.blake2b(document.id.encode(), digest_size=8).digest(), "big")


def size_of(document: Document) -> int:
    """Return the UTF-8 bytes of the text."""
    return len(document.text.encode())


def key_limit(wanted_bytes: int, *, num_bytes: int, num_documents: int) -> int:
    """Return a key below which a source holds about four times the wanted bytes, and 1,000 documents or all."""
    share = max(_BYTES_MARGIN * wanted_bytes / max(num_bytes, 1), _FEWEST_DOCUMENTS / max(num_documents, 1))
    return int(min(share, 1.0) * EVERY_KEY)


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


def last_key(keys_and_sizes: Iterable[tuple[int, int]], num_bytes: int) -> int:
    """Return the last key that a sample of `num_bytes` takes; -1 without documents."""
    last, taken = -1, 0
    for key, size in sorted(keys_and_sizes):
        if taken >= num_bytes:
            break
        last, taken = key, taken + size
    return last
