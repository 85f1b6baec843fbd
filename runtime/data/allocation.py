"""Allocation: how many sequences of a batch come from each source; exact in the long run, pure integers.

Source i is owed `weight[i] / WHOLE` of every sequence drawn. The difference between owed and given is carried to the
next batch. Sequences go out by deadline (Sainte-Lague's divisor method), so over constant weights, from an even start,

    |given - owed| <= 1/2 + share * number of sources / 2

at every batch: half a sequence for a small source, whatever its share. Truncating each batch or block instead would
never draw a source that is owed less than one sequence of a block.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from runtime.data.mixture import WHOLE, apportioned
from runtime.data.permutation import GOLDEN, key_of, permuted
from runtime.text.hashing import mix


class Allocation(NamedTuple):
    """Sequences of a batch by source, and the carry after it."""

    counts: dict[str, int]
    carry: dict[str, int]
    """Owed minus given, in units of 1 / WHOLE; sums to zero over all sources ever drawn."""


def allocate(
    weights: Mapping[str, int],
    carry: Mapping[str, int],
    global_batch_size: int,
    limits: Mapping[str, int] | None = None,
) -> Allocation:
    """Split `global_batch_size` sequences by `weights`, which sum to `WHOLE`.

    A source with a carry but no weight gets nothing and keeps its carry. Neither the order of the mappings nor the
    names of the sources change a count, except to break ties. A source gives at most its limit, and the others give the
    rest in proportion; the carry of a source at its limit does not change: it will never get what it is owed.
    """
    limits, full = limits or {}, dict[str, int]()
    while True:
        left = {source: weight for source, weight in weights.items() if weight and source not in full}
        size = global_batch_size - sum(full.values())
        if size and not left:
            raise ValueError(
                f"the sources may give {sum(full.values())} more sequences and a batch takes {global_batch_size}; "
                "raise a limit of epochs, add a source, or stop the phase earlier."
            )
        counts, after = _split(apportioned(left) if full else left, carry, size) if size else ({}, dict(carry))
        over = {source: limits[source] for source, count in counts.items() if count > limits.get(source, count)}
        if not over:
            return Allocation(full | counts, after)
        full |= over


def _split(weights: Mapping[str, int], carry: Mapping[str, int], size: int) -> Allocation:
    owed = {source: carry.get(source, 0) + weight * size for source, weight in weights.items()}
    counts = {source: max(0, (2 * amount + WHOLE) // (2 * WHOLE)) for source, amount in owed.items()}
    # Rounding each source alone misses the total by less than the number of sources.
    missing = size - sum(counts.values())
    if missing:
        _settle(weights, owed, counts, missing)
    left = {source: amount - counts[source] * WHOLE for source, amount in owed.items()}
    return Allocation(counts, {**carry, **left})


def drawn(weights: Mapping[str, int], *, seed: int, step: int, num_draws: int) -> dict[str, int]:
    """Return how many of `num_draws` independent draws fall on each source.

    Draw k is a function of (seed, step, k): a 60-bit word compared with exact running sums of the weights.
    """
    key = np.uint64(key_of("draw", seed, step))
    slots = np.arange(num_draws, dtype=np.uint64)
    words = mix(mix(slots + np.uint64(GOLDEN)) ^ key) >> np.uint64(4)
    sources = sorted(weights)
    ends = np.cumsum(np.array([weights[source] for source in sources], np.uint64))
    counts = np.bincount(np.searchsorted(ends, words, side="right"), minlength=len(sources))
    return {source: int(count) for source, count in zip(sources, counts, strict=True)}


def shuffled_slots(counts: Sequence[Mapping[str, int]], *, seed: int, first_step: int) -> list[str]:
    """Return the source of each row of the batches of consecutive steps; a batch is shuffled by (seed, step)."""
    slots = [source for batch in counts for source in sorted(batch) for _ in range(batch[source])]
    sizes = np.array([sum(batch.values()) for batch in counts], np.int64)
    keys = np.array([key_of("slots", seed, first_step + number) for number in range(len(counts))], np.uint64)
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = permuted(np.arange(len(slots)) - begins, sizes=np.repeat(sizes, sizes), keys=np.repeat(keys, sizes))
    return [slots[place] for place in (begins + order).tolist()]


def _settle(weights: Mapping[str, int], owed: Mapping[str, int], counts: dict[str, int], missing: int) -> None:
    """Give the `missing` sequences, earliest deadline first, or take them back, latest deadline first.

    A sequence moves one deadline, so a heap finds the next one even among thousands of sources.
    """
    change = 1 if missing > 0 else -1
    sources = sorted(weights)

    def entry(rank: int) -> tuple[int, int]:
        # The least negative is the greatest; ties go by name: the first is given to and the last is taken from.
        source = sources[rank]
        return change * _deadline(weights[source], owed[source], counts[source], change), change * rank

    heap = [entry(rank) for rank, source in enumerate(sources) if change > 0 or counts[source]]
    heapq.heapify(heap)
    for _ in range(abs(missing)):
        rank = change * heap[0][1]
        counts[sources[rank]] += change
        if change > 0 or counts[sources[rank]]:
            heapq.heapreplace(heap, entry(rank))
        else:
            heapq.heappop(heap)


def _deadline(weight: int, owed: int, count: int, change: int) -> int:
    """Return when the source's next (1) or last (-1) sequence is due: when it is owed half of it.

    The unit is 2**-124: deadlines are fractions over `2 * weight`, so two of them are 2**-122 apart or equal.
    """
    return (((2 * count + change) * WHOLE - 2 * owed) << 124) // (2 * weight)
