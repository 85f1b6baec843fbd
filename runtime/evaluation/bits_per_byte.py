"""Bits per byte: what a model needs to write down held-out text, in bits over the UTF-8 bytes of that text.

It compares across tokenizers where a loss a token does not. It is one sum over another: bits of all predicted tokens
over bytes of the same tokens. A mean of per-batch ratios, or one weighted by tokens, is another number (11 % off on a
toy mixture). The bytes of a token are those of its own text, from the cache: decoding a token that ends inside a
character would count the three bytes of the replacement character.

Tokens without text (EOS and other special tokens) add neither bits nor bytes; the first token of a document or of a
window is not predicted and adds nothing either.

Sums are formed window by window, so that neither the cut into batches nor the number of hosts can show in them.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32

PADDING_SEGMENT = -1


class BitsPerByteError(ValueError):
    """Held-out text that gives no number."""


class BitsPerByte(NamedTuple):
    """Both sums, so that windows and domains can be pooled."""

    bits: float
    num_bytes: int
    num_tokens: int
    """Predicted tokens with text."""

    @property
    def bits_per_byte(self) -> float:
        return self.bits / self.num_bytes

    def pooled(self, other: "BitsPerByte") -> "BitsPerByte":
        """Of both texts together."""
        return BitsPerByte(self.bits + other.bits, self.num_bytes + other.num_bytes, self.num_tokens + other.num_tokens)


NOTHING_READ = BitsPerByte(0.0, 0, 0)


def sums_of_window(
    losses: Float32[np.ndarray, "position"],
    has_target: Bool[np.ndarray, "position"],
    tokens: Int32[np.ndarray, "position"],
    segment_ids: Int32[np.ndarray, "position"],
    token_bytes: Int32[np.ndarray, "vocab_size"],
) -> BitsPerByte:
    """What one window adds to the sums of its domain; its losses are added in float64.

    Args:
        losses: nats, of the token that follows each position.
        has_target: whether one follows, in the same document.
        tokens: of the window.
        segment_ids: of its documents; `PADDING_SEGMENT` behind the end of the text.
        token_bytes: bytes of text that each token id stands for.
    """
    text_bytes = token_bytes[np.roll(tokens, -1)]
    # Select, do not multiply: what lies at padding may be anything.
    is_counted = has_target & (segment_ids != PADDING_SEGMENT) & (text_bytes > 0)
    return BitsPerByte(
        bits=float(losses[is_counted].sum(dtype=np.float64)) / math.log(2),
        num_bytes=int(text_bytes[is_counted].sum(dtype=np.int64)),
        num_tokens=int(is_counted.sum()),
    )


def macro_average(domains: Mapping[str, float]) -> float:
    """Mean over domains, each counting the same whatever its size."""
    return math.fsum(domains.values()) / len(domains)
