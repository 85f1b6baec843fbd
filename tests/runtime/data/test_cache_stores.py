"""A cache in a bucket has the bytes, reads and errors of a cache on a disk."""

import uuid

import fsspec
import numpy as np
import pytest

from runtime.data.cache import CacheError, TokenCache, TokenFormat
from runtime.data.cache_writer import ShardWriter, finish_cache
from tests.catalogue import expect_error
from tests.runtime.data.caches import document_offsets, has_recorded_checksums

FORMAT = TokenFormat(vocab_size=500, eos_token_id=0, bos_token_id=1, tokenizer_digest="d" * 64)


@pytest.fixture(params=["local", "gs", "s3"])
def folder(request, tmp_path):
    """Return an unused folder on each kind of store."""
    if request.param == "local":
        return str(tmp_path / "caches")
    bucket = request.getfixturevalue({"gs": "gcs_bucket", "s3": "s3_bucket"}[request.param])
    return f"{request.param}://{bucket}/{uuid.uuid4().hex}"


def write_cache(folder):
    records = []
    for index in range(3):
        writer = ShardWriter(f"{folder}/shards/{index:05d}/train", FORMAT)
        writer.add([np.arange(2, 40 + index), np.arange(2, 9)], num_bytes=10)
        records.append(writer.close(f"../shards/{index:05d}/train"))
    finish_cache(f"{folder}/train", FORMAT, [records], np.arange(500))


def files_of(folder):
    filesystem, root = fsspec.core.url_to_fs(folder)
    return {path.removeprefix(root.rstrip("/")): filesystem.cat_file(path) for path in filesystem.find(root)}


def test_a_cache_reads_alike_on_every_store(folder):
    write_cache(folder)
    cache = TokenCache.open(f"{folder}/train")
    assert has_recorded_checksums(cache)
    expected = [token for index in range(3) for size in (40 + index, 9) for token in (1, *range(2, size), 0)]
    assert cache.read(0, cache.num_tokens).tolist() == expected
    assert cache.read_windows(np.array([5, 60, 90]), 50).tolist() == [expected[at : at + 50] for at in (5, 60, 90)]
    assert document_offsets(cache).tolist()[:3] == [0, 40, 49]


def test_its_files_are_the_same_on_every_store(folder, tmp_path):
    write_cache(folder)
    write_cache(folder)  # over the files of a killed attempt
    write_cache(str(tmp_path / "reference"))
    assert files_of(folder) == files_of(str(tmp_path / "reference"))


def test_a_missing_shard_is_refused_on_every_store(folder):
    write_cache(folder)
    filesystem, root = fsspec.core.url_to_fs(folder)
    filesystem.rm(f"{root}/shards/00001", recursive=True)
    with expect_error(CacheError):
        TokenCache.open(f"{folder}/train")
    with expect_error(CacheError):
        TokenCache.open(f"{folder}/elsewhere")
