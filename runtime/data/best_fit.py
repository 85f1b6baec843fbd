"""Best fit: which documents share a row, when rows hold whole documents; from their lengths alone.

Best fit, longest first (Ding et al. 2024, arXiv:2404.10830): each document goes into the fullest row that still has
room for it. Only one longer than a row is cut, into whole rows and a rest that is packed like a document. Equal lengths
give equal rows, so nothing needs to be kept. Documents of one length go at once, so it takes a step for each pair of a
length and a room that meet, and not one for each document.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64


class Packed(NamedTuple):
    """Rows of one portion. Of row i the pieces are `row_ends[i - 1]` to `row_ends[i]`, in the order of the source."""

    starts: Int64[np.ndarray, "pieces"]
    """Place of each piece's first token."""
    lengths: Int64[np.ndarray, "pieces"]
    row_ends: Int64[np.ndarray, "rows"]
    num_padding: int
    """Tokens of all rows that no document fills."""
    num_cut: int
    """Documents longer than a row."""


def packed(begins: Int64[np.ndarray, "documents"], ends: Int64[np.ndarray, "documents"], row_length: int) -> Packed:
    """Packs the documents [begins[i], ends[i]), which follow each other, into rows of `row_length` tokens."""
    starts, lengths = _pieces(begins, ends, row_length)
    row_of, num_rows = _best_fit(lengths, row_length)
    in_rows = np.argsort(row_of, kind="stable")
    return Packed(
        starts=starts[in_rows],
        lengths=lengths[in_rows],
        row_ends=np.cumsum(np.bincount(row_of, minlength=num_rows), dtype=np.int64),
        num_padding=num_rows * row_length - int(lengths.sum()),
        num_cut=int(np.count_nonzero(ends - begins > row_length)),
    )


def _pieces(
    begins: Int64[np.ndarray, "documents"], ends: Int64[np.ndarray, "documents"], row_length: int
) -> tuple[Int64[np.ndarray, "pieces"], Int64[np.ndarray, "pieces"]]:
    """Documents, those that are too long cut from their beginning on."""
    counts = -(-(ends - begins) // row_length)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(begins, counts) + number * row_length
    return starts, np.minimum(np.repeat(ends, counts) - starts, row_length)


def _best_fit(lengths: Int64[np.ndarray, "pieces"], row_length: int) -> tuple[Int64[np.ndarray, "pieces"], int]:
    """Row of each piece, and how many rows there are."""
    row_of = np.empty(len(lengths), np.int64)
    longest_first = np.argsort(-lengths, kind="stable")
    sizes, counts = np.unique(-lengths, return_counts=True)
    with_room: list[list[int]] = [[] for _ in range(row_length + 1)]
    """Rows by the room that is left in them."""
    rooms = 0
    """Bit r is set where `with_room[r]` is not empty: finding the least room that is enough takes no search."""
    num_rows = done = 0
    for size, count in zip((-sizes).tolist(), counts.tolist(), strict=True):
        pieces = longest_first[done : done + count]
        done += count
        while len(pieces):
            enough = rooms >> size
            room = (enough & -enough).bit_length() - 1 + size if enough else row_length
            # A row that took one of these has the least room that is enough, as long as it has: it takes the next.
            in_a_row = room // size
            wanted = -(-len(pieces) // in_a_row)
            if enough:
                rows = with_room[room][-wanted:]
                del with_room[room][-wanted:]
                if not with_room[room]:
                    rooms &= ~(1 << room)
            else:
                rows = list(range(num_rows, num_rows + wanted))
                num_rows += wanted
            taken = min(len(pieces), len(rows) * in_a_row)
            row_of[pieces[:taken]] = np.repeat(rows, in_a_row)[:taken]
            pieces = pieces[taken:]
            last = taken - (len(rows) - 1) * in_a_row
            for left, group in ((room - in_a_row * size, rows[:-1]), (room - last * size, rows[-1:])):
                if left and group:
                    with_room[left] += group
                    rooms |= 1 << left
    return row_of, num_rows
