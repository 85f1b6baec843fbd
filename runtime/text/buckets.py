"""Buckets: documents that share the key of a band, and which of them are near duplicates by their whole signatures.

In a bucket of up to 65 texts, all are compared with all. In a larger one, each text is compared with the first 64, in
order of document. Texts that agree with none of these are a bucket of their own, and so on for eight rounds: a text has
64 to 512 comparisons. Missed are a bridge between two clusters, and a text of the 513th kind. Comparisons depend only
on documents before the two, so more documents after them remove no pair.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from runtime.text.runs import begins_run, run_starts

COMPARED = 64
"""How many documents at the front of a bucket the others are compared with."""
ROUNDS = 8
_PAIRS_PER_BLOCK = 4_096
"""Two rows of 112 low bytes a pair fit a core's cache."""


class Members(NamedTuple):
    """Documents of the buckets that have several texts; by bucket, and in a bucket by number."""

    buckets: np.ndarray
    """int64, ascending numbers without a meaning of their own."""
    documents: np.ndarray
    """int64; only the first copy of each text."""


def members(keys: np.ndarray, texts: np.ndarray, documents: np.ndarray) -> Members:
    """Return the buckets of one band; `texts` differ for documents of different texts."""
    order = np.lexsort((documents, texts, keys))
    keys, texts, documents = keys[order], texts[order], documents[order]
    is_first = begins_run(keys, texts)
    keys, documents = keys[is_first], documents[is_first]
    buckets = np.cumsum(begins_run(keys))
    shared = np.bincount(buckets)[buckets] > 1
    buckets, documents = buckets[shared], documents[shared]
    order = np.lexsort((documents, buckets))
    return Members(buckets[order], documents[order].astype(np.int64))


def agreeing(found: Members, known: np.ndarray, minhashes: np.ndarray, min_similarity: float) -> Iterator[np.ndarray]:
    """Yield int64[pairs, 2] of documents whose signatures agree enough, lower number first, by blocks of comparisons.

    Args:
        found: The buckets of one band.
        known: Ascending documents; includes all of `found`.
        minhashes: The signatures of `known`.
        min_similarity: The least share of equal hashes.
    """
    buckets, documents = found
    rows = np.searchsorted(known, documents)
    # Equal hashes have equal low bytes, which take a quarter of the memory traffic.
    low_bytes = minhashes.astype(np.uint8)
    for _ in range(ROUNDS):
        starts = run_starts(buckets)
        goes_on = np.arange(len(buckets)) - starts >= COMPARED
        for earlier, later in _compared(starts):
            for hashes in (low_bytes, minhashes):
                equal = hashes.take(rows[earlier], axis=0) == hashes.take(rows[later], axis=0)
                agrees = np.einsum("ij->i", equal, dtype=np.uint32) / hashes.shape[1] >= min_similarity
                earlier, later = earlier[agrees], later[agrees]
            goes_on[later] = False
            yield np.stack([documents[earlier], documents[later]], axis=1)
        buckets, documents, rows = buckets[goes_on], documents[goes_on], rows[goes_on]
        if not len(buckets):
            return


def _compared(starts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield places of documents at the front of each bucket, and of those compared with them, in blocks."""
    counts = np.minimum(np.arange(len(starts)) - starts, COMPARED)
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, np.arange(0, int(counts.sum()), _PAIRS_PER_BLOCK), side="right")
    for begin, end in itertools.pairwise([*cuts.tolist(), len(starts)]):
        of_block = counts[begin:end]
        later = np.repeat(np.arange(begin, end), of_block)
        number = np.arange(len(later)) - np.repeat(np.cumsum(of_block) - of_block, of_block)
        yield starts[later] + number, later
