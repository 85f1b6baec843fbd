"""Hashes of pieces of a sequence: 64 bits, computed for all pieces at once, equal on every machine.

A hash is a difference of two prefix sums of a polynomial modulo 2**64, so that hashing every word of a batch takes one
pass and no loop over words. Two of a billion different pieces collide with a probability of about 3 %, too few to move
a share or an estimate.
"""

import functools

import numpy as np

BASE = 0x9E3779B97F4A7C15 | 1
_MODULUS = 1 << 64
_BLOCK = 1 << 12


def mix(values: np.ndarray) -> np.ndarray:
    """Return SplitMix64's finaliser (Steele, Lea and Flood 2014): a bijection of words with full avalanche; 0 to 0."""
    values = values ^ (values >> np.uint64(30))
    values = values * np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def values_of(count: int) -> np.ndarray:
    """Return, uint64, the polynomial's values for the bytes or characters 0 to `count - 1`."""
    return mix(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0xD6E8FEB86659FD93))


def prefix_sums(values: np.ndarray) -> np.ndarray:
    """Return, uint64, one sum more than values, for `hashes_of_pieces`."""
    sums, blocks = np.zeros(len(values) + 1, np.uint64), len(values) // _BLOCK
    low, high = _tables(BASE, blocks.bit_length())
    powers = (high[: blocks + 1, None] * low[None, :]).ravel()[: len(values)]
    np.cumsum(values * powers, out=sums[1:])
    return sums


def hashes_of_pieces(sums: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return, uint64, hashes that are equal for equal pieces, wherever they are; `starts` ascend."""
    largest = int(starts[-1]) if len(starts) else 0
    low, high = _tables(_INVERSE_BASE, (largest // _BLOCK).bit_length())
    hashes = (sums[ends] - sums[starts]) * high[starts // _BLOCK] * low[starts % _BLOCK]
    return mix(hashes ^ mix((ends - starts).astype(np.uint64)))


@functools.lru_cache(maxsize=8)
def _tables(base: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the powers of `base` below `_BLOCK`, and those of `base**_BLOCK` for numbers of so many bits."""
    return _powers(base, _BLOCK), _powers(pow(base, _BLOCK, _MODULUS), 1 << bits)


def _powers(base: int, count: int) -> np.ndarray:
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers)


_INVERSE_BASE = pow(BASE, -1, _MODULUS)
