"""Splits: the training and the held-out documents of a source, by the hash of their texts."""

import array
import hashlib
import heapq
import math
from collections.abc import Iterable
from typing import NamedTuple

SPLITS = ("train", "validation")
CERTAIN_DOCUMENTS = 64
"""If a split is expected to hold this many documents, the chance that it holds fewer than 16 is below 1e-12."""
FEW_DOCUMENTS = 16
"""Warn of a validation split with fewer documents."""
_PLACES = 1 << 64
_SHARE_DIGITS = 3


class SmallSplit(NamedTuple):
    """Counts of a source with an empty split, or with few validation documents."""

    num_documents: int
    num_validation: int
    better_share: float | None
    """A validation share that holds out `FEW_DOCUMENTS`, or a fifth of fewer than 80; None if no share splits them."""

    @property
    def empty(self) -> str | None:
        """The split without documents."""
        if not self.num_validation:
            return "validation"
        return "train" if self.num_validation == self.num_documents else None

    def problem(self, validation_share: float) -> str:
        """Return what is wrong, and the fix."""
        fix = "Split the source into more documents."
        if self.better_share is not None:
            fix = f"Change validation_share={validation_share}, or split the source into more documents."
        if self.empty is None:
            found = f"validation: {self.num_validation} of {self.num_documents} documents fall into this split"
            return f"{found}, so its loss says little. {fix}"
        found = f"{self.empty}: none of the {self.num_documents} documents fall into this split"
        return f"{found}, which the hash of their texts decides. {fix}"


def is_validation(text: bytes, validation_share: float) -> bool:
    """Return whether a document is held out, by the hash of its text (UTF-8) alone.

    Copies of a text thus share a split. By ids, one copy could be trained on and another held out.
    """
    return _place(text) < int(validation_share * _PLACES)


def small_split(texts: Iterable[bytes], validation_share: float, *, num_documents: int = 0) -> SmallSplit | None:
    """Return the counts of texts (UTF-8) if one of their splits is small.

    Stop reading when both splits are large enough. Read nothing if `num_documents` makes a small split improbable.
    """
    if min(validation_share, 1 - validation_share) * num_documents >= CERTAIN_DOCUMENTS:
        return None
    places = array.array("Q")
    num_validation = 0
    for text in texts:
        places.append(_place(text))
        num_validation += places[-1] < int(validation_share * _PLACES)
        if num_validation >= FEW_DOCUMENTS and num_validation < len(places):
            return None
    return SmallSplit(len(places), num_validation, _share_of(places))


def _share_of(places: array.array) -> float | None:
    lowest = heapq.nsmallest(min(FEW_DOCUMENTS, max(1, len(places) // 5)), places)
    if not lowest:
        return None
    share = math.ceil((lowest[-1] + 1) / _PLACES * 10**_SHARE_DIGITS) / 10**_SHARE_DIGITS
    return share if share < 1 and max(places) >= int(share * _PLACES) else None


def _place(text: bytes) -> int:
    return int.from_bytes(hashlib.sha256(b"validation\x00" + text).digest()[:8], "big")
