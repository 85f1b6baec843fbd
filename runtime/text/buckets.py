"""Buckets: documents that share the key of a band, and which of them are near duplicates by their whole signatures.

In a bucket of up to 65 texts all are compared with all. Of more, each is compared with the first 64, in order of
document; those that agree with none of these are a bucket of their own, and so on, eight times. So a text of a larger
bucket is compared with 64 at least and 512 at most, a thousand versions of one text cost 64 comparisons each, and what
is missed is a bridge between two clusters, or a text of the 513th kind. Who is compared with whom depends on the
bucket's documents before the two alone: more documents behind them take no pair away.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

COMPARED = 64
"""Documents at the front of a bucket that all behind them are compared with."""
ROUNDS = 8
_PAIRS_PER_BLOCK = 4_096
"""Two rows of 112 low bytes for each pair: what fits a core's cache."""


class Members(NamedTuple):
    """Documents of the buckets that have several texts; by bucket, and in a bucket by number."""

    buckets: np.ndarray
    """int64, ascending; which numbers they are says nothing."""
    documents: np.ndarray
    """int64; of copies of one text the first."""


def members(keys: np.ndarray, texts: np.ndarray, documents: np.ndarray) -> Members:
    """The buckets of one band: `texts` tells documents of different texts apart."""
    order = np.lexsort((documents, texts, keys))
    keys, texts, documents = keys[order], texts[order], documents[order]
    is_first = np.ones(len(keys), bool)
    is_first[1:] = (keys[1:] != keys[:-1]) | (texts[1:] != texts[:-1])
    keys, documents = keys[is_first], documents[is_first]
    begins = np.ones(len(keys), bool)
    begins[1:] = keys[1:] != keys[:-1]
    buckets = np.cumsum(begins)
    shared = np.bincount(buckets)[buckets] > 1
    buckets, documents = buckets[shared], documents[shared]
    order = np.lexsort((documents, buckets))
    return Members(buckets[order], documents[order].astype(np.int64))


def agreeing(found: Members, known: np.ndarray, minhashes: np.ndarray, min_similarity: float) -> Iterator[np.ndarray]:
    """int64[pairs, 2] of documents whose signatures agree enough, lower number first, a block of comparisons at a time.

    Args:
        found: Of one band.
        known: Documents, ascending; all of `found` are among them.
        minhashes: Of those.
        min_similarity: Least share of equal hashes.
    """
    buckets, documents = found
    rows = np.searchsorted(known, documents)
    # Hashes that are equal have equal low bytes: those say who cannot agree, at a quarter of the memory's traffic.
    low_bytes = minhashes.astype(np.uint8)
    for _ in range(ROUNDS):
        starts = _starts(buckets)
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


def _starts(buckets: np.ndarray) -> np.ndarray:
    """For each place that of the first of its bucket."""
    begins = np.ones(len(buckets), bool)
    begins[1:] = buckets[1:] != buckets[:-1]
    return np.maximum.accumulate(np.where(begins, np.arange(len(buckets)), 0))


def _compared(starts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places of the first of each bucket and of those behind them, in blocks."""
    counts = np.minimum(np.arange(len(starts)) - starts, COMPARED)
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, np.arange(0, int(counts.sum()), _PAIRS_PER_BLOCK), side="right")
    for begin, end in itertools.pairwise([*cuts.tolist(), len(starts)]):
        of_block = counts[begin:end]
        later = np.repeat(np.arange(begin, end), of_block)
        number = np.arange(len(later)) - np.repeat(np.cumsum(of_block) - of_block, of_block)
        yield starts[later] + number, later
