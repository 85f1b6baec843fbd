"""Permutation: the place of any index in a shuffled order, in O(1), from a key alone.

An alternating Feistel network over the smallest power of two that holds the size; a place outside is permuted again
until it falls inside (cycle-walking, Black and Rogaway 2002), at most twice on average. The round function is a full
64-bit mixer (splitmix64's finaliser): every output bit depends on every input bit. Linear or affine rounds leave bits
that never meet, and an order too even to be random.
"""

import hashlib

import numpy as np
from jaxtyping import Int64, UInt64

from runtime.text.hashing import mix

ROUNDS = 16
"""Enough even for halves of one or two bits; large domains look random from six rounds on."""

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
Words = UInt64[np.ndarray, "n"]


def key_of(*parts: int | str) -> int:
    """Return a 64-bit key made of numbers and words, the same in every process; order and type of parts count."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def permuted(
    indices: Int64[np.ndarray, "n"], *, sizes: Int64[np.ndarray, "n"], keys: UInt64[np.ndarray, "n"]
) -> Int64[np.ndarray, "n"]:
    """Return the place of `indices[i]` in the order of `sizes[i]` items under `keys[i]`.

    For one size and key it is a bijection of [0, size). Sizes and keys are per element, so that all rows of a batch
    take one pass, whatever their sources.
    """
    if np.any(indices < 0) or np.any(indices >= sizes):
        bad = int(np.flatnonzero((indices < 0) | (indices >= sizes))[0])
        raise ValueError(f"indices[{bad}] is {indices[bad]}, outside [0, {sizes[bad]}); count epochs before permuting.")
    values = indices.astype(np.uint64)
    limits = sizes.astype(np.uint64)
    # Counted on Python integers: a float64 logarithm rounds above 2**53.
    distinct, which = np.unique(sizes, return_inverse=True)
    bits = np.array([max(2, (size - 1).bit_length()) for size in distinct.tolist()], np.uint64)[which]
    outside = np.ones(len(values), bool)
    while outside.any():
        where = np.flatnonzero(outside)
        values[where] = _feistel(values[where], bits[where], keys[where])
        outside[where] = values[where] >= limits[where]
    return values.astype(np.int64)


def _feistel(values: Words, bits: Words, keys: Words) -> Words:
    low_bits = bits >> np.uint64(1)
    high_mask = (np.uint64(1) << (bits - low_bits)) - np.uint64(1)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high, low = values >> low_bits, values & low_mask
    for number in range(0, ROUNDS, 2):
        # A function of one half changes the other, so each round undoes itself: a bijection.
        high = high ^ (_round(low, keys, number) & high_mask)
        low = low ^ (_round(high, keys, number + 1) & low_mask)
    return (high << low_bits) | low


def _round(half: Words, keys: Words, number: int) -> Words:
    # Two passes: after one, keys that differ in few bits would give related rounds.
    return mix(mix(half + np.uint64(number * GOLDEN & WORD)) ^ keys)
