"""Duplicates: exact by SHA-256, near by MinHash over word n-grams with banded lookup (LSH).

Two documents are near duplicates if the estimated Jaccard similarity of their word n-grams reaches `min_similarity`.
Pairs connect clusters; the first document of a cluster stays. Candidates come from bands: two documents of similarity s
meet in one of b bands of r hashes with probability 1 - (1 - s**r)**b (Leskovec, Rajaraman, Ullman, Mining of Massive
Datasets, section 3.4). FineWeb uses b=14, r=8 on 5-grams (arXiv:2406.17557, appendix E.1) and takes a shared band for a
duplicate. Here the whole signatures must agree too, which takes chance out of the result.

Documents of several sources are numbered in the order of the sources, and the lowest number of a cluster stays. Bands,
and ranges of their keys, are compared separately: no process needs all signatures.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from runtime.text.batch import TextBatch, begins_run, ngram_hashes, run_starts
from runtime.text.hashing import mix
from runtime.text.minhash import MinHash

COMPARED = 64
"""How many documents at the front of a bucket the others are compared with."""
ROUNDS = 8
_PAIRS_PER_BLOCK = 4_096
"""Two rows of 112 low bytes per pair fit a core's cache."""
_SEED = 0x6D696E68617368


class Signatures(NamedTuple):
    """The signatures of documents, without their texts."""

    exact: np.ndarray
    """bytes32, SHA-256 of the text."""
    minhash: np.ndarray
    """uint32[documents, num_hashes]."""


def signatures(texts: Sequence[str], parameters: MinHash) -> Signatures:
    exact = np.array([hashlib.sha256(text.encode()).digest() for text in texts], "S32").view("V32")
    return Signatures(exact, minhash(texts, parameters))


def minhash(texts: Sequence[str], parameters: MinHash) -> np.ndarray:
    """Return uint32[documents, num_hashes]: for each hash function the least value over the document's n-grams.

    Words are folded (`runtime.text.folding`). A document of fewer words than an n-gram counts as one n-gram.
    """
    batch = TextBatch(texts)
    words = batch.folded_words
    keys, first = ngram_hashes(words, parameters.ngram_words)
    documents = words.documents[first]
    short = list(_short_texts(batch, parameters.ngram_words))
    keys = np.concatenate([keys, *(found for found, _ in short)])
    documents = np.concatenate([documents, *(found for _, found in short)])
    order = np.argsort(documents, kind="stable")
    keys, documents = keys[order], documents[order]
    starts = np.searchsorted(documents, np.arange(len(texts)))
    result = np.empty((len(texts), parameters.num_hashes), np.uint32)
    if not len(texts):
        return result
    scaled = np.empty_like(keys)
    high = scaled.view(np.uint32)[1::2] if np.little_endian else scaled.view(np.uint32)[0::2]
    values = mix(np.arange(2 * parameters.num_hashes, dtype=np.uint64) + np.uint64(_SEED))
    multipliers, offsets = values[: parameters.num_hashes] | np.uint64(1), values[parameters.num_hashes :]
    for index in range(parameters.num_hashes):
        # Multiply-shift: the high half of a*x + b modulo 2**64 (Dietzfelbinger et al. 1997), 2-independent.
        np.multiply(keys, multipliers[index], out=scaled)
        scaled += offsets[index]
        result[:, index] = np.minimum.reduceat(high, starts)
    return result


def _short_texts(batch: TextBatch, ngram_words: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a key for each text of fewer words than an n-gram; for texts without words by their bytes."""
    num_words = batch.sums(batch.folded_words)
    empty = np.flatnonzero(num_words == 0)
    starts = batch.document_starts[empty]
    yield batch.spans(starts, starts + batch.document_lengths[empty]).hashes, empty
    for length in np.unique(num_words[(num_words > 0) & (num_words < ngram_words)]).astype(int).tolist():
        keys, first = ngram_hashes(batch.folded_words, length)
        documents = batch.folded_words.documents[first]
        whole = num_words[documents] == length
        yield keys[whole], documents[whole]


def band_keys(minhashes: np.ndarray, parameters: MinHash) -> np.ndarray:
    """Return uint64[bands, documents], equal where all hashes of a band are."""
    keys = np.zeros((parameters.num_bands, len(minhashes)), np.uint64)
    for band, key in enumerate(keys):
        for column in range(band * parameters.rows_per_band, (band + 1) * parameters.rows_per_band):
            key[:] = mix(key ^ minhashes[:, column].astype(np.uint64) + np.uint64(column))
    return keys


def copies(keys: np.ndarray, marks: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return int64[pairs, 2]: each document that is not the first of its key and mark, after that first one."""
    order = np.lexsort((documents, marks, keys))
    keys, marks, documents = keys[order], marks[order], documents[order]
    starts = run_starts(keys, marks)
    is_copy = starts < np.arange(len(order))
    return np.stack([documents[starts[is_copy]], documents[is_copy]], axis=1).astype(np.int64)


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

    In a bucket of up to 65 texts, all are compared with all. In a larger one, each text is compared with the first 64.
    Texts that agree with none of these are a bucket of their own, and so on for eight rounds. Missed are a bridge
    between two clusters, and a text of the 513th kind. More documents after two others remove no pair. `known` are
    ascending documents with their `minhashes`; they include all of `found`, the buckets of one band.
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


class Components:
    """Connected documents; the lowest number of each component is its root. Holds two numbers a duplicate."""

    def __init__(self) -> None:
        self.documents = np.empty(0, np.int64)
        """Ascending."""
        self.roots = np.empty(0, np.int64)

    def join(self, pairs: np.ndarray) -> None:
        """Add pairs, int64[pairs, 2]."""
        edges = np.concatenate([np.stack([self.documents, self.roots], axis=1), pairs])
        self.documents, ends = np.unique(edges, return_inverse=True)
        ends = ends.reshape(-1, 2)
        parents = np.arange(len(self.documents))
        while len(ends):
            ends = np.sort(parents[ends], axis=1)
            ends = ends[ends[:, 0] != ends[:, 1]]
            np.minimum.at(parents, ends[:, 1], ends[:, 0])
            while np.any(parents != (further := parents[parents])):
                parents = further
        self.roots = self.documents[parents]

    def pairs(self) -> np.ndarray:
        """Return int64[pairs, 2] that connect the same documents: each document but the roots, after its root."""
        is_led = self.documents != self.roots
        return np.stack([self.roots[is_led], self.documents[is_led]], axis=1)


class Dropped(NamedTuple):
    """The documents that are dropped, ascending, and the document that stays for each."""

    documents: np.ndarray
    """int64."""
    kept: np.ndarray
    """int64."""
    is_exact: np.ndarray
    """bool: whether the text is that of the document that stays. A copy of a near duplicate is a near duplicate."""


def dropped(components: Components, exact: np.ndarray, *, first_own: int = 0) -> Dropped:
    """Return which documents from `first_own` on are dropped; documents before it belong to other sources and stay.

    `components` are those of all pairs. `exact` is int64[pairs, 2], each copy once, after the first of its text.
    """
    goes = (components.documents != components.roots) & (components.documents >= first_own)
    documents, kept = components.documents[goes], components.roots[goes]
    exact = exact[np.argsort(exact[:, 1])]
    places = np.minimum(np.searchsorted(exact[:, 1], documents), max(len(exact) - 1, 0))
    is_exact = np.zeros(len(documents), bool)
    if len(exact):
        is_exact = (exact[places, 1] == documents) & (exact[places, 0] == kept)
    return Dropped(documents, kept, is_exact)
