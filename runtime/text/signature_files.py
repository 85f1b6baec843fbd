"""Signatures on disk: written shard by shard, read by ranges of keys over many shards and sources.

A shard's folder holds `minhash.npy`, `ids.json` and files of sorted keys: `text.bin` by the SHA-256 of the text, and
`band-NN.bin` for each band. A file of keys begins with the starts of 1,024 buckets; a key's first ten
bits are its bucket. A task reads the same buckets of every file, so equal keys of all shards meet in one task.
Documents of a list of folders are numbered one folder after the other, without dropped rows.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import fsspec
import numpy as np

from runtime.text.array_files import num_rows, read_array, read_bytes, read_rows, write_array
from runtime.text.dedup import Components, agreeing, band_keys, copies, members, signatures
from runtime.text.minhash import MinHash

NO_PAIRS = np.empty((0, 2), np.int64)
PAIRS_HELD = 1 << 20
"""Number of pairs above which pairs are joined to components, which have at most one pair per document."""
TEXT = "text"
RECORD = np.dtype([("key", "<u8"), ("mark", "<u8"), ("row", "<u4")])
"""A record of 20 bytes. `mark` is another part of the key, or another value that identifies the row."""
NUM_BUCKETS = 1 << 10
_SHIFT = np.uint64(64 - 10)
_HEADER_BYTES = 8 * (NUM_BUCKETS + 1)


class Buckets(NamedTuple):
    """A range of keys, by the numbers of their buckets."""

    first: int
    after: int


ALL_BUCKETS = Buckets(0, NUM_BUCKETS)


def ranges(num_keys: int, keys_per_task: int) -> Iterator[Buckets]:
    """Yield ranges of about `keys_per_task` keys each, and at least one bucket."""
    count = min(NUM_BUCKETS, max(1, -(-num_keys // keys_per_task)))
    for number in range(count):
        yield Buckets(number * NUM_BUCKETS // count, (number + 1) * NUM_BUCKETS // count)


def write_signatures(folder: str, batches: Iterable[tuple[Sequence[str], Sequence[str]]], parameters: MinHash) -> int:
    """Write the signatures of a shard's documents, given by batches of ids and texts; return their number."""
    all_ids: list[str] = []
    parts = [signatures([], parameters)]
    for ids, texts in batches:
        all_ids += ids
        parts.append(signatures(texts, parameters))
    exact, minhash = (np.concatenate(part) for part in zip(*parts, strict=True))
    # The SHA-256 in words: the first word sorts copies together, two words identify a text.
    words = np.ascontiguousarray(exact).view("<u8").reshape(len(exact), 4)
    write_array(f"{folder}/minhash.npy", minhash)
    _write_keys(f"{folder}/{TEXT}.bin", words[:, 0], words[:, 1])
    for band, keys in enumerate(band_keys(minhash, parameters)):
        _write_keys(f"{folder}/band-{band:02d}.bin", keys, words[:, 0])
    with fsspec.open(f"{folder}/ids.json", "wb", auto_mkdir=True) as file:
        file.write(json.dumps(all_ids, ensure_ascii=False).encode())
    return len(all_ids)


def _write_keys(path: str, keys: np.ndarray, marks: np.ndarray) -> None:
    records = np.empty(len(keys), RECORD)
    order = np.lexsort((marks, keys))
    records["key"], records["mark"], records["row"] = keys[order], marks[order], order
    starts = np.searchsorted(records["key"] >> _SHIFT, np.arange(NUM_BUCKETS + 1, dtype=np.uint64))
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        file.write(starts.astype("<u8").tobytes())
        file.write(records.tobytes())


