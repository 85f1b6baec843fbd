"""Tokens are read back as they were written; a cache is complete or invisible; damage is never read as text."""

import dataclasses
import json
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data import flat_array
from runtime.data.cache import CacheError, ShardRecord, TokenCache, TokenFormat, resolve
from runtime.data.cache_writer import ShardWriter, finish_cache, token_cache_writer
from tests.catalogue import expect_error
from tests.runtime.data.caches import document_offsets, has_recorded_checksums

FORMAT = TokenFormat(vocab_size=500, eos_token_id=0, bos_token_id=None, tokenizer_digest="d" * 64)
IDS = st.lists(st.lists(st.integers(1, 499), max_size=12), min_size=1, max_size=12)


def write_cache(path: Path, shards: list[list[list[int]]]) -> TokenCache:
    records: list[ShardRecord] = []
    for index, documents in enumerate(shards):
        writer = ShardWriter(f"{path}/shards/{index}", FORMAT)
        writer.add(documents, num_bytes=7)
        records.append(writer.close(f"../shards/{index}"))
    finish_cache(f"{path}/train", FORMAT, [records], np.arange(500))
    return TokenCache.open(f"{path}/train")


@given(shards=st.lists(IDS, min_size=1, max_size=4), data=st.data())
def test_any_window_over_any_shards_reads_what_was_written(shards, data, tmp_path_factory):
    cache = write_cache(tmp_path_factory.mktemp("cache"), shards)
    expected = np.array([token for shard in shards for document in shard for token in [*document, 0]])
    start = data.draw(st.integers(0, len(expected)))
    length = data.draw(st.integers(0, len(expected) - start))
    assert cache.num_tokens == len(expected)
    assert cache.read(start, length).tolist() == expected[start : start + length].tolist()
    offsets = document_offsets(cache)
    documents = [document for shard in shards for document in shard]
    assert len(offsets) == cache.num_documents + 1 == len(documents) + 1
    for index, document in enumerate(documents):
        assert expected[offsets[index] : offsets[index + 1]].tolist() == [*document, 0]
    assert has_recorded_checksums(cache)


def test_windows_that_cross_files_read_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(flat_array, "FILE_LENGTH", 256)
    monkeypatch.setattr(flat_array, "CHUNK_LENGTH", 64)
    numbers = np.random.default_rng(0)
    shards = [[numbers.integers(1, 500, 700).tolist() for _ in range(3)] for _ in range(2)]
    cache = write_cache(tmp_path, shards)
    expected = np.array([token for shard in shards for document in shard for token in [*document, 0]])
    starts = numbers.integers(0, len(expected) - 300, 40)
    assert (cache.read_windows(starts, 300) == [expected[start : start + 300] for start in starts]).all()
    assert len(list((tmp_path / "shards" / "0" / "tokens" / "c").iterdir())) == 9
    assert has_recorded_checksums(cache)


def test_spans_of_any_lengths_over_chunks_files_and_shards_read_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(flat_array, "FILE_LENGTH", 64)
    monkeypatch.setattr(flat_array, "CHUNK_LENGTH", 16)
    numbers = np.random.default_rng(0)
    shards = [[numbers.integers(1, 500, size).tolist()] for size in (200, 63, 1, 127)]
    cache = write_cache(tmp_path, shards)
    expected = np.array([token for shard in shards for document in shard for token in [*document, 0]])
    for _ in range(50):
        lengths = numbers.choice([0, 1, 2, 15, 16, 17, 64, 100, 300], 20)
        starts = numbers.integers(0, len(expected) - lengths + 1)
        found = cache.read_spans(starts, lengths)
        spans = [expected[start : start + length] for start, length in zip(starts, lengths, strict=True)]
        assert found.tolist() == np.concatenate(spans).tolist()
    assert len(cache.read_spans(np.zeros(0, np.int64), np.zeros(0, np.int64))) == 0


