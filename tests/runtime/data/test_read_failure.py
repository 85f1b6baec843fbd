"""A limit of the machine is reported as one, with its fix, and never as damage of the cache."""

import errno
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from marin_dag.store.retry import is_transient
from runtime.data import flat_array, local_arrays
from runtime.data import read_failure as read_failures
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


READS = """
import resource, sys
from pathlib import Path
from runtime.data import flat_array
from runtime.data.cache import TokenCache
flat_array.FILE_LENGTH = flat_array.CHUNK_LENGTH = 16
cache = TokenCache.open(sys.argv[1])
limit = len(list(Path("/proc/self/fd").iterdir())) + 10
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
try:
    cache.read(0, cache.num_tokens - 1)
except OSError as error:
    print(error.errno, limit, error)
"""


def test_the_limit_of_open_files_is_reported_as_a_limit(cache: TokenCache):
    """Runs in another process, as a hard limit cannot be raised again."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", READS, cache.path]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    number, limit, message = output.split(" ", 2)
    assert int(number) == errno.EMFILE
    check_message(message.replace(f"open {limit} files", "open N files"))


def num_mapped(folder: str) -> int:
    return sum(folder in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_caches_of_more_files_than_may_be_mapped_are_read_within_the_limit(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(local_arrays, "most_maps", lambda: 8)
    other = TokenCache.open(cache.path)
    expected = cache.read(0, cache.num_tokens)
    order = np.random.default_rng(0).permutation(2 * NUM_FILES) % NUM_FILES
    for file in order.tolist():
        assert np.array_equal(cache.read(16 * file, 17), expected[16 * file : 16 * file + 17])
        assert np.array_equal(other.read(16 * file, 3), expected[16 * file : 16 * file + 3])
        assert num_mapped(str(tmp_path)) <= 8
    assert num_mapped(str(tmp_path)) == 8
    assert np.array_equal(other.read(0, cache.num_tokens), expected), "a read that needs more files at once has them"
    assert num_mapped(str(tmp_path)) <= 8


@pytest.mark.parametrize(
    "number",
    [errno.ENOMEM, errno.ENFILE, errno.EACCES, errno.EIO, errno.ESTALE],
)
def test_an_error_of_mapping_a_file_names_its_fix(cache, monkeypatch, tmp_path, number):
    (tmp_path / "max_map_count").write_text("65530")
    monkeypatch.setattr(read_failures, "MAX_MAP_COUNT", str(tmp_path / "max_map_count"))

    def fails(*arguments: object, **keywords: object) -> mmap.mmap:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(local_arrays.mmap, "mmap", fails)
    with expect_error(OSError) as raised:
        cache.read(0, 10)
    assert raised.value.errno == number


def test_a_remote_read_reports_a_limit_in_the_same_way(cache: TokenCache):
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
