"""Decontamination: documents that share a long run of words with an evaluation item.

A hit is a run of `ngram_words` words (13: GPT-3, arXiv:2005.14165, appendix C) that stands in both, compared without
case, punctuation and layout (`runtime.text.folding`). A field of an item that is shorter is matched whole, if it has at
least `min_field_words` words; still shorter ones (an option "all of the above") say nothing about contamination.

Every item that has the run is hit, in whatever tasks. Of a run that stands in more than `FIELDS_NAMED` fields of one
task, such as a prompt that each item begins with, the first so many are named.
"""

import codecs
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.tables.parquet_bytes import from_parquet
from runtime.text.array_files import read_array, write_array
from runtime.text.batch import TextBatch, ngram_hashes

FIELDS_NAMED = 100
_TABLE_BITS = 24
_FIELDS_SCHEMA = pa.schema([("task", pa.string()), ("item", pa.int32()), ("field", pa.string())])


class ItemField(NamedTuple):
    """One string of an evaluation item."""

    task: str
    item: int
    """Row of the task's file, from 0."""
    field: str
    text: str


class Hit(NamedTuple):
    """A run of words that a document shares with an item; positions are UTF-8 bytes of the document's text.

    The words may stand in several fields of the item; `field` has the first of them.
    """

    document: int
    start: int
    end: int
    task: str
    item: int
    field: str
    num_words: int
    excerpt: str


class _Lookup(NamedTuple):
    """Runs of one length: their hashes, sorted, and all fields that each stands in."""

    length: int
    hashes: np.ndarray
    """Each once."""
    starts: np.ndarray
    """Where in `owners` the fields of each begin, and at the end how many there are."""
    owners: np.ndarray
    table: np.ndarray
    """Whether any of the hashes begins with these bits."""


class ItemIndex:
    """The n-grams of the evaluation items, for lookup by hash. Built once, then loaded for every shard."""

    def __init__(self, folder: str) -> None:
        """Loads what `build_index` wrote to `folder`."""
        self._fields_path = f"{folder}/fields.parquet"
        hashes, owners, lengths = (read_array(f"{folder}/{name}.npy") for name in ("hashes", "owners", "lengths"))
        self._lookups = []
        for length in np.unique(lengths).tolist():
            chosen = lengths == length
            unique, starts = np.unique(hashes[chosen], return_index=True)
            table = np.zeros(1 << _TABLE_BITS, bool)
            table[_slot(unique)] = True
            starts = np.append(starts, np.count_nonzero(chosen))
            self._lookups.append(_Lookup(length, unique, starts, owners[chosen], table))

    def hits(self, texts: list[str]) -> list[Hit]:
        """Hits by document, position and item; runs of one item that overlap or touch are one hit."""
        batch = TextBatch(texts)
        words = batch.folded_words
        found: list[tuple[int, int, int]] = []
        for length, unique, starts, owners, table in self._lookups:
            hashes, first = ngram_hashes(words, length)
            # One bit decides for nearly all; only what passes pays for the binary search.
            passed = np.flatnonzero(table[_slot(hashes)])
            slots = np.minimum(np.searchsorted(unique, hashes[passed]), len(unique) - 1)
            matched = unique[slots] == hashes[passed]
            for begin, slot in zip(first[passed[matched]].tolist(), slots[matched].tolist(), strict=True):
                found += ((begin, begin + length, owner) for owner in owners[starts[slot] : starts[slot + 1]].tolist())
        return [self._hit(batch, *span) for span in self._merged(sorted(found), words.documents)]

    def _merged(self, spans: list[tuple[int, int, int]], documents: np.ndarray) -> list[tuple[int, int, int]]:
        """Joins spans of one document and item that overlap or touch; the first names the field."""
        merged: list[tuple[int, int, int]] = []
        last: dict[tuple[int, str, int], int] = {}
        for first, after, owner in spans:
            field = self._fields[owner]
            key = (int(documents[first]), field.task, field.item)
            place = last.get(key)
            if place is not None and first <= merged[place][1]:
                merged[place] = (merged[place][0], max(merged[place][1], after), merged[place][2])
            else:
                last[key] = len(merged)
                merged.append((first, after, owner))
        return merged

    @functools.cached_property
    def _fields(self) -> list[ItemField]:
        # Only a hit needs the names, and most shards have none.
        with fsspec.open(self._fields_path, "rb") as file:
            rows = from_parquet(file.read()).to_pylist()
        return [ItemField(row["task"], row["item"], row["field"], "") for row in rows]

    def _hit(self, batch: TextBatch, first: int, after: int, owner: int) -> Hit:
        words, field = batch.folded_words, self._fields[owner]
        document = int(words.documents[first])
        start, end = int(words.starts[first]), int(words.ends[after - 1])
        offset = int(batch.document_starts[document])
        excerpt = batch.excerpt(start, end)
        return Hit(document, start - offset, end - offset, field.task, field.item, field.field, after - first, excerpt)


