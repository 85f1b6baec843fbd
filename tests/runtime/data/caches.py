"""Checks and short ways that tests of caches and loaders share."""

import google_crc32c
import numpy as np

from runtime.data.cache import TokenCache
from runtime.data.loader import Loader
from runtime.data.order import RowLocations
from runtime.data.sampler import DataPosition


def document_offsets(cache: TokenCache) -> np.ndarray:
    """Return where each document begins, and at the end `num_tokens`."""
    ends = np.flatnonzero(cache.read(0, cache.num_tokens) == cache.eos_token_id) + 1
    return np.concatenate([np.zeros(1, np.int64), ends])


def has_recorded_checksums(cache: TokenCache) -> bool:
    """Read everything and compare it with the checksums of the manifest."""
    begin = 0
    for shard in cache.shards:
        tokens = cache.read(begin, shard.num_tokens)
        begin += shard.num_tokens
        if google_crc32c.Checksum(tokens.tobytes()).digest().hex() != shard.tokens_crc32c:
            return False
    return True


def locate(
    loader: Loader, position: DataPosition, step: int, global_batch_size: int, **options: object
) -> tuple[RowLocations, DataPosition]:
    """Return where the rows of one batch lie, and the position after it."""
    rows, (after,) = loader.locate(position, range(step, step + 1), global_batch_size, **options)  # type: ignore[arg-type]
    return rows, after
