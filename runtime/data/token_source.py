"""TokenSource: what rows are read from, whole or still being built."""

from typing import Protocol

import numpy as np
from jaxtyping import Int64, Integer

from runtime.data.activity import Activity
from runtime.data.cache import TokenFormat


class TokenSource(Protocol):
    """What rows are read from: a `TokenCache`, or a `GrowingCache`."""

    format: TokenFormat
    vocab_size: int
    eos_token_id: int
    is_whole: bool

    @property
    def block_ends(self) -> tuple[int, ...]:
        """For each block that is there, the position behind its last token."""
        ...

    def grow(self, activity: Activity) -> None:
        """Waits for more blocks, or for `is_whole`."""
        ...

    def read_spans(
        self, starts: Int64[np.ndarray, "n"], lengths: Int64[np.ndarray, "n"]
    ) -> Integer[np.ndarray, "sum_of_lengths"]:
        """The tokens of each span, one span after the other; none reaches over the end of its block."""
        ...

    def num_documents_of(self, block: int) -> int:
        """Documents of a block."""
        ...

    def document_ends(self, block: int, first: int, last: int) -> Int64[np.ndarray, "documents"]:
        """Where the documents `first` to `last` of a block end, as positions in the source."""
        ...
