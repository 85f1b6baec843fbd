"""Best fit: which documents share a row when rows hold whole documents, from their lengths alone.

Best fit, longest first (Ding et al. 2024, arXiv:2404.10830): each document goes into the fullest row that has room for
it. Only a document longer than a row is cut, into whole rows and a rest that is packed like a document. Equal lengths
give equal rows, so nothing needs to be stored. Documents of one length are placed together, so packing takes a step for
each pair of a length and a room, not for each document.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64


class PackedRows(NamedTuple):
    """Rows of one portion. The pieces of row i are `row_ends[i - 1]` to `row_ends[i]`, in the order of the source."""

    starts: Int64[np.ndarray, "pieces"]
    """Position of each piece's first token."""
    lengths: Int64[np.ndarray, "pieces"]
    row_ends: Int64[np.ndarray, "rows"]
    num_padding: int
    """Tokens of all rows that no document fills."""
    num_cut: int
    """Documents longer than a row."""


def pack(begins: Int64[np.ndarray, "documents"], ends: Int64[np.ndarray, "documents"], row_length: int) -> PackedRows:
    """Pack the documents [begins[i], ends[i]), which follow each other, into rows of `row_length` tokens."""
    counts = -(-(ends - begins) // row_length)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(begins, counts) + number * row_length
    lengths = np.minimum(np.repeat(ends, counts) - starts, row_length)
    row_of, num_rows = _best_fit(lengths, row_length)
    in_rows = np.argsort(row_of, kind="stable")
    return PackedRows(
        starts=starts[in_rows],
        lengths=lengths[in_rows],
        row_ends=np.cumsum(np.bincount(row_of, minlength=num_rows), dtype=np.int64),
        num_padding=num_rows * row_length - int(lengths.sum()),
        num_cut=int(np.count_nonzero(ends - begins > row_length)),
    )


def _best_fit(lengths: Int64[np.ndarray, "pieces"], row_length: int) -> tuple[Int64[np.ndarray, "pieces"], int]:
    """Return the row of each piece, and the number of rows."""
    row_of = np.empty(len(lengths), np.int64)
    longest_first = np.argsort(-lengths, kind="stable")
    sizes, counts = np.unique(-lengths, return_counts=True)
    rows_with_room: list[list[int]] = [[] for _ in range(row_length + 1)]
    rooms = 0  # bit r is set where `rows_with_room[r]` is not empty: the least sufficient room is found without search
    num_rows = done = 0
    for size, count in zip((-sizes).tolist(), counts.tolist(), strict=True):
        pieces = longest_first[done : done + count]
        done += count
        while len(pieces):
            enough = rooms >> size
            room = (enough & -enough).bit_length() - 1 + size if enough else row_length
            # A row that took a piece still has the least sufficient room, so it takes the next ones too.
            pieces_a_row = room // size
            wanted = -(-len(pieces) // pieces_a_row)
            if enough:
                rows = rows_with_room[room][-wanted:]
                del rows_with_room[room][-wanted:]
                if not rows_with_room[room]:
                    rooms &= ~(1 << room)
            else:
                rows = list(range(num_rows, num_rows + wanted))
                num_rows += wanted
            taken = min(len(pieces), len(rows) * pieces_a_row)
            row_of[pieces[:taken]] = np.repeat(rows, pieces_a_row)[:taken]
            pieces = pieces[taken:]
            last = taken - (len(rows) - 1) * pieces_a_row
            for left, group in ((room - pieces_a_row * size, rows[:-1]), (room - last * size, rows[-1:])):
                if left and group:
                    rows_with_room[left] += group
                    rooms |= 1 << left
    return row_of, num_rows
