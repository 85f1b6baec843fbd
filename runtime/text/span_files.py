"""Spans on disk: of each shard the first ones, by key; of each range of keys those that repeat another, by shard.

A span that stands twice in one shard repeats itself whatever the other shards hold, so only its first place in a shard
is compared with them: a banner that stands on every page is one record a shard.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import fsspec
import numpy as np

from runtime.text.documents import Document, read_batches
from runtime.text.key_files import Buckets, read_keys, records, write_keys
from runtime.text.ranged_reads import read_bytes
from runtime.text.span_rule import RepeatedSpans
from runtime.text.spans import SENTENCES_PER_SPAN, covered, sentences, span_keys, without_sentences


class SpanCounts(NamedTuple):
    num_sentences: int
    num_keys: int
    """Records that other shards are compared with."""


class Edited(NamedTuple):
    """A document, and what is left of its text."""

    document: Document
    text: str
    num_left: int
    """Sentences."""
    removed: tuple[str, ...]
    """Sentences."""


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
    distance = ordered["row"] - ordered["row"][_first_of_each(ordered)]
    is_repeat = distance >= SENTENCES_PER_SPAN
    write_keys(f"{folder}/first.bin", ordered[~is_repeat])
    _save(f"{folder}/repeats.npy", ordered["row"][is_repeat])
    return SpanCounts(num_sentences, int(np.count_nonzero(~is_repeat)))


def write_repeats(path: str, folders: Sequence[str], num_earlier: int, buckets: Buckets) -> int:
    """Of the spans of one range of keys, those that repeat one of a shard before; returns how many.

    `folders` are those of all shards in order, of which the first `num_earlier` are only compared with.
    """
    parts = [read_keys(f"{folder}/first.bin", buckets) for folder in folders]
    shards = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    found = np.concatenate(parts)
    order = np.lexsort((shards, found["mark"], found["key"]))  # stable, so rows ascend within a shard
    found, shards = found[order], shards[order]
    is_repeat = (shards != shards[_first_of_each(found)]) & (shards >= num_earlier)
    rows, shards = found["row"][is_repeat], shards[is_repeat] - num_earlier
    by_shard = np.argsort(shards, kind="stable")
    starts = np.searchsorted(shards[by_shard], np.arange(len(parts) - num_earlier + 1)).astype("<u8")
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        file.write(starts.tobytes())
        file.write(rows[by_shard].astype("<u4").tobytes())
    return len(rows)


def read_repeats(path: str, shard: int, num_shards: int) -> np.ndarray:
    """What `write_repeats` found in one shard: the sentences at which the spans begin."""
    begin, end = np.frombuffer(read_bytes(path, 8 * shard, 8 * shard + 16), "<u8").tolist()
    first = 8 * (num_shards + 1)
    return np.frombuffer(read_bytes(path, first + 4 * begin, first + 4 * end), "<u4")


def edited_documents(
    shard: str, folder: str, parts: Sequence[str], *, number: int, num_shards: int
) -> Iterator[Document | Edited]:
    """The documents of a shard in order, each as it is or as it is left; `parts` are the files of `write_repeats`."""
    repeats = [_load(f"{folder}/repeats.npy"), *(read_repeats(part, number, num_shards) for part in parts)]
    firsts = np.sort(np.concatenate(repeats)).astype(np.int64)
    begin = 0
    for batch in read_batches(shard):
        for document in batch:
            found = sentences(document.text)
            own = firsts[np.searchsorted(firsts, begin) : np.searchsorted(firsts, begin + len(found))] - begin
            begin += len(found)
            if not len(own):
                yield document
                continue
            gone = covered(len(found), own.tolist())
            removed = tuple(document.text[s.start : s.end] for s, is_gone in zip(found, gone, strict=True) if is_gone)
            yield Edited(document, without_sentences(document.text, gone.tolist()), len(found) - len(removed), removed)


def _first_of_each(ordered: np.ndarray) -> np.ndarray:
    """For each record the place of the first of its key."""
    begins = np.ones(len(ordered), bool)
    begins[1:] = (ordered["key"][1:] != ordered["key"][:-1]) | (ordered["mark"][1:] != ordered["mark"][:-1])
    return np.maximum.accumulate(np.where(begins, np.arange(len(ordered)), 0))


def _save(path: str, values: np.ndarray) -> None:
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        np.save(file, values)


def _load(path: str) -> np.ndarray:
    with fsspec.open(path, "rb") as file:
        return np.load(file)
