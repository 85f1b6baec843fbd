"""Packing of token sequences into rows of a few lengths, with little padding.

A group is a context with all its continuations: the context lies in a row once, and each continuation attends to it.
The first group of a row sets the row's length, so a short question never runs in a row as long as the context window.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from runtime.model.cache import PackedRows

LEAST_ROW = 256
"""Length of the shortest row, in tokens; attention costs too little here for shorter rows to help."""
LEAST_SHORT_ROW = 64
"""Length of the shortest row that may hold a single sequence, in tokens."""

Tokens = tuple[int, ...]


class Group(NamedTuple):
    """A context with its different continuations, one of which may be empty."""

    context: Tokens
    tails: tuple[Tokens, ...]

    @property
    def size(self) -> int:
        return len(self.context) + sum(map(len, self.tails))


class Row(NamedTuple):
    """Groups that share a row."""

    length: int
    groups: list[Group]


class Place(NamedTuple):
    """Position of a group: its row, and where its context and its continuations start."""

    row: int
    context: int
    tails: tuple[int, ...]


def row_length(size: int) -> int:
    """Return the length of a row for a sequence of that many tokens: a power of two."""
    return max(LEAST_ROW, 1 << (size - 1).bit_length())


def prompt_row_length(size: int, capacity: int) -> int:
    """Return the length of a row of prompts, the longest of that many tokens, before slots of that capacity.

    A capacity may be three quarters of a power of two; a longer row would exceed its share of a device's memory.
    """
    return min(row_length(size), max(LEAST_ROW, capacity))


def short_row_length(size: int) -> int:
    """Return the length of a row for so few tokens that padding costs more than one more program.

    It is a power of two, or three quarters of one.
    """
    power = max(LEAST_SHORT_ROW, 1 << (size - 1).bit_length())
    return power * 3 // 4 if power > LEAST_SHORT_ROW and size <= power * 3 // 4 else power


def groups(continuations: Mapping[Tokens, Sequence[Tokens]], most_tokens: int) -> Iterator[Group]:
    """Yield a group for each context, or several that repeat the context, so that none exceeds `most_tokens`."""
    for context, tails in continuations.items():
        begin, size = 0, len(context)
        for index, tail in enumerate(tails):
            if index > begin and size + len(tail) > most_tokens:
                yield Group(context, tuple(tails[begin:index]))
                begin, size = index, len(context)
            size += len(tail)
        yield Group(context, tuple(tails[begin:]))


def pack(groups: Sequence[Group]) -> list[Row]:
    """Return rows, the longest first; each group is in the fullest row that had room for it."""
    order = sorted(groups, key=lambda group: (-group.size, group))
    rows: list[Row] = []
    by_space: list[list[int]] = [[] for _ in range(row_length(order[0].size) + 1)] if order else []
    for group in order:
        space = next((space for space in range(group.size, len(by_space)) if by_space[space]), None)
        if space is None:
            space = row_length(group.size)
            rows.append(Row(space, []))
            by_space[space].append(len(rows) - 1)
        index = by_space[space].pop()
        rows[index].groups.append(group)
        by_space[space - group.size].append(index)
    return rows


def batches(rows: Sequence[Row], *, tokens_per_batch: int, devices: int) -> Iterator[tuple[int, list[Row]]]:
    """Yield batches of rows of one length, each with the number of rows of its program, a multiple of `devices`.

    The last batch of a length may be small: its program then has a smaller power of two of rows per device.
    """
    by_length: dict[int, list[Row]] = {}
    for row in rows:
        by_length.setdefault(row.length, []).append(row)
    for length, alike in by_length.items():
        most = max(1, tokens_per_batch // length) * devices
        for begin in range(0, len(alike), most):
            batch = alike[begin : begin + most]
            share = -(-len(batch) // devices)
            yield min(most, devices << (share - 1).bit_length()), batch


def arranged(rows: Sequence[Row], num_rows: int) -> tuple[PackedRows, list[tuple[Group, Place]]]:
    """Return the arrays of a batch, with rows of padding at its end, and the place of each group."""
    shape = num_rows, rows[0].length
    zeros = (np.zeros(shape, np.int32) for _ in range(4))
    own = np.tile(np.arange(shape[1], dtype=np.int32), (num_rows, 1))  # padding attends to itself alone
    packed = PackedRows(next(zeros), next(zeros), own, next(zeros), next(zeros))
    places = []
    for index, row in enumerate(rows):
        start = 0
        for group in row.groups:
            context, context_end = start, start + len(group.context)
            _write(packed, index, start, group.context, (0, start, start))
            start, tails = context_end, []
            for tail in group.tails:
                _write(packed, index, start, tail, (len(group.context), context, context_end))
                tails.append(start)
                start += len(tail)
            places.append((group, Place(index, context, tuple(tails))))
    return packed, places


def _write(packed: PackedRows, row: int, start: int, tokens: Tokens, prefix: tuple[int, int, int]) -> None:
    length, prefix_begin, prefix_end = prefix
    own = slice(start, start + len(tokens))
    packed.tokens[row, own] = tokens
    packed.positions[row, own] = np.arange(length, length + len(tokens))
    packed.begin[row, own] = start
    packed.prefix_begin[row, own], packed.prefix_end[row, own] = prefix_begin, prefix_end
