"""Scripts written without spaces: their characters, and about how many of them make a word.

The numbers are round averages of written language: 1.5 ideographs, 2 kana, 3 letters of Thai, Lao, Burmese and Khmer,
and 4 of Tibetan; vowel signs, tone marks and subjoined letters are marks. A word count from them is an estimate.
"""

import functools
import re

import numpy as np

CHARACTERS_PER_WORD = (
    (1.5, ((0x2E80, 0x2FE0), (0x3005, 0x3008), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00))),
    (2.0, ((0x3041, 0x3100), (0x31F0, 0x3200), (0xFF66, 0xFFA0))),
    (3.0, ((0x0E01, 0x0E5C), (0x0E80, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800))),
    (4.0, ((0x0F40, 0x0FC0),)),
)
"""Scripts, with ranges of code points below the supplementary planes."""
IDEOGRAPH_PLANES = (0x20000, 0x40000)
RANGES = tuple(found for _, ranges in CHARACTERS_PER_WORD for found in ranges)
SPACED_LETTER = 1.0
SPACE_ENDS_CLAUSE = range(0x0E00, 0x0F00)
"""Thai and Lao have no mark at the end of a sentence, but a space."""


@functools.cache
def _shares() -> np.ndarray:
    """Return float64, one entry a code point below 0x10000: its share in a word, 0 for what is no letter or digit.

    A letter of a script with spaces has the share `SPACED_LETTER`, which stands for its whole word.
    """
    shares = np.fromiter((chr(code).isalnum() for code in range(0x10000)), np.float64, 0x10000)
    for characters, ranges in CHARACTERS_PER_WORD:
        for first, after in ranges:
            shares[first:after] /= characters
    return shares


def shares_of(codes: np.ndarray) -> np.ndarray:
    """Return float64: the share in a word of the character of each code point."""
    first, after = IDEOGRAPH_PLANES
    shares = _shares()[np.minimum(codes, 0xFFFF)]
    beyond = np.flatnonzero(codes > 0xFFFF)
    is_ideograph = (codes[beyond] >= first) & (codes[beyond] < after)
    shares[beyond] = np.where(is_ideograph, 1 / CHARACTERS_PER_WORD[0][0], SPACED_LETTER)
    return shares


@functools.cache
def _pattern() -> re.Pattern[str]:
    """Return a pattern for one letter or digit of these scripts."""
    letters = "".join(f"{chr(first)}-{chr(after - 1)}" for first, after in (*RANGES, IDEOGRAPH_PLANES))
    return re.compile(rf"[{letters}](?<=\w)")


def is_unspaced(text: str) -> bool:
    """Return whether a text has a letter of these scripts."""
    return not text.isascii() and _pattern().search(text) is not None


def spaced(text: str) -> str:
    """Return a text with a space for each letter of these scripts."""
    return _pattern().sub(" ", text)


def num_words(text: str) -> float:
    """Return the number of words, where no spaces separate marks from words."""
    letters = "".join(_pattern().findall(text))
    shares = shares_of(np.frombuffer(letters.encode("utf-32-le"), "<u4"))
    return float(shares.sum()) + sum(any(map(str.isalnum, word)) for word in spaced(text).split())
