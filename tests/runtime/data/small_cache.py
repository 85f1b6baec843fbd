"""A writer of small token caches, for tests and benchmarks."""

import contextlib
from collections.abc import Iterator

import numpy as np

from runtime.data.cache import TokenFormat
from runtime.data.cache_writer import ShardWriter, finish_cache


@contextlib.contextmanager
def token_cache_writer(path: str, token_format: TokenFormat, token_bytes: np.ndarray) -> Iterator[ShardWriter]:
    """Yield the writer of a cache of one shard; an error inside the `with` block leaves no manifest and so no cache."""
    writer = ShardWriter(f"{path}/shards/00000", token_format)
    yield writer
    finish_cache(path, token_format, [[writer.close("shards/00000")]], token_bytes)
