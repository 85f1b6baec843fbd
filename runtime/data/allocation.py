"""Allocation: how many sequences of a batch come from each source; exact in the long run, pure integers.

Source i is owed `weight[i] / WHOLE` of every sequence drawn; what it is owed and has not got, or the other
way round, is carried to the next batch. Sequences go out by deadline (Sainte-Lague's divisor method on what
is owed), so that over a stretch of constant weights, from an even start,

    |given - owed| <= 1/2 + share * number of sources / 2

at every batch: half a sequence for a small source, whatever its share. Truncation per batch or block, the
tempting way, never draws a source that is owed less than one sequence of a block.
"""

import functools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from runtime.data.permutation import GOLDEN, key_of, mixed, permuted
from runtime.data.shares import WHOLE, apportioned


class Allocation(NamedTuple):
    """What a batch takes from each source, and what is carried on."""

    counts: dict[str, int]
    carry: dict[str, int]
    """Owed minus given, in units of 1 / WHOLE; sums to zero over all sources ever drawn."""


def allocate(weights: Mapping[str, int], carry: Mapping[str, int], global_batch_size: int) -> Allocation:
    """Splits `global_batch_size` sequences; `weights` sum to `WHOLE` (see `integer_weights`).

    A source with a carry but no weight gets nothing and keeps its carry until it is back. Neither the
    order of the mappings nor the names of the sources change what a source gets, but for ties.
    """
    owed = {source: carry.get(source, 0) + weight * global_batch_size for source, weight in weights.items()}
    counts = {source: max(0, (2 * amount + WHOLE) // (2 * WHOLE)) for source, amount in owed.items()}
    # Rounding each alone misses the total by less than the number of sources; settle by deadline.
    while (missing := global_batch_size - sum(counts.values())) != 0:
        if missing > 0:
            counts[min(weights, key=lambda source: _deadline(weights, owed, counts, source, 1))] += 1
        else:
            drawn = [source for source, count in counts.items() if count]
            counts[max(drawn, key=lambda source: _deadline(weights, owed, counts, source, -1))] -= 1
    left = {source: amount - counts[source] * WHOLE for source, amount in owed.items()}
    return Allocation(counts, {**carry, **left})


def allocate_within(
    weights: Mapping[str, int], carry: Mapping[str, int], global_batch_size: int, limits: Mapping[str, int]
) -> Allocation:
    """`allocate`, where a source with a limit gets at most that; what it cannot give, the others do in proportion.

    The carry of a source at its limit is left as it was: what it is owed it will never get.
    """
    full: dict[str, int] = {}
    while True:
        left = {source: weight for source, weight in weights.items() if weight and source not in full}
        size = global_batch_size - sum(full.values())
        if size and not left:
            raise ValueError(
                f"the sources may give {sum(full.values())} more sequences and a batch takes {global_batch_size}; "
                "raise a limit of epochs, add a source, or stop the phase earlier."
            )
        result = allocate(apportioned(left) if full else left, carry, size) if size else Allocation({}, dict(carry))
        over = {source: limits[source] for source, count in result.counts.items() if count > limits.get(source, count)}
        if not over:
            return Allocation(full | result.counts, result.carry)
        full |= over


def drawn(weights: Mapping[str, int], *, seed: int, step: int, num_draws: int) -> dict[str, int]:
    """How many of `num_draws` independent draws fall on each source; draw k is a function of (seed, step, k) alone.

    The k-th draw is a 60-bit word compared with running sums of the weights, which sum to `WHOLE`: nothing is rounded.
    """
    key = np.uint64(key_of("draw", seed, step))
    slots = np.arange(num_draws, dtype=np.uint64)
    words = mixed(mixed(slots + np.uint64(GOLDEN)) ^ key) >> np.uint64(4)
    sources = sorted(weights)
    ends = np.cumsum(np.array([weights[source] for source in sources], np.uint64))
    counts = np.bincount(np.searchsorted(ends, words, side="right"), minlength=len(sources))
    return {source: int(count) for source, count in zip(sources, counts, strict=True)}


def integer_weights(shares: Mapping[str, float]) -> dict[str, int]:
    """Positive weights of any scale as whole numbers that sum to `WHOLE`, to the last unit."""
    return dict(_integer_weights(tuple(sorted(shares.items()))))


def shuffled_slots(counts: Sequence[Mapping[str, int]], *, seed: int, first_step: int) -> list[str]:
    """Which source each row is from, of one batch after the other: `counts` of each, mixed by (seed, step).

    The batches are those of consecutive steps.
    """
    slots = [source for batch in counts for source in sorted(batch) for _ in range(batch[source])]
    sizes = np.array([sum(batch.values()) for batch in counts], np.int64)
    keys = np.array([key_of("slots", seed, first_step + number) for number in range(len(counts))], np.uint64)
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = permuted(np.arange(len(slots)) - begins, sizes=np.repeat(sizes, sizes), keys=np.repeat(keys, sizes))
    return [slots[place] for place in (begins + order).tolist()]


def _deadline(
    weights: Mapping[str, int], owed: Mapping[str, int], counts: Mapping[str, int], source: str, change: int
) -> tuple[Fraction, str]:
    """When the source's next (1) or last (-1) sequence is due: when it is owed half of it; ties by name."""
    amount = (2 * counts[source] + change) * WHOLE - 2 * owed[source]
    return Fraction(amount, 2 * weights[source]), source


@functools.lru_cache(maxsize=1024)
def _integer_weights(weights: tuple[tuple[str, float], ...]) -> tuple[tuple[str, int], ...]:
    rounded = apportioned(dict(weights))
    for source, weight in rounded.items():
        if weight == 0:
            raise ValueError(f"weights[{source!r}] is below 1 / 2**60 of the mixture; leave the source out.")
    return tuple(rounded.items())
