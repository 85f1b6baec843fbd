"""A limit of the machine is reported as one, with its fix, and never as damage of the cache."""

import errno
import resource
from pathlib import Path

import numpy as np
import pytest

from marin_dag.store.retry import is_transient
from runtime.data import flat_array
from runtime.data.cache import CacheError, TokenCache, TokenFormat
from runtime.data.cache_writer import token_cache_writer
from runtime.data.flat_array import FlatArray
from runtime.data.read_failure import read_failure, write_fix
from tests.catalogue import check_message, expect_error

NUM_FILES = 40
FORMAT = TokenFormat(vocab_size=500, eos_token_id=0, bos_token_id=None, tokenizer_digest="")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenCache:
    """Return a cache of many small files."""
    monkeypatch.setattr(flat_array, "FILE_LENGTH", 16)
    monkeypatch.setattr(flat_array, "CHUNK_LENGTH", 16)
    with token_cache_writer(str(tmp_path / "cache"), FORMAT, np.ones(500, np.int32)) as writer:
        writer.add([[7] * 16 * NUM_FILES], num_bytes=16 * NUM_FILES)
    return TokenCache.open(str(tmp_path / "cache"))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ESTALE])
def test_an_error_of_this_machine_names_its_fix(monkeypatch, number):
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (1_024, 4_096))
    failure = read_failure("/cache", ValueError(f"UNKNOWN: open [os_error_code='{number}']"))
    assert failure is not None
    assert failure.errno == number
    check_message(str(failure))


def test_the_limit_of_open_files_is_reported_as_a_limit(cache: TokenCache):
    array = FlatArray(f"{cache.path}/shards/00000/tokens", FORMAT.dtype, cache.num_tokens)
    array.finish_read(array.start_read(0, 1))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # Zero: TensorStore's threads may close the file of the read before later, which frees a descriptor.
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        with pytest.raises(OSError) as raised:
            array.finish_read(array.start_read(100, 200))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert raised.value.errno == errno.EMFILE


def test_an_unreachable_store_is_a_connection_error_and_damage_is_none():
    for words in ("UNAVAILABLE: no route", "ABORTED: All 32 retry attempts failed", "RESOURCE_EXHAUSTED: quota"):
        assert isinstance(read_failure("gs://b/c", ValueError(words)), ConnectionError)
    refused = read_failure("gs://b/c", ValueError("PERMISSION_DENIED: HTTP 403"))
    assert type(refused) is OSError
    check_message(str(refused))
    for words in ("NOT_FOUND: chunk", "DATA_LOSS: checksum", "FAILED_PRECONDITION: dtype"):
        assert read_failure("gs://b/c", ValueError(words)) is None


@pytest.mark.parametrize("damage", ["gone", "empty", "short", "a folder"])
def test_a_file_that_is_missing_or_short_is_a_torn_cache(cache: TokenCache, damage: str):
    file = Path(cache.path) / "shards/00000/tokens/c/0"
    content = file.read_bytes()
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    elif damage != "gone":
        file.write_bytes(content[:-30] if damage == "short" else b"")
    with expect_error(CacheError):
        cache.read(0, 10)
    for words in ("Unknown [http_response_code='400']", "ExpiredToken: it is over [http_response_code='400']"):
        check_message(str(read_failure("s3://b/c", ValueError(words))))


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        (ValueError("ABORTED: All 32 retry attempts failed [http_response_code='503']"), True),
        (ValueError("CANCELLED: so it is"), True),
        (ValueError("UNKNOWN: write [os_error_code='116']"), True),
        (OSError(errno.ESTALE, "Stale file handle"), True),
        (TimeoutError("of 2 processes 1 did not finish"), True),
        (ValueError("PERMISSION_DENIED: [http_response_code='403']"), False),
        (ValueError("Unknown [http_response_code='400']"), False),
        (ValueError("FAILED_PRECONDITION: write [os_error_code='28']"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (OSError("gs://b/c: cannot be read: renew them, then run the same command again."), False),
    ],
    ids=str,
)
def test_a_failed_write_names_its_fix_and_says_when_the_engine_retries(error: Exception, is_retried: bool):
    check_message(write_fix(error))
    assert is_transient(error) == is_retried
