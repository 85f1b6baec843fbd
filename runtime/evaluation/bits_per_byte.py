"""Bits per byte: what a model needs to write down held-out text, in bits over the UTF-8 bytes of that text.

It compares across tokenizers where a loss a token does not. It is one sum over another: bits of all predicted tokens
over bytes of the same tokens. A mean of per-batch ratios, or one weighted by tokens, is another number (11 % off on a
toy mixture). The bytes of a token are those of its own text, from the cache: decoding a token that ends inside a
character would count the three bytes of the replacement character.

Tokens without text (EOS and other special tokens) add neither bits nor bytes; the first token of a document or of a
window is not predicted and adds nothing either.

On several hosts each reads the windows that lie on its own devices, and all of them come to the same sums: the losses
of a batch are gathered before they are added, in the order of the windows, so that the number of hosts cannot show.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from runtime.data.cache import TokenCache
from runtime.data.loader import segments
from runtime.model.llama import Llama
from runtime.parallel.host_rows import HostRows
from runtime.parallel.hosts import whole
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
    """Equally long windows of one cache, padded at the end of the text: all of them, or the part that a host reads."""

    tokens: Int32[np.ndarray, "window position"]
    segment_ids: Int32[np.ndarray, "window position"]


def held_out_windows(
    cache: TokenCache, *, sequence_length: int, max_tokens: int, rows: HostRows | None = None
) -> Windows:
    """At most `max_tokens` tokens, in windows spread evenly over the cache; the same ones every time.

    Windows begin at multiples of `sequence_length`, so that with room enough every token lies in one. With `rows`, only
    those that this host holds of each batch, batch after batch; the last one is filled with padding.
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
    if rows is not None:
        num_batches = math.ceil(num_windows / rows.global_batch_size)
        batches = rows.global_batch_size * np.arange(num_batches, dtype=np.int64)[:, None]
        held = (batches + rows.rows).ravel()
        starts = np.where(held < num_windows, starts[np.minimum(held, num_windows - 1)], cache.num_tokens)
    tokens = np.zeros((len(starts), sequence_length), np.int32)
    segment_ids = np.full((len(starts), sequence_length), PADDING_SEGMENT, np.int32)
    is_whole = starts + sequence_length <= cache.num_tokens
    whole_windows = cache.read_windows(starts[is_whole], sequence_length)
    tokens[is_whole], segment_ids[is_whole] = whole_windows, segments(whole_windows, cache.eos_token_id)
    for index in np.flatnonzero(~is_whole & (starts < cache.num_tokens)):  # at most one: the end of the text
        rest = cache.read(int(starts[index]), int(cache.num_tokens - starts[index]))[None]
        tokens[index, : rest.size], segment_ids[index, : rest.size] = rest, segments(rest, cache.eos_token_id)
    return Windows(tokens, segment_ids)


def bits_per_byte(
    eval_step: EvalStep,
    params: Llama,
    windows: Windows,
    token_bytes: Int32[np.ndarray, "vocab_size"],
    *,
    windows_per_batch: int,
    rows: HostRows | None = None,
) -> BitsPerByte:
    """Scores all windows with one compiled program: the last batch is filled with padding.

    Args:
        rows: What this host holds of each batch, and `windows` was read for; every host must ask. None on one host.
    """
    bits = 0.0
    num_bytes = num_tokens = 0
    num_read = windows_per_batch if rows is None else len(rows.rows)
    for begin in range(0, len(windows.tokens), num_read):
        tokens: Any = _filled(windows.tokens[begin : begin + num_read], num_read, 0)
        segment_ids: Any = _filled(windows.segment_ids[begin : begin + num_read], num_read, PADDING_SEGMENT)
        if rows is not None:
            tokens, segment_ids = rows.placed(tokens), rows.placed(segment_ids)
        of_batch: tuple[Any, ...] = (*eval_step(params, tokens, segment_ids), tokens, segment_ids)
        on_this_host = (np.asarray(part) if rows is None else whole(part) for part in of_batch)
        losses, has_target, tokens, segment_ids = on_this_host
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
