"""Read failures: a limit of the machine is told as such, with its cure, and never as damage of the cache."""

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
from runtime.data.cache import CacheError, TokenCache, TokenFormat
from runtime.data.cache_writer import TokenCacheWriter
from runtime.data.flat_array import FlatArray
from runtime.data.read_failure import read_failure, write_fix
from tests.catalogue import expect_error

NUM_FILES = 40
FORMAT = TokenFormat(vocab_size=500, eos_token_id=0, bos_token_id=None, tokenizer_digest="")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenCache:
    """Of many small files."""
    monkeypatch.setattr(flat_array, "FILE_LENGTH", 16)
    monkeypatch.setattr(flat_array, "CHUNK_LENGTH", 16)
    with TokenCacheWriter(str(tmp_path), FORMAT, np.ones(500, np.int32)) as writer:
        writer.add([[7] * 16 * NUM_FILES], num_bytes=16 * NUM_FILES)
    return TokenCache.open(str(tmp_path))


READS = """
import resource, sys
from pathlib import Path
from runtime.data.cache import TokenCache
cache = TokenCache.open(sys.argv[1])
limit = len(list(Path("/proc/self/fd").iterdir())) + 10
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
try:
    cache.read(0, cache.num_tokens - 1)
except OSError as error:
    print(error.errno, limit, error)
"""


def test_more_files_than_a_process_may_open_at_all_are_told_as_the_limit_that_they_are(cache: TokenCache):
    """In a process of its own: a hard limit cannot be raised again."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", READS, cache.path]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    number, limit, message = said.split(" ", 2)
    assert int(number) == errno.EMFILE
    assert f"this process may open {limit} files" in message and "`ulimit -Hn`" in message
    assert "not known to be damaged" in message and f"{cache.path}/shards/" in message and "--force" not in message


def num_mapped(folder: str) -> int:
    return sum(folder in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_cache_of_more_files_than_may_be_mapped_is_read_and_all_caches_share_what_may(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(local_arrays, "most_maps", lambda: 8)
    other = TokenCache.open(cache.path)
    expected = cache.read(0, cache.num_tokens)
    order = np.random.default_rng(0).permutation(2 * NUM_FILES) % NUM_FILES
    for file in order.tolist():
        assert np.array_equal(cache.read(16 * file, 17), expected[16 * file : 16 * file + 17])
        assert np.array_equal(other.read(16 * file, 3), expected[16 * file : 16 * file + 3])
        assert num_mapped(str(tmp_path)) <= 8
    assert num_mapped(str(tmp_path)) == 8
    assert np.array_equal(other.read(0, cache.num_tokens), expected), "and a read that needs more at once has them"
    assert num_mapped(str(tmp_path)) <= 8


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOMEM, r"a process may map \d+ files, raise the limit `sysctl vm.max_map_count`"),
        (errno.ENFILE, "`sysctl fs.file-max`"),
        (errno.EACCES, "let the user that runs this read it"),
        (errno.EIO, "the disk or the file server failed"),
        (errno.ESTALE, "mend what is named here"),
    ],
)
def test_what_keeps_a_file_from_being_mapped_is_told_with_its_cure(cache, monkeypatch, number, cure):
    def fails(*arguments: object, **keywords: object) -> mmap.mmap:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(local_arrays.mmap, "mmap", fails)
    with expect_error(OSError) as raised:
        cache.read(0, 10)
    assert raised.value.errno == number


def test_a_read_afar_that_meets_a_limit_is_told_the_same_way(cache: TokenCache):
    array = FlatArray(f"{cache.path}/shards/00000/tokens", FORMAT.dtype, cache.num_tokens)
    array.finish_read(array.start_read(0, 1))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # None at all: TensorStore's threads may close the file of the read before after it is answered, which frees
        # a number below any that was counted.
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        with expect_error(OSError) as raised:
            array.finish_read(array.start_read(100, 200))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert raised.value.errno == errno.EMFILE


def test_a_store_that_is_not_reached_is_a_connection_error_and_what_is_missing_or_changed_is_none():
    for words in ("UNAVAILABLE: no route", "ABORTED: All 32 retry attempts failed", "RESOURCE_EXHAUSTED: quota"):
        assert isinstance(read_failure("gs://b/c", ValueError(words)), ConnectionError)
    refused = read_failure("gs://b/c", ValueError("PERMISSION_DENIED: HTTP 403"))
    assert type(refused) is OSError and "gs://b/c: cannot be read (PERMISSION_DENIED" in str(refused)
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
        assert "renew the credentials" in str(read_failure("s3://b/c", ValueError(words)))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("ABORTED: All 32 retry attempts failed [http_response_code='503']"), "is tried again"),
        (ValueError("CANCELLED: so it is"), "is tried again"),
        (ValueError("UNKNOWN: write [os_error_code='116']"), "is tried again"),
        (OSError(errno.ESTALE, "Stale file handle"), "is tried again"),
        (TimeoutError("of 2 processes 1 did not finish"), "is tried again"),
        (ValueError("PERMISSION_DENIED: [http_response_code='403']"), "renew the credentials"),
        (ValueError("Unknown [http_response_code='400']"), "renew the credentials"),
        (ValueError("FAILED_PRECONDITION: write [os_error_code='28']"), "Free space"),
        (OSError(errno.ENOSPC, "No space left on device"), "Free space"),
        (OSError("gs://b/c: cannot be read: renew them, then run the same command again."), "is kept"),
    ],
    ids=str,
)
def test_the_cure_of_a_failed_write_is_to_wait_if_and_only_if_the_engine_tries_it_again(error: Exception, said: str):
    assert said in write_fix(error)
    assert is_transient(error) == (said == "is tried again")
