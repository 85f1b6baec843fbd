"""A quality classifier: a linear model over a text's word n-grams, like fastText's, in one array.

A text is the mean of its n-grams (fastText: arXiv:1607.01759); each n-gram's hash selects a row of the table. With two
classes, fastText's vectors and output layer reduce to one weight a row. The model is a NumPy array and a JSON file,
without code.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable
from typing import NamedTuple

import fsspec
import numpy as np

from runtime.text.array_files import read_array, write_array
from runtime.text.batch import TextBatch, ngram_hashes
from runtime.text.hashing import mix

WEIGHTS_FILE, DESCRIPTION_FILE = "weights.npy", "classifier.json"
SCALE = 32.0
"""A mean over hundreds of n-grams is small; this scale brings rows to about unit length, where the learning rate
fits."""
_MAX_LOG_ODDS = 32.0
# Chosen on 4,437 documents of an encyclopedia, textbooks and the web: accuracy 0.961 on held-out ones.
_LEARNING_RATE = 1.0
_INTERCEPT_LEARNING_RATE = 0.01
_BATCH_DOCUMENTS = 16
_MAX_TRAINED_LOG_ODDS = 16.0
_TEXTS_AT_ONCE = 1_024


class Features(NamedTuple):
    """N-grams of texts, as rows of the table."""

    indices: np.ndarray
    """uint32, of one text after the other."""
    lengths: np.ndarray
    """int64, the number of n-grams of each text."""


def features_of(batch: TextBatch, *, max_ngram_words: int, table_bits: int) -> Features:
    """Return all n-grams of one to `max_ngram_words` folded words."""
    words = batch.folded_words
    rows, documents = [], []
    for length in range(1, max_ngram_words + 1):
        hashes, first = ngram_hashes(words, length)
        rows.append((mix(hashes + np.uint64(length)) >> np.uint64(64 - table_bits)).astype(np.uint32))
        documents.append(words.documents[first])
    of_document = np.concatenate(documents)
    order = np.argsort(of_document, kind="stable")
    return Features(np.concatenate(rows)[order], np.bincount(of_document, minlength=batch.num_documents))


@dataclasses.dataclass(frozen=True)
class QualityModel:
    """A trained model; a higher score is more like the positive documents."""

    weights: np.ndarray
    """float32, one an n-gram's row."""
    intercept: float
    max_ngram_words: int

    def scores(self, batch: TextBatch) -> np.ndarray:
        """Return, float64 in (0, 1), the probability of the positive class in training."""
        table_bits = len(self.weights).bit_length() - 1
        features = features_of(batch, max_ngram_words=self.max_ngram_words, table_bits=table_bits)
        documents = np.repeat(np.arange(batch.num_documents), features.lengths)
        sums = np.bincount(documents, self.weights[features.indices], minlength=batch.num_documents)
        return score_of(sums * SCALE / np.maximum(features.lengths, 1) + self.intercept)

    def save(self, folder: str) -> None:
        write_array(f"{folder}/{WEIGHTS_FILE}", self.weights.astype(np.float32))
        described = {"intercept": self.intercept, "max_ngram_words": self.max_ngram_words, "scale": SCALE}
        with fsspec.open(f"{folder}/{DESCRIPTION_FILE}", "wb", auto_mkdir=True) as file:
            file.write(json.dumps(described, sort_keys=True).encode())

    @classmethod
    def load(cls, folder: str) -> "QualityModel":
        """Load what `save` wrote to `folder`."""
        weights = read_array(f"{folder}/{WEIGHTS_FILE}")
        with fsspec.open(f"{folder}/{DESCRIPTION_FILE}", "rb") as file:
            described = json.loads(file.read())
        return cls(weights * (described["scale"] / SCALE), described["intercept"], described["max_ngram_words"])


def score_of(log_odds: np.ndarray) -> np.ndarray:
    """Return the sigmoid, which neither overflows nor reaches 0 or 1."""
    return 1 / (1 + np.exp(-np.clip(log_odds, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)))


def least_score(scores: np.ndarray, keep_fraction: float) -> float:
    """Return the lowest score that keeps at most this fraction of the texts; one below all scores for all texts.

    Raise ValueError if too many texts have the highest score.
    """
    falling = np.sort(scores)[::-1]
    num_kept = int(keep_fraction * len(falling))
    if num_kept >= len(falling):
        return float(score_of(np.array(-_MAX_LOG_ODDS)))
    above = falling[falling > falling[num_kept]]
    if not len(above):
        raise ValueError(
            f"too many texts have the highest score to keep {keep_fraction:g} of them. Raise keep_fraction."
        )
    return float(above[-1])


