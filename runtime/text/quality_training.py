"""Training of a quality classifier: n-grams of sampled texts on disk, in one random order, and passes over them.

A text's place in the order is a hash of the text, so copies are neighbours, and all held out or none. Memory holds one
shard or one chunk of texts.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from runtime.text.array_files import read_array, write_array
from runtime.text.batch import TextBatch
from runtime.text.hashing import mix
from runtime.text.quality import SCALE, QualityModel, features_of

CHUNK_DOCUMENTS = 4_096
# Chosen on 5,200 documents of an encyclopedia, textbooks and the web: accuracy 0.965 on held-out ones; fastText's
# defaults give 0.910.
_ALPHA = 1e-6
_MAX_LOG_ODDS = 16.0


class Chunk(NamedTuple):
    """Texts as n-grams; all arrays but `indices` have one entry a text."""

    keys: np.ndarray
    """uint64, the places in the order."""
    labels: np.ndarray
    """int8, 1 for the positive class."""
    lengths: np.ndarray
    indices: np.ndarray
    """uint32, rows of the classifier's table, text by text."""

    def rows(self, chosen: np.ndarray) -> "Chunk":
        """Return the chosen texts, in the order given."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[chosen]
        first = np.repeat(starts[chosen] - (np.cumsum(lengths) - lengths), lengths)
        return Chunk(
            self.keys[chosen], self.labels[chosen], lengths, self.indices[first + np.arange(int(lengths.sum()))]
        )


class HeldOut(NamedTuple):
    num_documents: int
    num_right: int


def sampled_chunk(
    batches: Iterable[Sequence[str]],
    *,
    is_positive: bool,
    fraction: float,
    max_characters: int,
    max_ngram_words: int,
    table_bits: int,
) -> Chunk:
    """Return the sampled texts of a shard, in the order of their keys."""
    parts = [_chunk([], is_positive, max_ngram_words, table_bits)]
    for batch in batches:
        kept = [text[:max_characters] for text in batch if _is_sampled(text, fraction)]
        parts.append(_chunk(kept, is_positive, max_ngram_words, table_bits))
    whole = Chunk(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return whole.rows(np.argsort(whole.keys, kind="stable"))


def write_chunk(path: str, chunk: Chunk) -> None:
    for name, values in chunk._asdict().items():
        write_array(f"{path}/{name}.npy", values)


def read_chunk(path: str) -> Chunk:
    return Chunk(*(read_array(f"{path}/{name}.npy") for name in Chunk._fields))


def read_keys(path: str) -> np.ndarray:
    return read_array(f"{path}/keys.npy")


def key_ranges(keys: np.ndarray, num_held_out: int) -> tuple[list[tuple[int, int]], int]:
    """Return ranges of keys (first and last) of about one chunk of texts each, and how many of them, at the front, are
    held out."""
    ordered = np.sort(keys)
    # One range holds all texts of a key, so that no text is on both sides of a cut.
    edge = int(np.searchsorted(ordered, ordered[num_held_out], side="left")) if num_held_out < len(ordered) else 0
    held_out, rest = _cut(ordered[:edge]), _cut(ordered[edge:])
    return [*held_out, *rest], len(held_out)


def gathered(paths: Sequence[str], low: int, high: int) -> Chunk:
    """Return the texts of all shards whose keys are in the range, in the order of their keys."""
    parts = []
    for path in paths:
        chunk = read_chunk(path)
        parts.append(chunk.rows(np.flatnonzero((chunk.keys >= np.uint64(low)) & (chunk.keys <= np.uint64(high)))))
    whole = Chunk(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return whole.rows(np.lexsort((whole.labels, whole.keys)))


def train(paths: Sequence[str], *, epochs: int, max_ngram_words: int, table_bits: int) -> QualityModel:
    """Fit a logistic regression by averaged stochastic gradient descent over the chunks in order, `epochs` times."""
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(loss="log_loss", alpha=_ALPHA, average=True, shuffle=False, random_state=0)
    for _ in range(epochs):
        for path in paths:
            chunk = read_chunk(path)
            model.partial_fit(_matrix(chunk, table_bits), chunk.labels, classes=np.array([0, 1], np.int8))
    trained = QualityModel(model.coef_[0].astype(np.float32), float(model.intercept_[0]), max_ngram_words)
    largest = max(float(np.abs(_log_odds(trained, read_chunk(path))).max()) for path in paths)
    # Classes that are easy to separate would all score 1, and no limit could select among them.
    tempered = max(1.0, largest / _MAX_LOG_ODDS)
    return QualityModel(trained.weights / np.float32(tempered), trained.intercept / tempered, max_ngram_words)


def held_out(model: QualityModel, paths: Sequence[str]) -> dict[int, HeldOut]:
    """Return, by label, how many texts the classifier puts in the right class."""
    counts = {0: HeldOut(0, 0), 1: HeldOut(0, 0)}
    for chunk in map(read_chunk, paths):
        says = _log_odds(model, chunk) > 0
        for label, before in counts.items():
            of_label = chunk.labels == label
            right = int(np.sum(says[of_label] == bool(label)))
            counts[label] = HeldOut(before.num_documents + int(of_label.sum()), before.num_right + right)
    return counts


def _chunk(texts: Sequence[str], is_positive: bool, max_ngram_words: int, table_bits: int) -> Chunk:
    found = features_of(TextBatch(texts), max_ngram_words=max_ngram_words, table_bits=table_bits)
    keys = np.array([_key(text) for text in texts], np.uint64)
    return Chunk(keys, np.full(len(texts), is_positive, np.int8), found.lengths.astype(np.int64), found.indices)


def _key(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _is_sampled(text: str, fraction: float) -> bool:
    # Another hash than that of the order: held-out texts must be sampled like the others.
    return float(mix(np.array([_key(text)], np.uint64))[0]) < fraction * 2.0**64


def _cut(ordered: np.ndarray) -> list[tuple[int, int]]:
    if not len(ordered):
        return []
    edges = np.unique(np.searchsorted(ordered, ordered[::CHUNK_DOCUMENTS], side="left"))
    cuts: Iterator[tuple[int, int]] = zip(edges.tolist(), [*edges[1:].tolist(), len(ordered)], strict=True)
    return [(int(ordered[begin]), int(ordered[end - 1])) for begin, end in cuts]


def _log_odds(model: QualityModel, chunk: Chunk) -> np.ndarray:
    return _matrix(chunk, model.table_bits) @ model.weights + model.intercept


def _matrix(chunk: Chunk, table_bits: int) -> Any:
    from scipy.sparse import csr_matrix

    values = np.repeat((SCALE / np.maximum(chunk.lengths, 1)).astype(np.float32), chunk.lengths)
    starts = np.concatenate([[0], np.cumsum(chunk.lengths)])
    return csr_matrix((values, chunk.indices.astype(np.int64), starts), shape=(len(chunk.keys), 1 << table_bits))