def test_a_read_checks_the_chunks_that_it_reads_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(flat_array, "CHUNK_LENGTH", 16)
    cache = write_cache(tmp_path, [[[7] * 100]])
    file = tmp_path / "shards" / "0" / "tokens" / "c" / "0"
    content = bytearray(file.read_bytes())
    content[2 * (2 * 16 + 4) + 5] ^= 1  # the third chunk
    file.write_bytes(content)
    assert cache.read(0, 32).tolist() == [7] * 32 and cache.read(48, 20).tolist() == [7] * 20
    for start, length in ((31, 2), (47, 1), (0, 101)):
        with expect_error(CacheError):
            cache.read(start, length)


def test_a_cache_of_more_files_than_a_process_may_open_by_default_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(flat_array, "FILE_LENGTH", 16)
    monkeypatch.setattr(flat_array, "CHUNK_LENGTH", 16)
    cache = write_cache(tmp_path, [[[7] * 16 * 60]])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, limits[1]))
        assert cache.read(0, 960).tolist() == [7] * 960
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_ids_are_kept_in_the_narrowest_type(tmp_path):
    for vocab_size, dtype in ((65_536, np.uint16), (65_537, np.uint32)):
        token_format = TokenFormat(vocab_size=vocab_size, eos_token_id=0, bos_token_id=None, tokenizer_digest="")
        with token_cache_writer(str(tmp_path / str(vocab_size)), token_format, np.zeros(vocab_size)) as writer:
            writer.add([[vocab_size - 1]], num_bytes=1)
        window = TokenCache.open(str(tmp_path / str(vocab_size))).read(0, 2)
        assert window.dtype == dtype and window.tolist() == [vocab_size - 1, 0]


def test_bos_opens_and_eos_closes_each_document(tmp_path):
    token_format = TokenFormat(vocab_size=9, eos_token_id=8, bos_token_id=7, tokenizer_digest="")
    with token_cache_writer(str(tmp_path), token_format, np.zeros(9)) as writer:
        writer.add([[1, 2], []], num_bytes=2)
    assert TokenCache.open(str(tmp_path)).read(0, 6).tolist() == [7, 1, 2, 8, 7, 8]


def test_the_same_documents_give_the_same_files_however_they_are_added(tmp_path):
    documents = [[index % 499 + 1] * (index % 17) for index in range(300)]
    for name, size in (("one", 300), ("many", 7)):
        with token_cache_writer(str(tmp_path / name), FORMAT, np.arange(500)) as writer:
            for start in range(0, 300, size):
                writer.add(documents[start : start + size], num_bytes=len(documents[start : start + size]))
    assert files_of(tmp_path / "one") == files_of(tmp_path / "many")


def test_a_shard_left_by_a_killed_attempt_is_rewritten(tmp_path):
    write_cache(tmp_path / "once", [[[1, 2]]])
    write_cache(tmp_path / "twice", [[[5] * 5_000]])
    (tmp_path / "twice" / "shards" / "0" / "leftover").write_bytes(b"torn")
    write_cache(tmp_path / "twice", [[[1, 2]]])
    assert files_of(tmp_path / "once") == files_of(tmp_path / "twice")


def test_shards_without_documents_are_ignored(tmp_path):
    cache = write_cache(tmp_path, [[[1]], [], [[2]]])
    assert cache.read(0, 4).tolist() == [1, 0, 2, 0] and len(cache.shards) == 2


def test_a_cache_without_documents_is_refused(tmp_path):
    with expect_error(CacheError):
        write_cache(tmp_path, [[]])


def test_an_interrupted_cache_is_invisible(tmp_path):
    with pytest.raises(RuntimeError), token_cache_writer(str(tmp_path), FORMAT, np.arange(500)) as writer:
        writer.add([[1]], num_bytes=1)
        raise RuntimeError("killed")
    with expect_error(CacheError):
        TokenCache.open(str(tmp_path))


def test_a_manifest_that_was_cut_short_is_refused(cache_folder):
    manifest = cache_folder / "cache.json"
    manifest.write_text(manifest.read_text()[:-40])
    with expect_error(CacheError):
        TokenCache.open(str(cache_folder))


def test_a_manifest_that_was_edited_is_refused(cache_folder):
    manifest = cache_folder / "cache.json"
    document = json.loads(manifest.read_text())
    document["shards"][0]["num_tokens"] += 1
    manifest.write_text(json.dumps(document))
    with expect_error(CacheError):
        TokenCache.open(str(cache_folder))


