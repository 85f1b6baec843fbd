"""Duplicates: exact by SHA-256, near by MinHash over word n-grams with banded lookup (LSH).

Two documents are near duplicates if the estimated Jaccard similarity of their sets of word n-grams reaches
`min_similarity`; a cluster is what such pairs connect, and its first document in document order stays.
Candidates come from bands: two documents of similarity s meet in at least one of b bands of r hashes with
probability 1 - (1 - s**r)**b (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, section 3.4); FineWeb uses
b=14, r=8 on 5-grams (arXiv:2406.17557, appendix E.1). There a shared band alone is a duplicate; here the whole
signature must agree too, which takes the chance out of what is dropped.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from runtime.text.batch import TextBatch, mix, ngram_hashes
from runtime.text.minhash import MinHash

_SEED = 0x6D696E68617368


class Signatures(NamedTuple):
    """What deduplication needs to know of documents, without their texts."""

    exact: np.ndarray
    """bytes32, SHA-256 of the text."""
    minhash: np.ndarray
    """uint32[documents, num_hashes]."""


class Cluster(NamedTuple):
    """Documents that say the same; indices into all documents, ascending."""

    kept: int
    exact: tuple[int, ...]
    near: tuple[int, ...]


def signatures(texts: Sequence[str], parameters: MinHash) -> Signatures:
    exact = np.array([hashlib.sha256(text.encode()).digest() for text in texts], "S32").view("V32")
    return Signatures(exact, minhash(texts, parameters))


def minhash(texts: Sequence[str], parameters: MinHash) -> np.ndarray:
    """uint32[documents, num_hashes]: for each hash function the least value over the document's n-grams.

    Words are runs of letters and digits without case. A document of fewer words than an n-gram counts as one
    n-gram, so that it equals only itself.
    """
    batch = TextBatch(texts)
    words = batch.folded_words
    keys, first = ngram_hashes(words, parameters.ngram_words)
    documents = words.documents[first]
    short = np.setdiff1d(np.arange(len(texts)), documents)
    keys = np.concatenate([keys, _whole_text_keys(batch, short)])
    documents = np.concatenate([documents, short])
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


def clusters(exact: np.ndarray, minhashes: np.ndarray, parameters: MinHash) -> list[Cluster]:
    """The clusters of two or more documents, by the index of the document that stays."""
    num_documents = len(exact)
    first_with_text = _first_with_same_key(exact)
    parents = first_with_text.copy()
    unique = np.flatnonzero(first_with_text == np.arange(num_documents))
    for left, right in _similar_pairs(minhashes, unique, parameters).tolist():
        _join(parents, left, right)
    members: dict[int, tuple[list[int], list[int]]] = {}
    for index in range(num_documents):
        root = _root(parents, index)
        if root != index:
            # Exact only if the very text that stays: a copy of a near duplicate is a near duplicate.
            exact_members, near_members = members.setdefault(root, ([], []))
            (exact_members if first_with_text[index] == root else near_members).append(index)
    return [Cluster(kept, tuple(same), tuple(near)) for kept, (same, near) in sorted(members.items())]


def _whole_text_keys(batch: TextBatch, documents: np.ndarray) -> np.ndarray:
    starts = batch.document_starts[documents]
    return batch.spans(starts, starts + batch.document_lengths[documents], lower=True).hashes


def _hash_functions(count: int) -> tuple[np.ndarray, np.ndarray]:
    values = mix(np.arange(2 * count, dtype=np.uint64) + np.uint64(_SEED))
    return values[:count] | np.uint64(1), values[count:]


def _first_with_same_key(keys: np.ndarray) -> np.ndarray:
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)]


def _similar_pairs(minhashes: np.ndarray, candidates: np.ndarray, parameters: MinHash) -> np.ndarray:
    """int64[pairs, 2] of documents that share a band and agree in enough of the signature.

    In a bucket each document is compared with the first of the bucket and with the one before it, not with
    all: a bucket of a thousand copies would make half a million pairs that say the same.
    """
    found = [np.empty((0, 2), np.int64)]
    rows = minhashes[candidates]
    for band in range(parameters.num_bands):
        key = np.zeros(len(rows), np.uint64)
        for column in range(band * parameters.rows_per_band, (band + 1) * parameters.rows_per_band):
            key = mix(key ^ rows[:, column].astype(np.uint64) + np.uint64(column))
        order = np.argsort(key, kind="stable")
        same = key[order][1:] == key[order][:-1]
        begins = np.concatenate([[True], ~same]) if len(order) else np.empty(0, bool)
        first_of_bucket = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
        found.append(np.stack([order[:-1][same], order[1:][same]], axis=1))
        found.append(np.stack([first_of_bucket[1:][same], order[1:][same]], axis=1))
    pairs = np.unique(np.concatenate(found), axis=0)
    agreement = np.concatenate(
        [np.empty(0)] + [np.mean(rows[block[:, 0]] == rows[block[:, 1]], axis=1) for block in _blocks(pairs, 65_536)]
    )
    return candidates[pairs[agreement >= parameters.min_similarity]]


def _blocks(values: np.ndarray, size: int) -> Iterable[np.ndarray]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _root(parents: np.ndarray, index: int) -> int:
    while parents[index] != index:
        parents[index] = parents[parents[index]]
        index = int(parents[index])
    return index


def _join(parents: np.ndarray, left: int, right: int) -> None:
    """The lower index becomes the root, so that the first document of a cluster is the one that stays."""
    low, high = sorted((_root(parents, left), _root(parents, right)))
    parents[high] = low
