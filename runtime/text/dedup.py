"""Duplicates: exact by SHA-256, near by MinHash over word n-grams with banded lookup (LSH).

Two documents are near duplicates if the estimated Jaccard similarity of their word n-grams reaches `min_similarity`.
Pairs connect clusters; the first document of a cluster stays. Candidates come from bands: two documents of similarity s
meet in one of b bands of r hashes with probability 1 - (1 - s**r)**b (Leskovec, Rajaraman, Ullman, Mining of Massive
Datasets, section 3.4). FineWeb uses b=14, r=8 on 5-grams (arXiv:2406.17557, appendix E.1) and takes a shared band for a
duplicate. Here the whole signatures must agree too (`runtime.text.buckets`), which takes chance out of the result.

Documents of several sources are numbered in the order of the sources, and the lowest number of a cluster stays
(`runtime.text.clusters`). Bands, and ranges of their keys, are compared separately: no process needs all signatures.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from runtime.text.batch import TextBatch, ngram_hashes
from runtime.text.hashing import mix
from runtime.text.minhash import MinHash
from runtime.text.runs import run_starts

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
    multipliers, offsets = _hash_functions(parameters.num_hashes)
    for index in range(parameters.num_hashes):
        # Multiply-shift: the high half of a*x + b modulo 2**64 (Dietzfelbinger et al. 1997), 2-independent.
        np.multiply(keys, multipliers[index], out=scaled)
        scaled += offsets[index]
        result[:, index] = np.minimum.reduceat(high, starts)
    return result


def band_keys(minhashes: np.ndarray, parameters: MinHash) -> np.ndarray:
    """Return uint64[bands, documents], equal where all hashes of a band are."""
    keys = np.zeros((parameters.num_bands, len(minhashes)), np.uint64)
    for band, key in enumerate(keys):
        for column in range(band * parameters.rows_per_band, (band + 1) * parameters.rows_per_band):
            key[:] = mix(key ^ minhashes[:, column].astype(np.uint64) + np.uint64(column))
    return keys


def text_keys(exact: np.ndarray) -> np.ndarray:
    """Return uint64[documents, 4], the SHA-256 in words: the first sorts copies together, two identify a text."""
    return np.ascontiguousarray(exact).view("<u8").reshape(len(exact), 4)


def copies(keys: np.ndarray, marks: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return int64[pairs, 2]: each document that is not the first of its key and mark, after that first one."""
    order = np.lexsort((documents, marks, keys))
    keys, marks, documents = keys[order], marks[order], documents[order]
    starts = run_starts(keys, marks)
    is_copy = starts < np.arange(len(order))
    return np.stack([documents[starts[is_copy]], documents[is_copy]], axis=1).astype(np.int64)


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


def _hash_functions(count: int) -> tuple[np.ndarray, np.ndarray]:
    values = mix(np.arange(2 * count, dtype=np.uint64) + np.uint64(_SEED))
    return values[:count] | np.uint64(1), values[count:]