class TrainingSet:
    """Labelled texts as n-grams in the order of training, of which the first are held out.

    A text's place is a hash of the text, so copies are neighbours, and all held out or none. Memory holds 4 bytes an
    n-gram.
    """

    def __init__(
        self, texts: Iterable[tuple[str, bool]], *, held_out_share: float, max_ngram_words: int, table_bits: int
    ) -> None:
        """Read texts with their labels, True for a wanted text."""
        self._max_ngram_words, self._table_bits = max_ngram_words, table_bits
        keys: list[int] = []
        labels: list[bool] = []
        parts = [Features(np.empty(0, np.uint32), np.empty(0, np.int64))]
        remaining = iter(texts)
        while group := list(itertools.islice(remaining, _TEXTS_AT_ONCE)):
            keys += [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") for text, _ in group]
            labels += [label for _, label in group]
            batch = TextBatch([text for text, _ in group])
            parts.append(features_of(batch, max_ngram_words=max_ngram_words, table_bits=table_bits))
        self._indices, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((np.array(labels, bool), np.array(keys, np.uint64)))
        self._starts = (np.cumsum(lengths) - lengths)[order]
        self._lengths = lengths[order]
        self.labels = np.array(labels, bool)[order]
        self.num_held_out = int(np.count_nonzero(np.array(keys, np.uint64) < held_out_share * 2.0**64))

    def has_both_labels(self) -> bool:
        """Return whether both labels can be trained on, and some text is held out."""
        return self.num_held_out > 0 and len(np.unique(self.labels[self.num_held_out :])) == 2

    def train(self, *, epochs: int) -> QualityModel:
        """Fit a logistic regression; the learning rate falls to 0 in a straight line."""
        weights, intercept = np.zeros(1 << self._table_bits), 0.0
        begins = range(self.num_held_out, len(self.labels), _BATCH_DOCUMENTS)
        num_steps = epochs * len(begins)
        for step, begin in enumerate(begin for _ in range(epochs) for begin in begins):
            indices, texts, scales, labels = self._batch(begin, begin + _BATCH_DOCUMENTS)
            log_odds = np.bincount(texts, weights[indices], minlength=len(labels)) * scales + intercept
            gradients = (score_of(log_odds) - labels) * _LEARNING_RATE * (1 - step / num_steps)
            np.subtract.at(weights, indices, (gradients * scales)[texts])
            intercept -= _INTERCEPT_LEARNING_RATE * float(gradients.sum())
        # Classes that are easy to separate would all score 1, and no limit could select among them.
        largest = float(np.abs(self._log_odds(weights, intercept, len(self.labels))).max())
        tempered = max(1.0, largest / _MAX_TRAINED_LOG_ODDS)
        return QualityModel((weights / tempered).astype(np.float32), intercept / tempered, self._max_ngram_words)

    def held_out(self, model: QualityModel) -> tuple[np.ndarray, np.ndarray]:
        """Return, bool, the labels of the held-out texts and whether the classifier gives each."""
        labels = self.labels[: self.num_held_out]
        return labels, (self._log_odds(model.weights, model.intercept, self.num_held_out) > 0) == labels

    def _log_odds(self, weights: np.ndarray, intercept: float, count: int) -> np.ndarray:
        """Return the arguments of the sigmoid for the first `count` texts."""
        found = np.empty(count)
        for begin in range(0, count, _BATCH_DOCUMENTS):
            end = min(begin + _BATCH_DOCUMENTS, count)
            indices, texts, scales, labels = self._batch(begin, end)
            found[begin:end] = np.bincount(texts, weights[indices], minlength=len(labels)) * scales + intercept
        return found

    def _batch(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the n-grams of texts, the text of each, and scale and label of each text."""
        lengths, starts = self._lengths[begin:end], self._starts[begin:end]
        pieces = [self._indices[start : start + length] for start, length in zip(starts, lengths, strict=True)]
        scales = SCALE / np.maximum(lengths, 1)
        return np.concatenate(pieces), np.repeat(np.arange(len(lengths)), lengths), scales, self.labels[begin:end]
