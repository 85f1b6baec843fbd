"""Small caches of random ids."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtime.data.cache import TokenCache, TokenFormat
from runtime.data.cache_writer import token_cache_writer

MakeCache = Callable[..., TokenCache]

VOCAB_SIZE = 500
FORMAT = TokenFormat(vocab_size=VOCAB_SIZE, eos_token_id=0, bos_token_id=None, tokenizer_digest="d" * 64)


def random_documents(num_documents: int, seed: int, longest: int = 40) -> list[np.ndarray]:
    """Return bare ids of documents of any length from 0 on."""
    numbers = np.random.default_rng(seed)
    return [numbers.integers(1, VOCAB_SIZE, numbers.integers(0, longest)) for _ in range(num_documents)]


@pytest.fixture(scope="session")
def make_cache(tmp_path_factory: pytest.TempPathFactory) -> MakeCache:
    """Return a function that writes a cache of random documents."""

    def make(num_documents: int = 100, seed: int = 0) -> TokenCache:
        path = str(tmp_path_factory.mktemp("cache") / "cache")
        with token_cache_writer(path, FORMAT, np.arange(VOCAB_SIZE)) as writer:
            writer.add(random_documents(num_documents, seed), num_bytes=1_000)
        return TokenCache.open(path)

    return make


@pytest.fixture
def cache_folder(make_cache: MakeCache) -> Path:
    """Return the folder of a cache of 100 documents, which the test may damage."""
    return Path(make_cache().path)
