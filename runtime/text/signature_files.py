"""Signatures on disk: written shard by shard, read band by band, over as many shards and sources as there are.

A shard's folder holds `exact.npy`, `minhash.npy`, `bands.npy` and `ids.json`. Documents of a list of such folders are
numbered through; a file of the rows that stayed leaves the others out of the numbers.
"""

import json
from collections.abc import Sequence

import fsspec
import numpy as np

from runtime.text.dedup import agreeing, band_keys, band_mates, copies, signatures, text_keys
from runtime.text.minhash import MinHash

NO_PAIRS = np.empty((0, 2), np.int64)


class SignatureWriter:
    """Signatures of the documents of one shard."""

    def __init__(self, parameters: MinHash) -> None:
        self._parameters = parameters
        self._ids: list[str] = []
        self._parts = [signatures([], parameters)]

    def add(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        """The next documents."""
        self._ids += ids
        self._parts.append(signatures(texts, self._parameters))

    def write(self, folder: str) -> int:
        """Writes the folder; returns the number of documents."""
        exact, minhash = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        _save(f"{folder}/exact.npy", exact)
        _save(f"{folder}/minhash.npy", minhash)
        _save(f"{folder}/bands.npy", band_keys(minhash, self._parameters))
        with fsspec.open(f"{folder}/ids.json", "wb", auto_mkdir=True) as file:
            file.write(json.dumps(self._ids, ensure_ascii=False).encode())
        return len(self._ids)


class SignatureFile:
    """The folder of one shard, or the rows of it that `kept`, a file of one truth value a row, says."""

    def __init__(self, folder: str, kept: str | None) -> None:
        self._folder = folder
        self._rows = None if kept is None else np.flatnonzero(_load(kept))
        self._length = len(self.exact()) if self._rows is None else len(self._rows)

    def __len__(self) -> int:
        return self._length

    def exact(self) -> np.ndarray:
        """V32[documents]: SHA-256 of the texts."""
        return self._of(_load(f"{self._folder}/exact.npy"))

    def bands(self, bands: Sequence[int]) -> np.ndarray:
        """uint64[bands, documents]."""
        return np.stack([self._of(band) for band in _load(f"{self._folder}/bands.npy")[list(bands)]])

    def minhash(self, places: np.ndarray) -> np.ndarray:
        """uint32[places, hashes] of the documents at `places`."""
        return self._of(_load(f"{self._folder}/minhash.npy"))[places]

    def ids(self, places: np.ndarray) -> list[str]:
        """Ids of the documents at `places`."""
        with fsspec.open(f"{self._folder}/ids.json", "rb") as file:
            ids = json.load(file)
        rows = places if self._rows is None else self._rows[places]
        return [ids[row] for row in rows]

    def _of(self, values: np.ndarray) -> np.ndarray:
        return values if self._rows is None else values[self._rows]


def exact_pairs(files: Sequence[SignatureFile]) -> np.ndarray:
    """Copies with the first document of their text; holds 32 bytes a document."""
    return copies(np.concatenate([file.exact() for file in files])) if files else NO_PAIRS


def near_pairs(files: Sequence[SignatureFile], bands: Sequence[int], parameters: MinHash) -> np.ndarray:
    """Pairs that meet in one of the bands and agree enough; holds 8 bytes a document and band."""
    if not files or not bands:
        return NO_PAIRS
    keys = np.concatenate([file.bands(bands) for file in files], axis=1)
    texts = np.concatenate([text_keys(file.exact()) for file in files])
    pairs = np.unique(np.concatenate([band_mates(band, texts) for band in keys]), axis=0)
    documents = np.unique(pairs)
    found = [file.minhash(places) for file, places in _by_file(files, documents)]
    if not found:
        return NO_PAIRS
    return agreeing(pairs, documents, np.concatenate(found), parameters)


def ids_of(files: Sequence[SignatureFile], documents: np.ndarray) -> dict[int, str]:
    """Ids by number, of ascending numbers."""
    found = [name for file, places in _by_file(files, documents) for name in file.ids(places)]
    return dict(zip(documents.tolist(), found, strict=True))


def starts_of(files: Sequence[SignatureFile]) -> np.ndarray:
    """Number of the first document of each file, and at the end the number of all."""
    return np.cumsum([0, *(len(file) for file in files)])


def write_pairs(path: str, pairs: np.ndarray) -> None:
    """Pairs of numbers, as they are."""
    _save(path, pairs.astype(np.int64))


def read_pairs(paths: Sequence[str]) -> np.ndarray:
    """Pairs of all files, each once, ascending."""
    return np.unique(np.concatenate([NO_PAIRS, *(_load(path) for path in paths)]), axis=0)


def _by_file(files: Sequence[SignatureFile], documents: np.ndarray) -> list[tuple[SignatureFile, np.ndarray]]:
    """Each file that has some of the ascending numbers, and where in it they are."""
    starts = starts_of(files)
    cuts = np.searchsorted(documents, starts)
    spans = zip(files, starts[:-1], cuts[:-1], cuts[1:], strict=True)
    return [(file, documents[begin:end] - start) for file, start, begin, end in spans if begin < end]


def _save(path: str, values: np.ndarray) -> None:
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        np.save(file, values)


def _load(path: str) -> np.ndarray:
    with fsspec.open(path, "rb") as file:
        return np.load(file)
