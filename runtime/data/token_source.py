"""Token source: what rows are read from, a finished `TokenCache` or a `GrowingCache`."""

from typing import Protocol

import numpy as np
from jaxtyping import Int64, Integer

from runtime.data.cache import TokenFormat


class LoaderError(ValueError):
    """A loader cannot give what its mixture asks for; the message names the source and the fix."""


class TokenSource(Protocol):
    """Tokens in blocks, of which more may still be built."""

    format: TokenFormat
    vocab_size: int
    eos_token_id: int
    is_whole: bool
    """Whether all blocks are built."""

    @property
    def block_ends(self) -> tuple[int, ...]:
        """Position after the last token of each block."""
        ...

    def grow(self) -> None:
        """Wait for more blocks, or for `is_whole`."""
        ...

    def read_spans(
        self, starts: Int64[np.ndarray, "n"], lengths: Int64[np.ndarray, "n"]
    ) -> Integer[np.ndarray, "sum_of_lengths"]:
        """Return the tokens of each span, one span after the other; none crosses the end of its block."""
        ...