def test_a_manifest_of_another_format_is_refused(cache_folder):
    manifest = cache_folder / "cache.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format_version": 0}))
    with expect_error(CacheError):
        TokenCache.open(str(cache_folder))


def test_a_missing_shard_is_refused_when_the_cache_is_opened(cache_folder):
    (cache_folder / "shards" / "00000" / "tokens" / "zarr.json").unlink()
    with expect_error(CacheError):
        TokenCache.open(str(cache_folder))


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_damaged_tokens_are_refused_when_they_are_read(cache_folder, damage):
    cache = TokenCache.open(str(cache_folder))
    chunk = cache_folder / "shards" / "00000" / "tokens" / "c" / "0"
    content = bytearray(chunk.read_bytes())
    content[100] ^= 1
    if damage == "gone":
        chunk.unlink()
    else:
        chunk.write_bytes(content if damage == "flipped" else content[:-30])
    with expect_error(CacheError):
        cache.read(0, 100)


def test_a_lost_file_of_byte_lengths_does_not_read_as_zeros(cache_folder):
    (cache_folder / "token_bytes" / "c" / "0").unlink()
    cache = TokenCache.open(str(cache_folder))
    with expect_error(CacheError):
        _ = cache.token_bytes


def test_a_number_outside_its_type_is_refused_and_not_wrapped(tmp_path):
    writer = flat_array.FlatArrayWriter(str(tmp_path / "array"), np.dtype(np.uint16))
    writer.append(np.array([0, 65_535]))
    for number in (65_536, -1):
        with expect_error(flat_array.DamagedArrayError):
            writer.append(np.array([number]))


def test_a_cache_of_another_tokenizer_is_refused_with_both_digests(cache_folder):
    TokenCache.open(str(cache_folder), tokenizer_digest="d" * 64)
    with expect_error(CacheError):
        TokenCache.open(str(cache_folder), tokenizer_digest="e" * 64)


def test_a_cache_without_documents_digest_is_refused_where_one_is_expected(cache_folder):
    with expect_error(CacheError):
        TokenCache.open(str(cache_folder), documents_digest="e" * 64)


def test_a_window_past_the_end_is_refused(make_cache):
    cache = make_cache()
    assert len(cache.read(cache.num_tokens - 5, 5)) == 5
    for start, length in ((cache.num_tokens - 5, 6), (-1, 2)):
        with expect_error(IndexError):
            cache.read(start, length)


@pytest.mark.parametrize(
    "ids",
    [[500], [-1], [0]],
)
def test_ids_outside_the_format_are_refused(tmp_path, ids):
    with expect_error(CacheError):
        ShardWriter(str(tmp_path), FORMAT).add([ids], num_bytes=1)


def test_every_document_is_between_bos_and_eos(tmp_path):
    """A change of library silently dropped BOS from every cache of a month of a public project."""
    token_format = dataclasses.replace(FORMAT, bos_token_id=7)
    with token_cache_writer(str(tmp_path), token_format, np.ones(FORMAT.vocab_size)) as writer:
        writer.add([[5, 6], [], [8]], num_bytes=3)
    assert TokenCache.open(str(tmp_path)).read(0, 9).tolist() == [7, 5, 6, 0, 7, 0, 7, 8, 0]


def test_bos_inside_a_document_is_refused(tmp_path):
    token_format = dataclasses.replace(FORMAT, bos_token_id=7)
    with expect_error(CacheError):
        ShardWriter(str(tmp_path), token_format).add([[5, 7], [6]], num_bytes=1)


def test_a_format_that_contradicts_itself_is_refused():
    with expect_error(CacheError):
        TokenFormat(vocab_size=9, eos_token_id=9, bos_token_id=None, tokenizer_digest="")
    with expect_error(CacheError):
        TokenFormat(vocab_size=9, eos_token_id=1, bos_token_id=1, tokenizer_digest="")


def test_paths_resolve_alike_on_a_disk_and_in_a_bucket():
    assert resolve("/a/train", "../shards/0") == "/a/shards/0"
    assert resolve("gs://bucket/a/train", "../shards/0") == "gs://bucket/a/shards/0"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
