"""Growing cache: a token cache that is still being built, as the blocks of it that are there.

Its positions, blocks and tokens are those of the finished cache as far as they are there, and never change; whoever
asks for more waits. So what is read from it does not depend on when it was read.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, Integer

from runtime.data.activity import Activity
from runtime.data.cache import CHUNK_CACHE_IN_BYTES, CacheError, TokenCache
from runtime.data.flat_array import read_context

POLL_SECONDS = 5.0
"""Each host of a gang asks for itself."""
SAY_AGAIN_SECONDS = 60.0
"""A wait is logged when it begins, and again after so long."""


class CacheAbandonedError(CacheError):
    """Nobody is building the rest of a cache, and it is needed."""


class Growth(NamedTuple):
    """What there is of a cache by now."""

    blocks: Sequence[str]
    """Folders of the caches of the blocks that were asked for, each a cache of its own, in order."""
    whole: str | None
    """Folder of the finished cache; None while it is being built."""
    is_being_built: bool


class GrowingCache:
    """Reads like a TokenCache as far as it goes. `grow` waits for the next block, or for the end."""

    def __init__(
        self,
        name: str,
        watch: Callable[[int], Growth],
        *,
        give_up_seconds: float,
        log: logging.Logger,
    ) -> None:
        """Opens the blocks that are there, of which there must be one.

        Args:
            name: Of the source, for messages.
            watch: What there is beyond so many blocks.
            give_up_seconds: How long to wait while nobody builds it.
            log: Told when somebody waits.
        """
        self.name = name
        self.is_whole = False
        self._watch, self._give_up_seconds, self._log = watch, give_up_seconds, log
        self._context = read_context(CHUNK_CACHE_IN_BYTES)
        self._blocks: list[TokenCache] = []
        self._growing = threading.Lock()
        self._take(watch(0))
        if not self._blocks:
            raise CacheError(f"{name}: no block of its token cache is there yet; start when the first one is.")
        self.format = self._blocks[0].format
        self.vocab_size, self.eos_token_id = self.format.vocab_size, self.format.eos_token_id

    @property
    def block_ends(self) -> tuple[int, ...]:
        """For each block that is there, the position behind its last token."""
        return tuple(np.cumsum([block.num_tokens for block in self._blocks]).tolist())

    def grow(self, activity: Activity) -> None:
        """Returns with at least one more block than there was, or with `is_whole` set.

        Raises:
            CacheAbandonedError: nobody has been building it for too long.
            ActivityStoppedError: the reader does not want it any more.
        """
        known = len(self._blocks)
        with self._growing, activity.during("cache not built yet"):
            began = alive = time.monotonic()
            said = -SAY_AGAIN_SECONDS
            while len(self._blocks) == known and not self.is_whole:
                growth = self._watch(known)
                self._take(growth)
                now = time.monotonic()
                if len(self._blocks) > known or self.is_whole:
                    break
                alive = now if growth.is_being_built else alive
                if now - alive > self._give_up_seconds:
                    raise CacheAbandonedError(
                        f"{self.name}: block {known + 1} of its token cache is needed, and nobody has been building it "
                        f"for {now - alive:.0f} s. See why its tokenize step ended, mend that and run again: training "
                        "goes on from its last checkpoint with the same batches."
                    )
                if now - said >= SAY_AGAIN_SECONDS:
                    said = now
                    self._log.warning(
                        "%s: waiting for block %d of its token cache, which is not built yet (%d s so far; %s)",
                        self.name,
                        known + 1,
                        now - began,
                        "it is being built" if growth.is_being_built else "nobody is building it",
                    )
                activity.sleep(POLL_SECONDS)

    def read_spans(
        self, starts: Int64[np.ndarray, "n"], lengths: Int64[np.ndarray, "n"]
    ) -> Integer[np.ndarray, "sum_of_lengths"]:
        """The tokens of each span, one span after the other; none reaches over the end of its block."""
        ends = np.array(self.block_ends, np.int64)
        blocks = np.searchsorted(ends, starts, side="right")
        tokens = np.empty(int(lengths.sum()), self.format.dtype)
        owner = np.repeat(blocks, lengths)
        for index in np.unique(blocks).tolist():
            where = blocks == index
            block = self._blocks[index]
            tokens[owner == index] = block.read_spans(
                starts[where] - (int(ends[index]) - block.num_tokens), lengths[where]
            )
        return tokens

    def num_documents_of(self, block: int) -> int:
        """Documents of a block."""
        return self._blocks[block].num_documents

    def document_ends(self, block: int, first: int, last: int) -> Int64[np.ndarray, "documents"]:
        """Where the documents `first` to `last` of a block end, as positions in the cache."""
        cache = self._blocks[block]
        return cache.document_ends(0, first, last) + (self.block_ends[block] - cache.num_tokens)

    def _take(self, growth: Growth) -> None:
        for path in growth.blocks:
            self._blocks.append(self._opened(path))
        if growth.whole is None:
            return
        whole = self._opened(growth.whole)
        shards = [shard.tokens_crc32c for block in self._blocks for shard in block.shards]
        if whole.block_ends != self.block_ends or [shard.tokens_crc32c for shard in whole.shards] != shards:
            raise CacheError(
                f"{growth.whole}: the finished cache is not made of the {len(self._blocks)} blocks that were read "
                "while it was built. Its files were changed, or another step's blocks were followed; start the "
                "training phase anew from a checkpoint before it, once the tokenize step is verified."
            )
        self.is_whole = True

    def _opened(self, path: str) -> TokenCache:
        """A part of the same text under the same tokenizer as the first, or an error that says which it is of."""
        first = self._blocks[0] if self._blocks else None
        return TokenCache.open(
            path,
            tokenizer_digest=None if first is None else first.format.tokenizer_digest,
            documents_digest=None if first is None else first.documents_digest,
            context=self._context,
        )
