"""Decontamination: documents that share a long run of words with an evaluation item.

A hit is a run of `ngram_words` words (13: GPT-3, arXiv:2005.14165, appendix C) in both, compared without case,
punctuation and layout (`runtime.text.folding`). A shorter field of an item is matched whole if it has at least
`min_field_words` words; still shorter fields ("all of the above") are no sign of contamination.

Every item with the run is hit. If more than `MAX_NAMED_FIELDS` fields of a task have it, such as a common prompt, the
first ones are named.
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
from runtime.text.runs import begins_run, run_starts

MAX_NAMED_FIELDS = 100
_TABLE_BITS = 24
_FIELDS_SCHEMA = pa.schema([("task", pa.string()), ("item", pa.int32()), ("field", pa.string())])


class ItemField(NamedTuple):
    """A string of an evaluation item."""

    task: str
    item: int
    """The row in the task's file, from 0."""
    field: str
    text: str


class Hit(NamedTuple):
    """A run of words that a document shares with an item; positions are UTF-8 bytes of the document's text.

    The words may be in several fields of the item; `field` has the first of them.
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
    """Runs of one length: their hashes, sorted, and all fields that have each."""

    length: int
    hashes: np.ndarray
    """Each hash once."""
    starts: np.ndarray
    """The place in `owners` where the fields of each hash begin, with the total at the end."""
    owners: np.ndarray
    table: np.ndarray
    """Whether a hash begins with these bits."""


class ItemIndex:
    """The n-grams of the evaluation items by hash. Built once, then loaded for every shard."""

    def __init__(self, folder: str) -> None:
        """Load what `build_index` wrote to `folder`."""
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
        """Return hits by document, position and item; runs of one item that overlap or touch are one hit."""
        batch = TextBatch(texts)
        words = batch.folded_words
        found: list[tuple[int, int, int]] = []
        for length, unique, starts, owners, table in self._lookups:
            hashes, first = ngram_hashes(words, length)
            # One bit rejects nearly all, so that few pay for the binary search.
            passed = np.flatnonzero(table[_slot(hashes)])
            slots = np.minimum(np.searchsorted(unique, hashes[passed]), len(unique) - 1)
            matched = unique[slots] == hashes[passed]
            for begin, slot in zip(first[passed[matched]].tolist(), slots[matched].tolist(), strict=True):
                found += ((begin, begin + length, owner) for owner in owners[starts[slot] : starts[slot + 1]].tolist())
        return [self._hit(batch, *span) for span in self._merged(sorted(found), words.documents)]

    def _merged(self, spans: list[tuple[int, int, int]], documents: np.ndarray) -> list[tuple[int, int, int]]:
        """Join spans of one document and item that overlap or touch; the first names the field."""
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
        # Only hits need the names, and most shards have none.
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
    """Write the index of all fields and return the number of n-grams.

    Raises:
        ValueError: `min_field_words` is not between 1 and `ngram_words`.
    """
    if not 1 <= min_field_words <= ngram_words:
        raise ValueError(f"min_field_words is {min_field_words}. Set it between 1 and ngram_words ({ngram_words}).")
    # A word has a character or more, so shorter texts need no hash.
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
        pq.write_table(pa.table(columns, schema=_FIELDS_SCHEMA), file, compression="zstd", write_page_checksum=True)
    return sum(len(np.unique(keys)) for keys in hashes)


def _of_first_fields(keys: np.ndarray, fields: np.ndarray, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each n-gram with its fields once, by key and field; at most `MAX_NAMED_FIELDS` fields a task."""
    order = np.lexsort((fields, keys))
    keys, fields = keys[order], fields[order]
    is_first = begins_run(keys, fields)
    keys, fields = keys[is_first], fields[is_first]
    of_task = tasks[fields]
    # The fields of a task may be scattered, so ranks are taken in the order of key, task and field.
    order = np.lexsort((fields, of_task, keys))
    ranks = np.arange(len(keys)) - run_starts(keys[order], of_task[order])
    named = np.zeros(len(keys), bool)
    named[order] = ranks < MAX_NAMED_FIELDS
    return keys[named], fields[named]


def copy_item_files(files: Mapping[str, str], folder: str) -> dict[str, int]:
    """Copy JSON-lines files, given by task, to `TASK.jsonl`; return how many items each has.

    Raises:
        ValueError: a line is no JSON object.
    """
    num_items = {}
    for task, path in sorted(files.items()):
        with fsspec.open(path, "rb") as file, fsspec.open(f"{folder}/{task}.jsonl", "wb", auto_mkdir=True) as copy:
            number = 0
            lines = (line.removeprefix(codecs.BOM_UTF8).strip() for line in file)
            for number, line in enumerate(filter(None, lines), start=1):
                _check_object(line, f"{task}.jsonl: item {number}")
                # A carriage return is a blank in JSON, but would end a line for readers of text.
                copy.write(line.replace(b"\r", b" ") + b"\n")
            num_items[task] = number
    return num_items


def _check_object(line: bytes, where: str) -> None:
    try:
        row = json.loads(line.decode())
        json.dumps(row, ensure_ascii=False).encode()  # raises for a lone surrogate
    except ValueError as error:
        raise ValueError(f"{where} is not JSON ({error}). Write one JSON object a line.") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where} is a {type(row).__name__}; write one JSON object a line.")


def read_item_fields(files: Mapping[str, str]) -> Iterator[ItemField]:
    """Yield every string in every row of JSON-lines files, which are given by task."""
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
