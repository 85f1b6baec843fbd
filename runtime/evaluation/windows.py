"""Windows: pieces of scored text of equal length, with the bytes that each position predicts."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.cache import TokenCache
from runtime.data.order import segments
from runtime.evaluation.bits_per_byte import PADDING_SEGMENT, BitsPerByteError


class Windows(NamedTuple):
    """Windows of equal length, padded at the end of the text."""

    tokens: Int32[np.ndarray, "window position"]
    segment_ids: Int32[np.ndarray, "window position"]


class ScoredWindows(NamedTuple):
    """Windows, and which of their tokens count."""

    tokens: Int32[np.ndarray, "window position"]
    segment_ids: Int32[np.ndarray, "window position"]
    text_bytes: Int32[np.ndarray, "window position"]
    """Bytes of text of the token after each position; 0 where that token does not count."""


class WindowSource(NamedTuple):
    """The windows of one domain."""

    num_windows: int
    read: Callable[[Int64[np.ndarray, "window"]], ScoredWindows]
    """Return the windows with these numbers."""


def text_source(path: str, *, sequence_length: int, max_tokens: int) -> WindowSource:
    """Return the windows of a token cache, in which every token with text counts.

    Raises:
        BitsPerByteError: there is no text, or `max_tokens` is less than a window.
    """
    cache = TokenCache.open(path)
    starts = window_starts(cache, sequence_length=sequence_length, max_tokens=max_tokens)
    token_bytes = np.asarray(cache.token_bytes)

    def read(numbers: Int64[np.ndarray, "window"]) -> ScoredWindows:
        tokens, segment_ids = read_windows(cache, starts[numbers], sequence_length)
        text_bytes = np.where(segment_ids == PADDING_SEGMENT, 0, token_bytes[np.roll(tokens, -1, axis=1)])
        return ScoredWindows(tokens, segment_ids, text_bytes.astype(np.int32))

    return WindowSource(len(starts), read)


def window_starts(cache: TokenCache, *, sequence_length: int, max_tokens: int) -> Int64[np.ndarray, "window"]:
    """Return the starts of windows of at most `max_tokens` in all, spread evenly over the cache; always the same.

    Windows start at multiples of `sequence_length`, so that a large enough `max_tokens` covers every token.

    Raises:
        BitsPerByteError: there is no text, or `max_tokens` is less than a window.
    """
    if cache.num_tokens == 0:
        raise BitsPerByteError(f"{cache.path}: no held-out tokens; hold out a larger share of the source.")
    num_there = math.ceil(cache.num_tokens / sequence_length)
    num_windows = min(num_there, max_tokens // sequence_length)
    if num_windows == 0:
        raise BitsPerByteError(
            f"max_tokens_per_domain is {max_tokens}, less than one window of {sequence_length} tokens; raise it."
        )
    return (np.arange(num_windows, dtype=np.int64) * num_there // num_windows) * sequence_length


def read_windows(cache: TokenCache, starts: Int64[np.ndarray, "window"], sequence_length: int) -> Windows:
    """Return the windows at `starts`; a window that reaches past the end of the text is padded."""
    tokens = np.zeros((len(starts), sequence_length), np.int32)
    segment_ids = np.full((len(starts), sequence_length), PADDING_SEGMENT, np.int32)
    is_whole = starts + sequence_length <= cache.num_tokens
    whole_windows = cache.read_windows(starts[is_whole], sequence_length)
    tokens[is_whole], segment_ids[is_whole] = whole_windows, segments(whole_windows, cache.eos_token_id)
    for index in np.flatnonzero(~is_whole):  # at most one: the end of the text
        rest = cache.read(int(starts[index]), int(cache.num_tokens - starts[index]))[None]
        tokens[index, : rest.size], segment_ids[index, : rest.size] = rest, segments(rest, cache.eos_token_id)
    return Windows(tokens, segment_ids)
