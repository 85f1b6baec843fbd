"""Bits per byte are one sum over another, of text alone."""

import math

import numpy as np
import pytest

from runtime.evaluation.bits_per_byte import (
    NOTHING_READ,
    PADDING_SEGMENT,
    BitsPerByte,
    macro_average,
    sums_of_window,
)

BOS, EOS = 0, 1
# Ids 2... stand for 0 to 3 bytes of text: some for a part of a character, one (2) for no text at all.
TOKEN_BYTES = np.array([0, 0, *(index % 4 for index in range(62))], np.int32)


def test_special_tokens_add_neither_bits_nor_bytes():
    tokens = np.array([BOS, 3, EOS, BOS, 4, 5, 2, EOS], np.int32)
    has_target = np.array([True, True, False, True, True, True, True, False])
    found = sums_of_window(np.ones(8, np.float32), has_target, TOKEN_BYTES[np.roll(tokens, -1)])
    # Predicted with text: 3, 4 and 5; neither EOS, BOS nor 2, which stands for no bytes.
    assert found.num_tokens == 3
    assert found.num_bytes == sum(int(TOKEN_BYTES[token]) for token in (3, 4, 5))
    assert found.bits == pytest.approx(3 / math.log(2))
    assert found.bits_per_byte == found.bits / found.num_bytes


def test_losses_at_padding_do_not_count():
    tokens, segment_ids = np.full(16, 5, np.int32), np.zeros(16, np.int32)
    segment_ids[7:] = PADDING_SEGMENT
    has_target = (segment_ids == np.roll(segment_ids, -1)) & (np.arange(16) < 15)
    losses = np.where(segment_ids == PADDING_SEGMENT, np.nan, 1.0).astype(np.float32)
    text_bytes = np.where(segment_ids == PADDING_SEGMENT, 0, TOKEN_BYTES[tokens])
    found = sums_of_window(losses, has_target, text_bytes)
    assert found.num_tokens == 6
    assert found.bits == pytest.approx(6 / math.log(2))


def test_losses_of_a_window_are_added_in_float64():
    losses = np.full(4_097, 2.0**-13, np.float32)
    losses[0] = 2.0**13  # beside which float32 has no room for the others
    found = sums_of_window(losses, np.arange(4_097) < 4_096, np.full(4_097, 3, np.int32))
    assert found.bits == (2.0**13 + 4_095 * 2.0**-13) / math.log(2)


def test_pooled_domains_weigh_by_bytes_and_the_macro_average_does_not():
    short, long = BitsPerByte(20.0, 10, 4), BitsPerByte(1000.0, 1000, 300)
    assert NOTHING_READ.pooled(short).pooled(long) == BitsPerByte(1020.0, 1010, 304)
    assert short.pooled(long).bits_per_byte == 1020 / 1010
    assert macro_average({"short": short.bits_per_byte, "long": long.bits_per_byte}) == 1.5
