"""Shares of a text's characters, white space excluded, that one character or a short repeated run makes up."""

import numpy as np

_WHITE_SPACE = bytes(code for code in range(128) if chr(code).isspace())


def characters_of(text: str) -> np.ndarray:
    """Return the code points of a text without its white space, uint8 or uint32."""
    if text.isascii():
        return np.frombuffer(text.encode().translate(None, _WHITE_SPACE), np.uint8)
    return np.frombuffer("".join(text.split()).encode("utf-32-le"), "<u4")


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
    longest = min(max_period, len(characters) // min_repeats)
    for period in _possible_periods(characters, longest, min_repeats, most).tolist():
        same = characters[period:] == characters[:-period]
        edges = np.diff(same.astype(np.int8), prepend=np.int8(0), append=np.int8(0))
        lengths = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
        lengths = lengths[lengths >= (min_repeats - 1) * period]
        found = max(found, min(int(lengths.sum()) + period * len(lengths), len(characters)))
    return found / len(characters) if found > most else 0.0


def _possible_periods(characters: np.ndarray, max_period: int, min_repeats: int, most: float) -> np.ndarray:
    """Return the periods whose runs may have more than `most` characters.

    In a run of period p, all but the first p characters equal the character p before, and so do their low bytes: at
    least `min_repeats` - 1 in a row. A sample of the characters has several of such a row.
    """
    if max_period < 1:
        return np.empty(0, np.int64)
    step = max((min_repeats - 1) // 2, 1)
    low_bytes = characters.astype(np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(low_bytes, max_period + 1)[::step]
    similar = np.count_nonzero(windows[:, -2::-1] == windows[:, -1:], axis=0)
    # A row of 2 * step or more has 2 / 3 of its length / step samples or more. The first row may begin before the first
    # sample.
    least = most * (min_repeats - 1) / min_repeats * 2 / 3 / step - max_period / step - 1
    return np.flatnonzero(similar >= least) + 1
