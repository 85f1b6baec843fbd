"""Growing cache: the finished blocks of a token cache that is still being built.

Positions, blocks and tokens are those of the finished cache and never change; a read of a later block waits for it. So
batches do not depend on when they are read.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from runtime.data.cache import CHUNK_CACHE_IN_BYTES, CacheError, TokenCache
from runtime.data.flat_array import Elements, Numbers, read_context
from runtime.data.prefetch import during, sleep

POLL_SECONDS = 5.0
"""Every host of a gang polls."""
LOG_AGAIN_SECONDS = 60.0
"""A wait is logged when it begins, and again this often."""


class CacheAbandonedError(CacheError):
    """The rest of a cache is needed and no process is building it."""


class Growth(NamedTuple):
    """The state of a cache that is being built."""

    blocks: Sequence[str]
    """Folders of the new blocks in order, each a cache of its own."""
    whole: str | None
    """Folder of the finished cache; None while it is being built."""
    is_being_built: bool


class GrowingCache:
    """Reads its finished blocks as a TokenCache does. `grow` waits for the next block, or for the end."""

    def __init__(
        self, name: str, watch: Callable[[int], Growth], *, give_up_seconds: float, log: logging.Logger
    ) -> None:
        """Open the finished blocks; there must be at least one.

        `watch` returns the growth beyond a number of blocks; `name` is the source in messages. A wait ends with an
        error when no process has built the cache for `give_up_seconds`.
        """
        self.name = name
        self.is_whole = False
        self._watch, self._give_up_seconds, self._log = watch, give_up_seconds, log
        self._context = read_context(CHUNK_CACHE_IN_BYTES)
        self._blocks: list[TokenCache] = []
        self._growing = threading.Lock()
        self._add(watch(0))
        if not self._blocks:
            raise CacheError(f"{name}: its token cache has no finished block yet; start when it has one.")
        self.format = self._blocks[0].format
        self.vocab_size = self.format.vocab_size

    @property
    def block_ends(self) -> tuple[int, ...]:
        """Position after the last token of each finished block."""
        return tuple(np.cumsum([block.num_tokens for block in self._blocks]).tolist())

    def grow(self) -> None:
        """Wait for at least one more block, or for `is_whole`.

        Raise CacheAbandonedError if no process has been building the cache for too long. Raise ActivityStoppedError if
        the reader has gone.
        """
        known = len(self._blocks)
        with self._growing, during("cache not built yet"):
            began = alive = time.monotonic()
            logged = -LOG_AGAIN_SECONDS
            while not self.is_whole:
                growth = self._watch(known)
                self._add(growth)
                now = time.monotonic()
                if len(self._blocks) > known or self.is_whole:
                    return
                alive = now if growth.is_being_built else alive
                if now - alive > self._give_up_seconds:
                    raise CacheAbandonedError(
                        f"{self.name}: block {known + 1} of its token cache is needed, and no process has been "
                        f"building it for {now - alive:.0f} s. Fix the failure of its tokenize step and run again: "
                        "training resumes from its last checkpoint with the same batches."
                    )
                if now - logged >= LOG_AGAIN_SECONDS:
                    logged = now
                    state = "it is being built" if growth.is_being_built else "no process is building it"
                    self._log.warning(
                        "%s: waiting for block %d of its token cache, which is not built yet (%d s so far; %s)",
                        self.name,
                        known + 1,
                        now - began,
                        state,
                    )
                sleep(POLL_SECONDS)

    def read_spans(self, starts: Numbers, lengths: Numbers) -> Elements:
        """Return the tokens of each span, one span after the other; none crosses the end of its block."""
        ends = np.array(self.block_ends, np.int64)
        blocks = np.searchsorted(ends, starts, side="right")
        tokens = np.empty(int(lengths.sum()), self.format.dtype)
        block_of_token = np.repeat(blocks, lengths)
        for index in np.unique(blocks).tolist():
            where, block = blocks == index, self._blocks[index]
            begin = int(ends[index]) - block.num_tokens
            tokens[block_of_token == index] = block.read_spans(starts[where] - begin, lengths[where])
        return tokens

    def _add(self, growth: Growth) -> None:
        for path in growth.blocks:
            self._blocks.append(self._open(path))
        if growth.whole is None:
            return
        whole = self._open(growth.whole)
        shards = [shard.tokens_crc32c for block in self._blocks for shard in block.shards]
        if whole.block_ends != self.block_ends or [shard.tokens_crc32c for shard in whole.shards] != shards:
            raise CacheError(
                f"{growth.whole}: the finished cache differs from the {len(self._blocks)} blocks that were read while "
                "it was built: its files were changed, or the blocks are of another step. Verify the tokenize step, "
                "then restart the training phase from a checkpoint before it."
            )
        self.is_whole = True

    def _open(self, path: str) -> TokenCache:
        """Open a cache that must have the text and the tokenizer of the first block."""
        expected = {}
        if self._blocks:
            first = self._blocks[0]
            expected = {"tokenizer_digest": first.format.tokenizer_digest, "documents_digest": first.documents_digest}
        return TokenCache.open(path, **expected, context=self._context)
