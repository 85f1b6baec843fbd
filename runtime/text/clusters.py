"""Clusters: what pairs of equal documents connect, and which of each cluster are dropped for the one that stays.

Pairs come in any number of parts, one after the other; what is held is a word or two for each document that has a
duplicate, and nothing for the others.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Cluster(NamedTuple):
    """Documents that say the same, ascending; only those that are dropped for the one that stays."""

    kept: int
    exact: tuple[int, ...]
    near: tuple[int, ...]


class Components:
    """Connected documents; the lowest number of each component is its root."""

    def __init__(self) -> None:
        self.documents = np.empty(0, np.int64)
        """Ascending."""
        self.roots = np.empty(0, np.int64)

    def join(self, pairs: np.ndarray) -> None:
        """More pairs, int64[pairs, 2]."""
        edges = np.concatenate([np.stack([self.documents, self.roots], axis=1), pairs])
        self.documents, ends = np.unique(edges, return_inverse=True)
        ends = ends.reshape(-1, 2)
        parents = np.arange(len(self.documents))
        while len(ends):
            ends = np.sort(parents[ends], axis=1)
            ends = ends[ends[:, 0] != ends[:, 1]]
            np.minimum.at(parents, ends[:, 1], ends[:, 0])
            while np.any(parents != (further := parents[parents])):
                parents = further
        self.roots = self.documents[parents]

    def pairs(self) -> np.ndarray:
        """int64[pairs, 2]: each document but the roots, with its root before it; they connect what is connected."""
        is_led = self.documents != self.roots
        return np.stack([self.roots[is_led], self.documents[is_led]], axis=1)


class Dropped(NamedTuple):
    """Documents that are dropped, ascending, and of each the one that stays for it."""

    documents: np.ndarray
    """int64."""
    kept: np.ndarray
    """int64."""
    is_exact: np.ndarray
    """bool: the very text of the one that stays; a copy of a near duplicate is a near duplicate."""


def dropped(components: Components, exact: np.ndarray, *, first_own: int = 0) -> Dropped:
    """What goes of the documents from `first_own` on; those before it are of other sources, and stay.

    Args:
        components: Of all pairs, the exact ones among them.
        exact: int64[pairs, 2], each copy, once, with the first document of its text before it.
        first_own: Number of the first document that may be dropped.
    """
    goes = (components.documents != components.roots) & (components.documents >= first_own)
    documents, kept = components.documents[goes], components.roots[goes]
    exact = exact[np.argsort(exact[:, 1])]
    places = np.minimum(np.searchsorted(exact[:, 1], documents), max(len(exact) - 1, 0))
    is_exact = np.zeros(len(documents), bool)
    if len(exact):
        is_exact = (exact[places, 1] == documents) & (exact[places, 0] == kept)
    return Dropped(documents, kept, is_exact)


def clusters(found: Dropped, *, documents_per_block: int = 1 << 20) -> Iterator[list[Cluster]]:
    """The clusters by the number of the document that stays, in blocks of about so many documents."""
    order = np.argsort(found.kept, kind="stable")
    kept = found.kept[order]
    begin = 0
    while begin < len(order):
        end = min(begin + documents_per_block, len(order))
        end = int(np.searchsorted(kept, kept[end - 1], side="right"))
        yield _block(found, order[begin:end])
        begin = end


def _block(found: Dropped, places: np.ndarray) -> list[Cluster]:
    kept = found.kept[places]
    cuts = np.flatnonzero(kept[1:] != kept[:-1]) + 1
    result = []
    for members in np.split(places, cuts):
        exact, near = members[found.is_exact[members]], members[~found.is_exact[members]]
        numbers = (tuple(found.documents[part].tolist()) for part in (exact, near))
        result.append(Cluster(int(found.kept[members[0]]), *numbers))
    return result
