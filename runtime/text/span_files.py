"""Spans on disk: of each shard the first ones, by key; of each range of keys those that repeat another, by shard.

A span that stands twice in one shard repeats itself whatever the other shards hold, so only its first place in a shard
is compared with them: a banner that stands on every page is one record a shard.

Nothing goes everywhere: a place that others lose a span for is remembered (`held`), so that the document around it can
stay. A sentence that goes stands at the first place of its span, or goes there too, for a place before that one; so it
stands in the end in a document that holds it for others, which is not dropped.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import fsspec
import numpy as np

from runtime.text.array_files import read_array, write_array
from runtime.text.documents import Document, read_batches
from runtime.text.key_files import Buckets, read_keys, records, write_keys
from runtime.text.ranged_reads import read_bytes
from runtime.text.span_rule import RepeatedSpans
from runtime.text.spans import SENTENCES_PER_SPAN, covered, sentences, span_keys, without_sentences


class SpanCounts(NamedTuple):
    num_sentences: int
    num_keys: int
    """Records that other shards are compared with."""


class SpanFolder(NamedTuple):
    """Where the spans of one shard lie, and which of them are no more."""

    folder: str
    dropped: str | None = None
    """File of `write_dropped`; None as long as no document of the shard was dropped."""


class Edited(NamedTuple):
    """A document, and what is left of its text."""

    document: Document
    text: str
    num_left: int
    """Sentences."""
    removed: tuple[str, ...]
    """Sentences."""
    is_held: bool
    """Whether another place lost a sentence that is left here."""
    rows: tuple[int, int]
    """The sentences of the document as they are numbered through its shard: the first, and the first of the next."""


def write_spans(shard: str, folder: str, rule: RepeatedSpans) -> SpanCounts:
    """The spans of one shard of documents; sentences are numbered through the shard."""
    keys, firsts, num_sentences = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)], 0
    for batch in read_batches(shard):
        for document in batch:
            count, found = span_keys(document.text, rule)
            keys.append(found)
            firsts.append(np.arange(num_sentences, num_sentences + len(found)))
            num_sentences += count
    both, rows = np.concatenate(keys), np.concatenate(firsts)
    is_span = both.any(axis=1)
    ordered = records(both[is_span, 0], both[is_span, 1], rows[is_span])
    first = ordered["row"][_first_of_each(ordered)]
    is_repeat = ordered["row"] - first >= SENTENCES_PER_SPAN
    write_keys(f"{folder}/first.bin", ordered[~is_repeat])
    write_array(f"{folder}/repeats.npy", ordered["row"][is_repeat])
    write_array(f"{folder}/held.npy", np.unique(first[is_repeat]))
    return SpanCounts(num_sentences, int(np.count_nonzero(~is_repeat)))


def write_repeats(folder: str, shards: Sequence[SpanFolder], num_earlier: int, buckets: Buckets) -> int:
    """Of the spans of one range of keys, those that repeat one of a shard before; returns how many.

    `shards` are all of them in order, of which the first `num_earlier` are only compared with.
    """
    parts = [_spans_left(shard, buckets) for shard in shards]
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    found = np.concatenate(parts)
    order = np.lexsort((numbers, found["mark"], found["key"]))  # stable, so rows ascend within a shard
    found, numbers = found[order], numbers[order]
    first = _first_of_each(found)
    is_repeat = (numbers != numbers[first]) & (numbers >= num_earlier)
    held = np.unique(first[is_repeat])
    held = held[numbers[held] >= num_earlier]
    num_own = len(parts) - num_earlier
    _write_rows(f"{folder}/repeats.bin", found["row"][is_repeat], numbers[is_repeat] - num_earlier, num_own)
    _write_rows(f"{folder}/held.bin", found["row"][held], numbers[held] - num_earlier, num_own)
    return int(np.count_nonzero(is_repeat))


def read_rows(path: str, shard: int, num_shards: int) -> np.ndarray:
    """What a file of `write_repeats` has of one shard: the sentences at which the spans begin."""
    begin, end = np.frombuffer(read_bytes(path, 8 * shard, 8 * shard + 16), "<u8").tolist()
    first = 8 * (num_shards + 1)
    return np.frombuffer(read_bytes(path, first + 4 * begin, first + 4 * end), "<u4")


def write_dropped(path: str, rows: Sequence[tuple[int, int]]) -> None:
    """Writes which sentences of a shard went with their whole documents: `rows` of `Edited`, in order."""
    write_array(path, np.array(rows, np.int64).reshape(-1, 2))


def edited_documents(
    shard: str, folder: str, parts: Sequence[str], *, number: int, num_shards: int
) -> Iterator[Document | Edited]:
    """The documents of a shard in order, each as it is or as it is left; `parts` are the folders of `write_repeats`."""
    repeats = _rows_of(folder, parts, "repeats", number, num_shards)
    held = _rows_of(folder, parts, "held", number, num_shards)
    begin = 0
    for batch in read_batches(shard):
        for document in batch:
            found = sentences(document.text)
            end = begin + len(found)
            own = _between(repeats, begin, end)
            if len(own):
                gone = covered(len(found), own)
                stands = covered(len(found), _between(held, begin, end)) & ~gone
                text = without_sentences(document.text, gone.tolist())
                removed = tuple(document.text[s.start : s.end] for s, goes in zip(found, gone, strict=True) if goes)
                yield Edited(document, text, len(found) - len(removed), removed, bool(stands.any()), (begin, end))
            else:
                yield document
            begin = end


def _spans_left(shard: SpanFolder, buckets: Buckets) -> np.ndarray:
    found = read_keys(f"{shard.folder}/first.bin", buckets)
    if shard.dropped is None:
        return found
    begins, ends = read_array(shard.dropped).T
    place = np.searchsorted(begins, found["row"], side="right") - 1  # -1, the 0 behind the others, before all of them
    return found[found["row"] >= np.append(ends, 0)[place]]


def _write_rows(path: str, rows: np.ndarray, shards: np.ndarray, num_shards: int) -> None:
    by_shard = np.argsort(shards, kind="stable")
    starts = np.searchsorted(shards[by_shard], np.arange(num_shards + 1)).astype("<u8")
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        file.write(starts.tobytes())
        file.write(rows[by_shard].astype("<u4").tobytes())


def _rows_of(folder: str, parts: Sequence[str], name: str, number: int, num_shards: int) -> np.ndarray:
    found = [
        read_array(f"{folder}/{name}.npy"),
        *(read_rows(f"{part}/{name}.bin", number, num_shards) for part in parts),
    ]
    return np.sort(np.concatenate(found)).astype(np.int64)


def _between(rows: np.ndarray, begin: int, end: int) -> list[int]:
    first, after = np.searchsorted(rows, (begin, end)).tolist()
    return [row - begin for row in rows[first:after].tolist()]


def _first_of_each(ordered: np.ndarray) -> np.ndarray:
    """For each record the place of the first of its key."""
    begins = np.ones(len(ordered), bool)
    begins[1:] = (ordered["key"][1:] != ordered["key"][:-1]) | (ordered["mark"][1:] != ordered["mark"][:-1])
    return np.maximum.accumulate(np.where(begins, np.arange(len(ordered)), 0))