def build_index(fields: Iterable[ItemField], folder: str, *, ngram_words: int, min_field_words: int) -> int:
    """Writes the index of all fields; returns the number of n-grams.

    Raises:
        ValueError: `min_field_words` is not between 1 and `ngram_words`.
    """
    if not 1 <= min_field_words <= ngram_words:
        raise ValueError(
            f"min_field_words is {min_field_words}, ngram_words is {ngram_words}; it must lie between 1 and that."
        )
    # A word takes a character: shorter texts need not be hashed to be left out.
    kept = [field for field in fields if len(field.text) >= min_field_words]
    batch = TextBatch([field.text for field in kept])
    words = batch.folded_words
    num_words = batch.sums(words)
    tasks = np.unique(np.array([field.task for field in kept], str), return_inverse=True)[1]
    hashes, owners, lengths = [], [], []
    for length in range(min_field_words, ngram_words + 1):
        keys, first = ngram_hashes(words, length)
        fields_of_keys = words.documents[first]
        if length < ngram_words:
            whole = num_words[fields_of_keys] == length
            keys, fields_of_keys = keys[whole], fields_of_keys[whole]
        keys, fields_of_keys = _of_first_fields(keys, fields_of_keys, tasks)
        hashes.append(keys)
        owners.append(fields_of_keys.astype(np.int32))
        lengths.append(np.full(len(keys), length, np.int8))
    for name, arrays in (("hashes", hashes), ("owners", owners), ("lengths", lengths)):
        write_array(f"{folder}/{name}.npy", np.concatenate(arrays))
    columns = {name: [getattr(field, name) for field in kept] for name in ("task", "item", "field")}
    with fsspec.open(f"{folder}/fields.parquet", "wb", auto_mkdir=True) as file:
        pq.write_table(pa.table(columns, schema=_FIELDS_SCHEMA), file, compression="zstd")
    return sum(len(np.unique(keys)) for keys in hashes)


def _of_first_fields(keys: np.ndarray, fields: np.ndarray, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each n-gram with its fields once, by key and field; of each task at most `FIELDS_NAMED`."""
    order = np.lexsort((fields, keys))
    keys, fields = keys[order], fields[order]
    is_first = np.ones(len(keys), bool)
    is_first[1:] = (keys[1:] != keys[:-1]) | (fields[1:] != fields[:-1])
    keys, fields = keys[is_first], fields[is_first]
    of_task = tasks[fields]
    # Fields of a task need not stand together, so the rank is taken in order of key, task and field.
    order = np.lexsort((fields, of_task, keys))
    begins = np.ones(len(keys), bool)
    begins[1:] = (np.diff(keys[order]) != 0) | (np.diff(of_task[order]) != 0)
    ranks = np.arange(len(keys)) - np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))
    named = np.zeros(len(keys), bool)
    named[order] = ranks < FIELDS_NAMED
    return keys[named], fields[named]


def copy_item_files(files: Mapping[str, str], folder: str) -> dict[str, int]:
    """Copies JSON-lines files, given by task, to `TASK.jsonl`; returns how many items each has.

    Raises:
        ValueError: a line is no JSON object.
    """
    num_items = {}
    for task, path in sorted(files.items()):
        with fsspec.open(path, "rb") as file, fsspec.open(f"{folder}/{task}.jsonl", "wb", auto_mkdir=True) as copy:
            number = 0
            lines = (line.removeprefix(codecs.BOM_UTF8).strip() for line in file)
            for number, line in enumerate(filter(None, lines), start=1):
                _refuse_other_than_object(line, f"{task}.jsonl: item {number}")
                # It is a blank in JSON; whoever reads lines as text would end one there.
                copy.write(line.replace(b"\r", b" ") + b"\n")
            num_items[task] = number
    return num_items


def _refuse_other_than_object(line: bytes, where: str) -> None:
    try:
        row = json.loads(line.decode())
        json.dumps(row, ensure_ascii=False).encode()  # half of a character, written as an escape, is no text
    except ValueError as error:
        raise ValueError(f"{where} is not JSON ({error}); an evaluation set has one JSON object a line.") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where} is a {type(row).__name__}; an evaluation set has one JSON object a line.")


def read_item_fields(files: Mapping[str, str]) -> Iterator[ItemField]:
    """Every string in every row of the JSON-lines files, which are given by task."""
    for task, path in sorted(files.items()):
        with fsspec.open(path, "rb") as lines:
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
