"""The order is a bijection at any size, and passes tests of randomness that the orders of two public trainers fail.

Those two are written out below: a linear congruence, and a Feistel network of five affine rounds.
"""

from collections import Counter
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.permutation import key_of, permuted
from tests.catalogue import expect_error

BITS = 20
SIZE = 1 << BITS

Order = Callable[[np.ndarray, int], np.ndarray]


def ours(indices: np.ndarray, key: int) -> np.ndarray:
    return places(indices, SIZE, key_of("test", key))


def linear_congruence(indices: np.ndarray, key: int) -> np.ndarray:
    numbers = np.random.default_rng(key)
    factor, shift = int(numbers.integers(SIZE // 2)) * 2 + 1, int(numbers.integers(SIZE))
    return (indices * factor + shift) % SIZE


def affine_feistel(indices: np.ndarray, key: int) -> np.ndarray:
    half = BITS // 2
    mask = (1 << half) - 1
    left, right = indices >> half, indices & mask
    for round_key in np.random.default_rng(key).integers(0, 1 << 31, 5):
        left, right = right, left ^ ((right * 2654435761 + int(round_key)) & mask)
    return (left << half) | right


def places(indices: np.ndarray, size: int, key: int) -> np.ndarray:
    count = len(indices)
    return permuted(
        np.asarray(indices, np.int64), sizes=np.full(count, size, np.int64), keys=np.full(count, key, np.uint64)
    )


def share_of_bit_pairs_that_mix(order: Order) -> float:
    """Return the share of (input bit, output bit) pairs where flipping one flips the other half of the time."""
    numbers = np.random.default_rng(1)
    indices = numbers.integers(0, SIZE, 2_000)
    mixing = 0
    for bit in range(BITS):
        flips = np.zeros(BITS)
        for key in range(4):
            changed = order(indices, key) ^ order(indices ^ (1 << bit), key)
            flips += [np.count_nonzero(changed >> out & 1) for out in range(BITS)]
        mixing += int(np.count_nonzero(np.abs(flips / 8_000 - 0.5) < 0.05))
    return mixing / BITS**2


def mean_prefix_chi_square(order: Order) -> float:
    """Return the chi-square of the first 4,096 indices over 256 bins (255 degrees of freedom), mean of 32 keys.

    Random places give 255 with a standard error of 4; too small is as wrong as too large.
    """
    values = []
    for key in range(32):
        counts = np.bincount(order(np.arange(4_096), key) * 256 // SIZE, minlength=256)
        values.append(((counts - 16) ** 2 / 16).sum())
    return float(np.mean(values))


def commonest_step_share(order: Order) -> float:
    """Return how often the commonest difference between neighbours occurs."""
    steps = np.diff(order(np.arange(4_096), 0)) % SIZE
    return Counter(steps.tolist()).most_common(1)[0][1] / len(steps)


@given(size=st.integers(1, 3_000), key=st.integers(0, 2**64 - 1))
def test_every_index_has_its_own_place(size, key):
    assert sorted(places(np.arange(size), size, key).tolist()) == list(range(size))


@given(size=st.integers(2**20, 10**15), key=st.integers(0, 2**64 - 1), data=st.data())
def test_no_two_indices_of_a_huge_range_share_a_place(size, key, data):
    indices = data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=2, max_size=30))
    found = places(np.array(indices), size, key)
    assert len(set(found.tolist())) == len(indices)
    assert found.min() >= 0 and found.max() < size


@given(rows=st.lists(st.tuples(st.integers(1, 10**12), st.integers(0, 2**64 - 1)), min_size=1, max_size=20))
def test_sizes_and_keys_of_other_rows_change_nothing(rows):
    sizes, keys = np.array([size for size, _ in rows]), np.array([key for _, key in rows], np.uint64)
    together = permuted(sizes - 1, sizes=sizes, keys=keys)
    assert together.tolist() == [int(places(np.array([size - 1]), size, key)[0]) for size, key in rows]


def test_flipping_an_input_bit_flips_each_output_bit_half_of_the_time():
    assert share_of_bit_pairs_that_mix(ours) > 0.99
    assert share_of_bit_pairs_that_mix(linear_congruence) < 0.9
    assert share_of_bit_pairs_that_mix(affine_feistel) < 0.5


@pytest.mark.parametrize("bits", [11, 33, 50])
def test_flipping_any_bit_of_index_or_key_flips_half_of_the_place_at_any_size(bits):
    """Odd numbers of bits split unevenly; 2**50 is more than the 10**15 sequences of any run."""
    numbers = np.random.default_rng(2)
    size = 1 << bits
    indices, keys = numbers.integers(0, size, 2_000), numbers.integers(0, 1 << 63, 2_000).astype(np.uint64)
    sizes = np.full(2_000, size)
    before = permuted(indices, sizes=sizes, keys=keys)
    shares = []
    for bit in range(bits):
        after = permuted(indices ^ (1 << bit), sizes=sizes, keys=keys)
        shares += [np.count_nonzero((before ^ after) >> out & 1) / 2_000 for out in range(bits)]
    for bit in range(64):
        after = permuted(indices, sizes=sizes, keys=keys ^ np.uint64(1 << bit))
        shares += [np.count_nonzero((before ^ after) >> out & 1) / 2_000 for out in range(bits)]
    # The standard error of each is 0.011; a place never comes back, which at 11 bits adds 0.0002.
    assert max(abs(share - 0.5) for share in shares) < 5.5 * 0.0112


def test_the_first_indices_fall_as_evenly_as_random_ones_and_not_more():
    assert 239 < mean_prefix_chi_square(ours) < 271
    assert not 239 < mean_prefix_chi_square(linear_congruence) < 271
    assert not 239 < mean_prefix_chi_square(affine_feistel) < 271


def test_a_prefix_of_a_size_between_powers_of_two_falls_as_evenly_as_random():
    """Cycle-walking must not make places uneven."""
    size = SIZE // 2 + 1_234
    values = []
    for key in range(32):
        found = places(np.arange(4_096), size, key_of("between", key))
        counts = np.bincount(found * 256 // size, minlength=256)
        values.append(((counts - 16) ** 2 / 16).sum())
    assert 239 < np.mean(values) < 271


def test_neighbours_are_not_a_fixed_step_apart():
    assert commonest_step_share(ours) < 0.002
    assert commonest_step_share(linear_congruence) == 1.0


@pytest.mark.parametrize("size", [3, 4, 5])
def test_all_orders_of_a_tiny_range_are_equally_likely_over_keys(size):
    keys = np.array([key_of("tiny", key) for key in range(12_000)], np.uint64)
    sizes = np.full(len(keys), size, np.int64)
    columns = [permuted(np.full(len(keys), index, np.int64), sizes=sizes, keys=keys) for index in range(size)]
    counts = Counter(zip(*(column.tolist() for column in columns), strict=True))
    orders = list(permutations(range(size)))
    expected = len(keys) / len(orders)
    chi_square = sum((counts[order] - expected) ** 2 / expected for order in orders)
    freedom = len(orders) - 1
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5


def test_an_independent_implementation_gives_the_same_places():
    """The same network on Python integers, one index at a time."""
    size, key = 1_000, key_of("walk")
    assert places(np.arange(size), size, key).tolist() == [_walk(index, size, key) for index in range(size)]


def test_orders_have_golden_places():
    """A change here moves the data of every run in progress."""
    assert places(np.arange(8), 1_000_003, key_of("order", 0, "ab", 1)).tolist() == GOLDEN


def test_keys_depend_on_type_and_boundaries_of_their_parts():
    assert len({key_of(1, 2), key_of(12), key_of("1", 2), key_of("12"), key_of(2, 1)}) == 5


def test_an_index_outside_is_refused_with_its_place():
    with expect_error(ValueError):
        places(np.array([3, 10]), 10, 0)


def _walk(index: int, size: int, key: int) -> int:
    word = (1 << 64) - 1

    def mix(value: int) -> int:
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & word
        value = (value ^ value >> 27) * 0x94D049BB133111EB & word
        return value ^ value >> 31

    low_bits = 5
    while True:
        high, low = index >> low_bits, index & 31
        for number in range(0, 16, 2):
            high ^= mix(mix(low + number * 0x9E3779B97F4A7C15 & word) ^ key) & 31
            low ^= mix(mix(high + (number + 1) * 0x9E3779B97F4A7C15 & word) ^ key) & 31
        index = high << low_bits | low
        if index < size:
            return index


GOLDEN = [195649, 266516, 23574, 479706, 949430, 376518, 950581, 512640]
