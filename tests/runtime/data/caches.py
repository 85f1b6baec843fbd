"""Checks and short ways that tests of caches and loaders share."""

import google_crc32c
import numpy as np

from runtime.data.batch import DataPosition, RowLocations
from runtime.data.cache import DOCUMENT_ENDS_DTYPE, TOKEN_BYTES_DTYPE, TokenCache
from runtime.data.loader import Loader


def document_offsets(cache: TokenCache) -> np.ndarray:
    """Return where each document begins, and at the end `num_tokens`."""
    ends = [cache.document_ends(block) for block in range(len(cache.block_ends))]
    return np.concatenate([np.zeros(1, np.int64), *ends])


def has_recorded_checksums(cache: TokenCache) -> bool:
    """Read everything and compare it with the checksums of the manifest."""
    recorded = [("token_bytes", TOKEN_BYTES_DTYPE, cache.vocab_size, cache.token_bytes_crc32c)]
    for shard in cache.shards:
        recorded += [
            (f"{shard.path}/tokens", cache.format.dtype, shard.num_tokens, shard.tokens_crc32c),
            (f"{shard.path}/document_ends", DOCUMENT_ENDS_DTYPE, shard.num_documents, shard.document_ends_crc32c),
        ]
    found = []
    for path, dtype, length, _ in recorded:
        array = cache._array(path, dtype, length)
        values = cache._finish(array, array.start_read(0, length))
        little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
        found.append(google_crc32c.Checksum(little.tobytes()).digest().hex())
    return found == [checksum for *_, checksum in recorded]


def locate(
    loader: Loader, position: DataPosition, step: int, global_batch_size: int, **options: object
) -> tuple[RowLocations, DataPosition]:
    """Return where the rows of one batch lie, and the position after it."""
    rows, (after,) = loader.locate(position, range(step, step + 1), global_batch_size, **options)  # type: ignore[arg-type]
    return rows, after
