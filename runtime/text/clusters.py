"""Clusters of duplicates: what pairs connect, and which documents of each cluster are dropped for the one that stays.

Pairs come in any number of parts. Memory holds two numbers for each document that has a duplicate.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from runtime.text.runs import begins_run


class Cluster(NamedTuple):
    """Duplicates, ascending; the lists hold the documents that are dropped for `kept`."""

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
        """Add pairs, int64[pairs, 2]."""
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
        """Return int64[pairs, 2] that connect the same documents: each document but the roots, after its root."""
        is_led = self.documents != self.roots
        return np.stack([self.roots[is_led], self.documents[is_led]], axis=1)


class Dropped(NamedTuple):
    """The documents that are dropped, ascending, and the document that stays for each."""

    documents: np.ndarray
    """int64."""
    kept: np.ndarray
    """int64."""
    is_exact: np.ndarray
    """bool: whether the text is that of the document that stays. A copy of a near duplicate is a near duplicate."""


def dropped(components: Components, exact: np.ndarray, *, first_own: int = 0) -> Dropped:
    """Return which documents from `first_own` on are dropped; documents before it belong to other sources and stay.

    Args:
        components: The components of all pairs, exact ones included.
        exact: int64[pairs, 2], each copy once, after the first document of its text.
        first_own: The first document that may be dropped.
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
    """Yield the clusters by the number of the document that stays, in blocks of about so many documents."""
    order = np.argsort(found.kept, kind="stable")
    kept = found.kept[order]
    begin = 0
    while begin < len(order):
        end = min(begin + documents_per_block, len(order))
        end = int(np.searchsorted(kept, kept[end - 1], side="right"))
        yield _block(found, order[begin:end])
        begin = end


def _block(found: Dropped, places: np.ndarray) -> list[Cluster]:
    cuts = np.flatnonzero(begins_run(found.kept[places]))[1:]
    result = []
    for members in np.split(places, cuts):
        exact, near = members[found.is_exact[members]], members[~found.is_exact[members]]
        numbers = (tuple(found.documents[part].tolist()) for part in (exact, near))
        result.append(Cluster(int(found.kept[members[0]]), *numbers))
    return result
