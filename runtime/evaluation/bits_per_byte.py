"""Bits per byte: what a model needs to write down held-out text, in bits over the UTF-8 bytes of that text.

It compares across tokenizers where a loss a token does not. It is one sum over another: bits of all predicted tokens
over bytes of the same tokens. A mean of per-batch ratios, or one weighted by tokens, is another number (11 % off on a
toy mixture). The bytes of a token are those of its own text, from the cache: decoding a token that ends inside a
character would count the three bytes of the replacement character.

Tokens without text (EOS and other special tokens) add neither bits nor bytes; the first token of a document or of a
window is not predicted and adds nothing either.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Int32

from runtime.data.cache import TokenCache
from runtime.data.loader import segments

if TYPE_CHECKING:
    from runtime.model.llama import Llama
    from runtime.training.eval_step import EvalStep

PADDING_SEGMENT = -1


class BitsPerByteError(ValueError):
    """Held-out text that gives no number."""


class BitsPerByte(NamedTuple):
    """Both sums, so that domains can be pooled."""

    bits: float
    num_bytes: int
    num_tokens: int
    """Predicted tokens with text."""

    @property
    def bits_per_byte(self) -> float:
        return self.bits / self.num_bytes


class Windows(NamedTuple):
    """Equally long windows of one cache, padded at the end of the text."""

    tokens: Int32[np.ndarray, "window position"]
    segment_ids: Int32[np.ndarray, "window position"]


def held_out_windows(cache: TokenCache, *, sequence_length: int, max_tokens: int) -> Windows:
    """At most `max_tokens` tokens, in windows spread evenly over the cache; the same ones every time.

    Windows begin at multiples of `sequence_length`, so that with room enough every token lies in one.
    """
    if cache.num_tokens == 0:
        raise BitsPerByteError(f"{cache.path}: no held-out tokens; hold out a larger share of the source.")
    num_there = math.ceil(cache.num_tokens / sequence_length)
    num_windows = min(num_there, max_tokens // sequence_length)
    if num_windows == 0:
        raise BitsPerByteError(
            f"max_tokens_per_domain is {max_tokens}, less than one window of {sequence_length} tokens; give it more."
        )
    starts = (np.arange(num_windows, dtype=np.int64) * num_there // num_windows) * sequence_length
    tokens = np.zeros((num_windows, sequence_length), np.int32)
    segment_ids = np.full((num_windows, sequence_length), PADDING_SEGMENT, np.int32)
    is_whole = starts + sequence_length <= cache.num_tokens
    whole = cache.read_windows(starts[is_whole], sequence_length)
    tokens[is_whole], segment_ids[is_whole] = whole, segments(whole, cache.eos_token_id)
    if not is_whole[-1]:
        rest = cache.read(int(starts[-1]), int(cache.num_tokens - starts[-1]))[None]
        tokens[-1, : rest.size], segment_ids[-1, : rest.size] = rest, segments(rest, cache.eos_token_id)
    return Windows(tokens, segment_ids)


def bits_per_byte(
    eval_step: "EvalStep",
    params: "Llama",
    windows: Windows,
    token_bytes: Int32[np.ndarray, "vocab_size"],
    *,
    windows_per_batch: int,
) -> BitsPerByte:
    """Scores all windows with one compiled program: the last batch is filled with padding."""
    bits = 0.0
    num_bytes = num_tokens = 0
    for begin in range(0, len(windows.tokens), windows_per_batch):
        tokens = _filled(windows.tokens[begin : begin + windows_per_batch], windows_per_batch, 0)
        segment_ids = _filled(
            windows.segment_ids[begin : begin + windows_per_batch], windows_per_batch, PADDING_SEGMENT
        )
        losses, has_target = (np.asarray(value) for value in eval_step(params, tokens, segment_ids))
        text_bytes = token_bytes[np.roll(tokens, -1, axis=1)]
        # Select, do not multiply: what lies at padding may be anything.
        is_counted = has_target & (segment_ids != PADDING_SEGMENT) & (text_bytes > 0)
        bits += float(losses[is_counted].sum(dtype=np.float64)) / math.log(2)
        num_bytes += int(text_bytes[is_counted].sum(dtype=np.int64))
        num_tokens += int(is_counted.sum())
    if num_bytes == 0:
        raise BitsPerByteError("the held-out windows hold no predicted byte of text; hold out a larger share.")
    if not math.isfinite(bits):
        raise BitsPerByteError("the loss on held-out text is not finite: the model has diverged.")
    return BitsPerByte(bits, num_bytes, num_tokens)


def macro_average(domains: Mapping[str, float]) -> float:
    """Mean over domains, each counting the same whatever its size."""
    return math.fsum(domains.values()) / len(domains)


def _filled(rows: np.ndarray, num_rows: int, value: int) -> np.ndarray:
    return np.pad(rows, ((0, num_rows - len(rows)), (0, 0)), constant_values=value)
