"""Anchors: ids of the documents within a file, from the ids in its rows, each once."""

import hashlib
import re
from array import array
from bisect import bisect_left

import numpy as np

_KEPT_UNSORTED = 1 << 16
_OWN = re.compile(r"(line|row) \d+")
"""The form of our own anchors, for rows without an id."""


class Anchors:
    """Gives each document of a file an anchor of its own; memory holds some nine bytes for each id."""

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted: list[array[int]] = []

    def is_new(self, anchor: str) -> bool:
        """Return whether an id was not given before in this file, and remember it."""
        digest = hashlib.blake2b(anchor.encode(errors="surrogatepass"), digest_size=8).digest()
        key = int.from_bytes(digest, "little")
        if key in self._recent or any(_holds(keys, key) for keys in self._sorted):
            return False
        self._recent.add(key)
        if len(self._recent) == _KEPT_UNSORTED:
            self._sort()
        return True

    def anchor(self, given: str, own: str) -> str:
        """Return the id of a row, followed by the row's own anchor where the id would stand for two documents."""
        while _OWN.fullmatch(given) or not self.is_new(given):
            given = f"{given} ({own})"
        return given

    def _sort(self) -> None:
        keys = np.fromiter(self._recent, np.uint64, len(self._recent))
        # Arrays of doubling sizes: each key is sorted a few times, however many there are.
        while self._sorted and len(self._sorted[-1]) <= len(keys):
            keys = np.concatenate([keys, np.frombuffer(self._sorted.pop(), np.uint64)])
        keys.sort()
        self._sorted.append(array("Q", keys.tobytes()))
        self._recent.clear()


def _holds(keys: "array[int]", key: int) -> bool:
    place = bisect_left(keys, key)
    return place < len(keys) and keys[place] == key
