"""Files of spans: for each shard the first place of each span, by key; for each range of keys the repeats, by shard.

A span that occurs twice in one shard repeats itself whatever the other shards hold. Only its first place is compared
with them: a banner on every page is one record a shard.

A place that another place loses a span for is `held`, so that its document can stay. A removed sentence survives at the
first place of its span, or is removed there for a still earlier place. It therefore survives in a held document, which
is not dropped.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import fsspec
import numpy as np

from runtime.text.array_files import read_array, write_array
from runtime.text.documents import Document, read_batches
from runtime.text.key_files import Buckets, read_keys, records, write_keys
from runtime.text.ranged_reads import read_bytes
from runtime.text.runs import run_starts
from runtime.text.span_rule import RepeatedSpans
from runtime.text.spans import SENTENCES_PER_SPAN, covered, sentences, span_keys, without_sentences


class SpanCounts(NamedTuple):
    num_sentences: int
    num_keys: int
    """Records that other shards are compared with."""


class SpanFolder(NamedTuple):
    """The spans of one shard, and which of them went with dropped documents."""

    folder: str
    dropped: str | None = None
    """File of `write_dropped`; None if no document was dropped."""


class Edited(NamedTuple):
    """A document that lost sentences, and the text that is left."""

    document: Document
    text: str
    num_left: int
    """Number of sentences."""
    removed: tuple[str, ...]
    """Removed sentences."""
    is_held: bool
    """Whether another place lost a sentence that is left here."""
    rows: tuple[int, int]
    """The numbers, in the shard, of the document's first sentence and of the next document's."""


def write_spans(shard: str, folder: str, rule: RepeatedSpans) -> SpanCounts:
    """Write the spans of one shard of documents; sentences are numbered through the shard."""
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
    first = ordered["row"][run_starts(ordered["key"], ordered["mark"])]
    is_repeat = ordered["row"] - first >= SENTENCES_PER_SPAN
    write_keys(f"{folder}/first.bin", ordered[~is_repeat])
    write_array(f"{folder}/repeats.npy", ordered["row"][is_repeat])
    write_array(f"{folder}/held.npy", np.unique(first[is_repeat]))
    return SpanCounts(num_sentences, int(np.count_nonzero(~is_repeat)))


def write_repeats(folder: str, shards: Sequence[SpanFolder], num_earlier: int, buckets: Buckets) -> int:
    """Write the spans of one range of keys that repeat one of an earlier shard; return how many.

    `shards` are all shards in order; the first `num_earlier` belong to earlier sources and are only compared with.
    """
    parts = [_spans_left(shard, buckets) for shard in shards]
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    found = np.concatenate(parts)
    order = np.lexsort((numbers, found["mark"], found["key"]))  # stable, so rows ascend within a shard
    found, numbers = found[order], numbers[order]
    first = run_starts(found["key"], found["mark"])
    is_repeat = (numbers != numbers[first]) & (numbers >= num_earlier)
    held = np.unique(first[is_repeat])
    held = held[numbers[held] >= num_earlier]
    num_own = len(parts) - num_earlier
    _write_by_shard(f"{folder}/repeats.bin", found["row"][is_repeat], numbers[is_repeat] - num_earlier, num_own)
    _write_by_shard(f"{folder}/held.bin", found["row"][held], numbers[held] - num_earlier, num_own)
    return int(np.count_nonzero(is_repeat))


def read_rows(path: str, shard: int, num_shards: int) -> np.ndarray:
    """Read the sentences at which spans of one shard begin, from a file of `write_repeats`."""
    begin, end = np.frombuffer(read_bytes(path, 8 * shard, 8 * shard + 16), "<u8").tolist()
    first = 8 * (num_shards + 1)
    return np.frombuffer(read_bytes(path, first + 4 * begin, first + 4 * end), "<u4")


def write_dropped(path: str, rows: Sequence[tuple[int, int]]) -> None:
    """Write which sentences went with dropped documents: `rows` of `Edited`, in order."""
    write_array(path, np.array(rows, np.int64).reshape(-1, 2))


def edited_documents(
    shard: str, folder: str, parts: Sequence[str], *, number: int, num_shards: int
) -> Iterator[Document | Edited]:
    """Yield the documents of a shard in order, edited or unchanged; `parts` are the folders of `write_repeats`."""
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
    place = np.searchsorted(begins, found["row"], side="right") - 1  # -1 selects the appended 0
    return found[found["row"] >= np.append(ends, 0)[place]]


def _write_by_shard(path: str, rows: np.ndarray, shards: np.ndarray, num_shards: int) -> None:
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
