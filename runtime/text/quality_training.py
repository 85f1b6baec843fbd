"""Training of a quality classifier: n-grams of sampled texts on disk, then gradient descent over all of them.

A text's place in the order of training is a hash of the text, so copies are neighbours, and all held out or none.
Sampling holds one shard in memory; training holds the whole sample, at 4 bytes an n-gram.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from runtime.text.array_files import read_array, write_array
from runtime.text.batch import TextBatch
from runtime.text.hashing import mix
from runtime.text.quality import SCALE, QualityModel, features_of, score_of

# Chosen on 4,437 documents of an encyclopedia, textbooks and the web: accuracy 0.961 on held-out ones.
_LEARNING_RATE = 1.0
_INTERCEPT_LEARNING_RATE = 0.01
_BATCH_DOCUMENTS = 16
_MAX_LOG_ODDS = 16.0


class Sample(NamedTuple):
    """Sampled texts as n-grams; `keys` and `lengths` have one entry a text."""

    keys: np.ndarray
    """uint64, the places in the order of training."""
    lengths: np.ndarray
    """int64, the number of n-grams."""
    indices: np.ndarray
    """uint32, rows of the classifier's table, text by text."""


class HeldOut(NamedTuple):
    """Held-out texts of one class, and how many of them the classifier puts in it."""

    num_documents: int
    num_right: int


def sampled(
    batches: Iterable[Sequence[str]], *, fraction: float, max_characters: int, max_ngram_words: int, table_bits: int
) -> Sample:
    """Return the sampled texts of a shard."""
    parts = [Sample(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.uint32))]
    for batch in batches:
        texts = [text[:max_characters] for text in batch if _is_sampled(text, fraction)]
        found = features_of(TextBatch(texts), max_ngram_words=max_ngram_words, table_bits=table_bits)
        keys = np.array([_key(text) for text in texts], np.uint64)
        parts.append(Sample(keys, found.lengths.astype(np.int64), found.indices))
    return _joined(parts)


def write_sample(folder: str, sample: Sample) -> None:
    for name, values in sample._asdict().items():
        write_array(f"{folder}/{name}.npy", values)


def read_sample(folder: str) -> Sample:
    return Sample(*(read_array(f"{folder}/{name}.npy") for name in Sample._fields))


class TrainingSet:
    """Labelled samples in the order of training, of which the first texts are held out."""

    def __init__(self, samples: Sequence[Sample], are_positive: Sequence[bool], held_out_share: float) -> None:
        joined = _joined(samples)
        labels = np.repeat(are_positive, [len(sample.keys) for sample in samples])
        order = np.lexsort((labels, joined.keys))
        self._indices = joined.indices
        self._starts = (np.cumsum(joined.lengths) - joined.lengths)[order]
        self._lengths = joined.lengths[order]
        self._labels = labels[order]
        self.num_held_out = int(np.count_nonzero(joined.keys < held_out_share * 2.0**64))

    def has_both_labels(self) -> bool:
        """Return whether both labels can be trained on, and some text is held out."""
        return self.num_held_out > 0 and len(np.unique(self._labels[self.num_held_out :])) == 2

    def train(self, *, epochs: int, max_ngram_words: int, table_bits: int) -> QualityModel:
        """Fit a logistic regression; the learning rate falls to 0 in a straight line."""
        weights, intercept = np.zeros(1 << table_bits), 0.0
        begins = range(self.num_held_out, len(self._labels), _BATCH_DOCUMENTS)
        num_steps = epochs * len(begins)
        for step, begin in enumerate(begin for _ in range(epochs) for begin in begins):
            indices, texts, scales, labels = self._batch(begin, begin + _BATCH_DOCUMENTS)
            log_odds = np.bincount(texts, weights[indices], minlength=len(labels)) * scales + intercept
            gradients = (score_of(log_odds) - labels) * _LEARNING_RATE * (1 - step / num_steps)
            np.subtract.at(weights, indices, (gradients * scales)[texts])
            intercept -= _INTERCEPT_LEARNING_RATE * float(gradients.sum())
        # Classes that are easy to separate would all score 1, and no limit could select among them.
        largest = float(np.abs(self._log_odds(weights, intercept, len(self._labels))).max())
        tempered = max(1.0, largest / _MAX_LOG_ODDS)
        return QualityModel((weights / tempered).astype(np.float32), intercept / tempered, max_ngram_words)

    def held_out(self, model: QualityModel) -> tuple[HeldOut, HeldOut]:
        """Return the figures of the negative and of the positive class."""
        labels = self._labels[: self.num_held_out]
        is_right = (self._log_odds(model.weights, model.intercept, self.num_held_out) > 0) == labels
        negative, positive = (
            HeldOut(int(np.sum(labels == label)), int(np.sum(is_right[labels == label]))) for label in (False, True)
        )
        return negative, positive

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
        return np.concatenate(pieces), np.repeat(np.arange(len(lengths)), lengths), scales, self._labels[begin:end]


def _joined(samples: Sequence[Sample]) -> Sample:
    return Sample(*(np.concatenate(arrays) for arrays in zip(*samples, strict=True)))


def _key(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _is_sampled(text: str, fraction: float) -> bool:
    # Another hash than that of the order: held-out texts must be sampled like the others.
    return float(mix(np.array([_key(text)], np.uint64))[0]) < fraction * 2.0**64