Keys = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Keys, marks and documents of one range: uint64, uint64, int64."""


class SignatureFile:
    """The folder of one shard, restricted to the rows that the file `kept` marks."""

    def __init__(self, folder: str, kept: str | None) -> None:
        self._folder = folder
        self._kept = kept
        self._length = num_rows(f"{folder}/minhash.npy") if kept is None else int(np.count_nonzero(read_array(kept)))

    def __len__(self) -> int:
        return self._length

    def keys(self, name: str, buckets: Buckets) -> Keys:
        """Return the keys of the file `name` in this range; documents are numbered in this shard."""
        path = f"{self._folder}/{name}.bin"
        starts = np.frombuffer(read_bytes(path, 0, _HEADER_BYTES), "<u8")
        begin, end = (_HEADER_BYTES + int(starts[bucket]) * RECORD.itemsize for bucket in buckets)
        found = np.frombuffer(read_bytes(path, begin, end), RECORD)
        places = found["row"].astype(np.int64)
        if self._kept is not None:
            kept = read_array(self._kept)
            stays = kept[places]
            found, places = found[stays], (np.cumsum(kept) - 1)[places[stays]]
        return found["key"], found["mark"], places

    def minhash(self, places: np.ndarray) -> np.ndarray:
        """Return uint32[places, hashes] of the documents at ascending places."""
        return read_rows(f"{self._folder}/minhash.npy", self._rows_of(places))

    def ids(self, places: np.ndarray) -> list[str]:
        """Return the ids of the documents at `places`."""
        with fsspec.open(f"{self._folder}/ids.json", "rb") as file:
            ids = json.load(file)
        return [ids[row] for row in self._rows_of(places)]

    def _rows_of(self, places: np.ndarray) -> np.ndarray:
        return places if self._kept is None else np.flatnonzero(read_array(self._kept))[places]


def _keys_of(files: Sequence[SignatureFile], name: str, buckets: Buckets) -> Keys:
    """Return the keys of all files in this range; the arrays take 24 bytes per key."""
    parts = [file.keys(name, buckets) for file in files]
    keys, marks, places = (np.concatenate(column) for column in zip(*parts, strict=True))
    return keys, marks, places + np.repeat(starts_of(files)[:-1], [len(part[0]) for part in parts])


def exact_pairs(files: Sequence[SignatureFile], buckets: Buckets = ALL_BUCKETS) -> np.ndarray:
    """Return pairs of a copy and the first document with its text; 128 bits of the SHA-256 must agree."""
    return copies(*_keys_of(files, TEXT, buckets)) if files else NO_PAIRS


def near_pairs(
    files: Sequence[SignatureFile], bands: Sequence[int], parameters: MinHash, buckets: Buckets = ALL_BUCKETS
) -> np.ndarray:
    """Return at most one pair per document; the pairs connect all similar documents that meet in a band."""
    if not files or not bands:
        return NO_PAIRS
    meeting = [members(*_keys_of(files, f"band-{band:02d}", buckets)) for band in bands]
    documents = np.unique(np.concatenate([band.documents for band in meeting]))
    if not len(documents):
        return NO_PAIRS
    minhashes = np.concatenate([file.minhash(places) for file, places in _by_file(files, documents)])
    components, waiting = Components(), [NO_PAIRS]
    num_waiting = 0
    for band in meeting:
        for pairs in agreeing(band, documents, minhashes, parameters.min_similarity):
            waiting.append(pairs)
            num_waiting += len(pairs)
            if num_waiting > PAIRS_HELD:
                components.join(np.concatenate(waiting))
                waiting, num_waiting = [NO_PAIRS], 0
    components.join(np.concatenate(waiting))
    return components.pairs()


def ids_of(files: Sequence[SignatureFile], documents: np.ndarray) -> dict[int, str]:
    """Return the id of each document, by ascending number."""
    found = [name for file, places in _by_file(files, documents) for name in file.ids(places)]
    return dict(zip(documents.tolist(), found, strict=True))


def starts_of(files: Sequence[SignatureFile]) -> np.ndarray:
    """Return the number of the first document of each file, with the total at the end."""
    return np.cumsum([0, *(len(file) for file in files)])


def _by_file(files: Sequence[SignatureFile], documents: np.ndarray) -> list[tuple[SignatureFile, np.ndarray]]:
    """Return each file that has some of the ascending numbers, and the places of these in the file."""
    starts = starts_of(files)
    cuts = np.searchsorted(documents, starts)
    spans = zip(files, starts[:-1], cuts[:-1], cuts[1:], strict=True)
    return [(file, documents[begin:end] - start) for file, start, begin, end in spans if begin < end]
