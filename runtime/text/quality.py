"""A quality classifier: a linear model over a text's word n-grams, like fastText's, in one array.

A text is the mean of its n-grams (fastText: arXiv:1607.01759); each n-gram's hash selects a row of the table. With two
classes, fastText's vectors and output layer reduce to one weight a row. The model is a NumPy array and a JSON file,
without code.
"""

import dataclasses
import json

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
_STEPS = 1 << 14


@dataclasses.dataclass(frozen=True)
class Features:
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

    @property
    def table_bits(self) -> int:
        return len(self.weights).bit_length() - 1

    def scores(self, batch: TextBatch) -> np.ndarray:
        """Return, float64 in (0, 1), the probability of the positive class in training."""
        return score_of(self.log_odds(batch))

    def log_odds(self, batch: TextBatch) -> np.ndarray:
        """Return, float64, the arguments of the sigmoid that gives the scores."""
        features = features_of(batch, max_ngram_words=self.max_ngram_words, table_bits=self.table_bits)
        documents = np.repeat(np.arange(batch.num_documents), features.lengths)
        sums = np.bincount(documents, self.weights[features.indices], minlength=batch.num_documents)
        return sums * SCALE / np.maximum(features.lengths, 1) + self.intercept

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
        if described["scale"] != SCALE:
            raise ValueError(
                f"{folder}: made with scale {described['scale']}, this code has {SCALE}. Train the classifier again."
            )
        return cls(weights, described["intercept"], described["max_ngram_words"])


def score_of(log_odds: np.ndarray) -> np.ndarray:
    """Return the sigmoid, which neither overflows nor reaches 0 or 1."""
    return 1 / (1 + np.exp(-np.clip(log_odds, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)))


class ScoreCounts:
    """Counts of texts by score, in steps too small to matter, so that shards can be added."""

    def __init__(self, counts: np.ndarray | None = None) -> None:
        self.counts = np.zeros(_STEPS, np.int64) if counts is None else counts

    def add(self, log_odds: np.ndarray) -> None:
        """Count these texts."""
        shares = (np.clip(log_odds, -_MAX_LOG_ODDS, _MAX_LOG_ODDS) + _MAX_LOG_ODDS) / (2 * _MAX_LOG_ODDS)
        self.counts += np.bincount((shares * (_STEPS - 1)).astype(np.int64), minlength=_STEPS)

    def min_score(self, keep_fraction: float) -> float:
        """Return the lowest score of a step that keeps at most this fraction of the texts."""
        at_or_above = np.cumsum(self.counts[::-1])[::-1]
        step = int(np.argmax(at_or_above <= keep_fraction * at_or_above[0]))
        if at_or_above[step] > keep_fraction * at_or_above[0]:
            raise ValueError(
                f"too many texts have the highest score to keep {keep_fraction:g} of them. Raise keep_fraction."
            )
        return float(score_of(np.array(step * 2 * _MAX_LOG_ODDS / (_STEPS - 1) - _MAX_LOG_ODDS)))
