"""Bits per byte: the bits that a model needs for held-out text, divided by the UTF-8 bytes of that text.

The figure compares models with different tokenizers, unlike a loss a token. It divides the sum of the bits of all
predicted tokens by the sum of their bytes. A mean of per-batch ratios, or one weighted by tokens, is another number
(11 % off on a toy mixture). The bytes of each token come from the cache: decoding a token that ends inside a character
would count the three bytes of the replacement character.

Tokens without text (EOS and other special tokens) add neither bits nor bytes. Nor does the first token of a document
or window, which is not predicted. Sums are formed window by window, so that they do not depend on batches or hosts.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32

PADDING_SEGMENT = -1


class BitsPerByteError(ValueError):
    """Held-out text without a finite figure."""


class BitsPerByte(NamedTuple):
    """Sums over a text, which can be pooled."""

    bits: float
    num_bytes: int
    num_tokens: int
    """Predicted tokens with text."""

    @property
    def bits_per_byte(self) -> float:
        return self.bits / self.num_bytes

    def pooled(self, other: "BitsPerByte") -> "BitsPerByte":
        return BitsPerByte(self.bits + other.bits, self.num_bytes + other.num_bytes, self.num_tokens + other.num_tokens)


NOTHING_READ = BitsPerByte(0.0, 0, 0)


def sums_of_window(
    losses: Float32[np.ndarray, "position"],
    has_target: Bool[np.ndarray, "position"],
    text_bytes: Int32[np.ndarray, "position"],
) -> BitsPerByte:
    """Return the sums of one window, with losses added in float64.

    Args:
        losses: loss of the token after each position, in nats.
        has_target: whether the next token belongs to the same document.
        text_bytes: bytes of text of the token after each position; 0 where it does not count.
    """
    # Select, do not multiply: padding may hold anything.
    is_counted = has_target & (text_bytes > 0)
    return BitsPerByte(
        bits=float(losses[is_counted].sum(dtype=np.float64)) / math.log(2),
        num_bytes=int(text_bytes[is_counted].sum(dtype=np.int64)),
        num_tokens=int(is_counted.sum()),
    )


def macro_average(domains: Mapping[str, float]) -> float:
    """Return the mean over domains with equal weights."""
    return math.fsum(domains.values()) / len(domains)
