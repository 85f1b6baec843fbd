"""Shares of a text's characters, white space excluded, that one character or a short repeated run makes up."""

import numpy as np


def characters_of(text: str) -> np.ndarray:
    """Return the code points of a text without its white space, uint8 or uint32."""
    dense = "".join(text.split())
    if dense.isascii():
        return np.frombuffer(dense.encode(), np.uint8)
    return np.frombuffer(dense.encode("utf-32-le"), "<u4")


def top_share(characters: np.ndarray) -> float:
    """Return the share of the most frequent character; 0 without characters."""
    return np.bincount(characters).max() / len(characters) if len(characters) else 0.0


def periodic_share(characters: np.ndarray, max_period: int, min_repeats: int, at_least: float) -> float:
    """Return the largest share of characters in runs of one period; 0 if it is at most `at_least`.

    A run of period p repeats its first p characters `min_repeats` times or more. Runs of different periods are not
    added up; a long enough run of a period is also one of its multiples.
    """
    most = at_least * len(characters)
    found = 0
    low_bytes = characters.astype(np.uint8)
    for period in range(1, min(max_period, len(characters) // min_repeats) + 1):
        # In a run, all but the first p characters equal the character p before, and so do their low bytes. Too few
        # equal low bytes cannot make up the share.
        similar = np.count_nonzero(low_bytes[period:] == low_bytes[:-period])
        if similar * min_repeats <= max(most, found) * (min_repeats - 1):
            continue
        same = characters[period:] == characters[:-period]
        edges = np.diff(same.astype(np.int8), prepend=np.int8(0), append=np.int8(0))
        lengths = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
        lengths = lengths[lengths >= (min_repeats - 1) * period]
        found = max(found, min(int(lengths.sum()) + period * len(lengths), len(characters)))
    return found / len(characters) if found > most else 0.0
