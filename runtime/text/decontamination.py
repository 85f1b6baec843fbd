"""Decontamination: documents that share a long run of words with an evaluation item.

A hit is a run of `ngram_words` words (13: GPT-3, arXiv:2005.14165, appendix C) that stands in both, compared
without case, punctuation and layout. A field of an item that is shorter is matched whole, if it has at least
`min_field_words` words; still shorter ones (an option "all of the above") say nothing about contamination.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import fsspec
import numpy as np

from runtime.text.batch import TextBatch, ngram_hashes

_TABLE_BITS = 24


class ItemField(NamedTuple):
    """One string of an evaluation item."""

    task: str
    item: int
    """Row of the task's file, from 0."""
    field: str
    text: str


class Hit(NamedTuple):
    """A run of words that a document shares with an item; positions are UTF-8 bytes of the document's text."""

    document: int
    start: int
    end: int
    task: str
    item: int
    field: str
    num_words: int
    excerpt: str


class ItemIndex:
    """The n-grams of the evaluation items, for lookup by hash."""

    def __init__(self, fields: Iterable[ItemField], *, ngram_words: int, min_field_words: int) -> None:
        if not 1 <= min_field_words <= ngram_words:
            raise ValueError(
                f"min_field_words is {min_field_words}, ngram_words is {ngram_words}; it must lie between 1 and that."
            )
        self.fields = list(fields)
        batch = TextBatch([field.text for field in self.fields])
        words = batch.folded_words
        lengths = batch.sums(words).astype(np.int64)
        self._lookups: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []
        for length in range(min_field_words, ngram_words + 1):
            hashes, first = ngram_hashes(words, length)
            owners = words.documents[first]
            if length < ngram_words:
                whole = lengths[owners] == length
                hashes, owners = hashes[whole], owners[whole]
            unique, where = np.unique(hashes, return_index=True)
            table = np.zeros(1 << _TABLE_BITS, bool)
            table[_slot(unique)] = True
            if len(unique):
                self._lookups.append((length, unique, owners[where], table))

    @property
    def num_ngrams(self) -> int:
        return sum(len(unique) for _, unique, _, _ in self._lookups)

    def hits(self, texts: list[str]) -> list[Hit]:
        """Hits by document and position; runs that overlap or touch are one hit, named by the first."""
        batch = TextBatch(texts)
        words = batch.folded_words
        found: list[tuple[int, int, int]] = []
        for length, unique, owners, table in self._lookups:
            hashes, first = ngram_hashes(words, length)
            # One bit decides for nearly all; only what passes pays for the binary search.
            passed = np.flatnonzero(table[_slot(hashes)])
            slots = np.minimum(np.searchsorted(unique, hashes[passed]), len(unique) - 1)
            matched = unique[slots] == hashes[passed]
            begins = first[passed[matched]]
            found += zip(begins.tolist(), (begins + length).tolist(), owners[slots[matched]].tolist(), strict=True)
        return [self._hit(batch, *span) for span in _merged(sorted(found), words.documents)]

    def _hit(self, batch: TextBatch, first: int, after: int, owner: int) -> Hit:
        words, field = batch.folded_words, self.fields[owner]
        document = int(words.documents[first])
        start, end = int(words.starts[first]), int(words.ends[after - 1])
        offset = int(batch.document_starts[document])
        excerpt = batch.excerpt(start, end)
        return Hit(document, start - offset, end - offset, field.task, field.item, field.field, after - first, excerpt)


def read_item_fields(files: Mapping[str, str]) -> Iterator[ItemField]:
    """Every string in every row of the JSON-lines files, which are given by task."""
    for task, path in sorted(files.items()):
        with fsspec.open(path, "rt", encoding="utf-8") as lines:
            for item, line in enumerate(lines):
                for field, text in _strings(json.loads(line), ""):
                    yield ItemField(task, item, field, text)


def _strings(value: object, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield path, value
        case dict():
            for key, item in value.items():
                yield from _strings(item, f"{path}.{key}" if path else key)
        case list():
            for index, item in enumerate(value):
                yield from _strings(item, f"{path}[{index}]")


def _slot(hashes: np.ndarray) -> np.ndarray:
    return (hashes >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)


def _merged(spans: list[tuple[int, int, int]], documents: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Joins spans of one document that overlap or touch; the first names the field."""
    current: tuple[int, int, int] | None = None
    for first, after, owner in spans:
        if current is not None and first <= current[1] and documents[first] == documents[current[0]]:
            current = (current[0], max(current[1], after), current[2])
            continue
        if current is not None:
            yield current
        current = (first, after, owner)
    if current is not None:
        yield current
