"""Documents become two caches, the same for any number of workers, and no bad cache is committed."""

import dataclasses
import hashlib
import itertools
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from marin_dag.errors import UserError
from marin_dag.graph.inputs import Input
from runtime.data.cache import CacheError, TokenCache
from runtime.data.encoding import TokenizerMismatchError
from runtime.data.gates import GateError, GateLimits
from runtime.data.splits import is_validation
from runtime.data.tokenizing import shard_blocks
from runtime.text.documents import Document, write_documents
from steps.documents import DocumentsResult, ShardSize
from steps.tokenize import TokenizeConfig, tokenize
from steps.tokenizer import TokenizerResult
from tests.catalogue import check_message, expect_error
from tests.runtime.data.caches import document_offsets, has_recorded_checksums

TEXTS = [
    f"Document {index}: 吾輩は猫である, naïve café 👩‍👩‍👧 and <|eos|> spelled out, {index * 7919} times. "
    * (1 + index % 5)
    for index in range(60)
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Input[TokenizerResult]:
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|eos|>"], initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(TEXTS, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    model.save(str(folder / "tokenizer.json"))
    result = TokenizerResult(
        tokenizer="tokenizer.json",
        vocab_size=model.get_vocab_size(),
        eos_token_id=0,
        bos_token_id=None,
        digest=hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest(),
    )
    return Input(name="tokenizer", digest="t" * 64, path=str(folder), result=result)


@pytest.fixture
def documents(tmp_path) -> Input[DocumentsResult]:
    return write_shards(tmp_path / "documents", [TEXTS[:25], TEXTS[25:], []])


def write_shards(folder: Path, shards: list[list[str]]) -> Input[DocumentsResult]:
    names, sizes = [], []
    for index, texts in enumerate(shards):
        names.append(f"part-{index}.parquet")
        rows = [Document(f"{index}/{number}", text, "test") for number, text in enumerate(texts)]
        count, size = write_documents(str(folder / names[-1]), rows)
        sizes.append(ShardSize(num_documents=count, num_bytes=size))
    return Input(name="documents", digest="d" * 64, path=str(folder), result=result_of(names, sizes))


def result_of(names: list[str], sizes: list[ShardSize]) -> DocumentsResult:
    return DocumentsResult(
        shards=tuple(names),
        num_documents=sum(size.num_documents for size in sizes),
        num_bytes=sum(size.num_bytes for size in sizes),
        shard_sizes=tuple(sizes),
        dropped={},
    )


def with_result(read: Input[Any], result: Any, path: str | None = None) -> Input[Any]:
    """Return an input with another result, and with another path where one is given."""
    return Input(name=read.name, digest=read.digest, path=path or read.path, result=result)


def with_one_more(documents: Input[DocumentsResult], shard: int) -> Input[DocumentsResult]:
    """Return the same files, counted with one document too many."""
    sizes = list(documents.result.shard_sizes)
    sizes[shard] = sizes[shard].model_copy(update={"num_documents": sizes[shard].num_documents + 1})
    return with_result(documents, result=result_of(list(documents.result.shards), sizes))


class Context(SimpleNamespace):
    """A context of the engine with any number of workers; results go through JSON, as in the engine."""

    def __init__(self, output_path: Path, workers: int = 1) -> None:
        super().__init__(
            output_path=str(output_path), name="tokenize/test", workers=workers, log=logging.getLogger(), published={}
        )

    def map(self, function, items, *, in_flight, name="shards", on_finished):
        paths = [f"{self.output_path}/{name}/{index:05d}" for index in range(len(items))]
        with ThreadPoolExecutor(self.workers) as pool:
            results = json.loads(json.dumps(list(pool.map(function, items, paths))))
        for index, result in reversed(list(enumerate(results))):  # they end in any order
            on_finished(index, result)
        return results

    def milestones(self):
        return dict(self.published)

    def publish(self, milestone, folder, result):
        assert milestone not in self.published
        self.published[milestone] = folder, result


def run(folder, documents, tokenizer, workers=1, **changes):
    config = TokenizeConfig(**({"documents": documents, "tokenizer": tokenizer, "validation_share": 0.2} | changes))
    return tokenize.function(config, Context(folder, workers))


def test_the_caches_decode_to_the_documents_each_in_its_split(tmp_path, documents, tokenizer):
    result = run(tmp_path / "out", documents, tokenizer)
    reader = Tokenizer.from_file(tokenizer.join("tokenizer.json"))
    found = {}
    for split in ("train", "validation"):
        cache = TokenCache.open(str(tmp_path / "out" / split))
        assert has_recorded_checksums(cache)
        offsets = document_offsets(cache).tolist()
        pieces = [cache.read(start, stop - start) for start, stop in itertools.pairwise(offsets)]
        assert all(piece[-1] == result.eos_token_id and (piece[:-1] != 0).all() for piece in pieces)
        found[split] = {reader.decode(piece[:-1].tolist()) for piece in pieces}
        assert cache.token_bytes[cache.read(0, cache.num_tokens)].sum() == cache.num_bytes
        assert cache.num_bytes == sum(len(text.encode()) for text in found[split])
    held_out = {text for text in TEXTS if is_validation(text.encode(), 0.2)}
    assert found == {"validation": held_out, "train": set(TEXTS) - held_out}
    assert result.num_train_documents + result.num_validation_documents == 60
    assert result.num_train_bytes + result.num_validation_bytes == documents.result.num_bytes


def test_one_two_or_sixteen_workers_write_the_same_bytes(tmp_path, tokenizer):
    documents = write_shards(tmp_path / "documents", [*(TEXTS[start : start + 4] for start in range(0, 60, 4)), []])
    one = run(tmp_path / "1", documents, tokenizer, shards_per_block=6)
    for workers in (2, 16):
        folder = tmp_path / str(workers)
        assert run(folder, documents, tokenizer, workers, shards_per_block=6, shards_in_flight=workers) == one
        assert files_of(folder) == files_of(tmp_path / "1")
    assert not any(str(tmp_path).encode() in content for content in files_of(tmp_path / "1").values())


def test_finished_blocks_are_published_and_together_are_the_cache(tmp_path, tokenizer):
    documents = write_shards(tmp_path / "documents", [TEXTS[start : start + 7] for start in range(0, 60, 7)])
    context = Context(tmp_path / "out", workers=2)
    config = {"documents": documents, "tokenizer": tokenizer, "validation_share": 0.2}
    whole = tokenize.function(TokenizeConfig(**config, shards_per_block=4), context)
    assert list(context.published) == [1, 2, 3]
    for split in ("train", "validation"):
        cache = TokenCache.open(str(tmp_path / "out" / split))
        parts = [TokenCache.open(f"{tmp_path}/out/{folder}/{split}") for folder, _ in context.published.values()]
        ends = list(itertools.accumulate(part.num_tokens for part in parts))
        assert cache.block_ends == tuple(ends) and cache.num_tokens == ends[-1]
        read = [part.read(0, part.num_tokens).tolist() for part in parts]
        assert [token for tokens in read for token in tokens] == cache.read(0, cache.num_tokens).tolist()
    assert sum(result.num_train_tokens for _, result in context.published.values()) == whole.num_train_tokens
    assert {part.documents_digest for part in parts} == {documents.digest}
    again = Context(tmp_path / "again")
    again.published = dict(list(context.published.items())[:2])  # by a killed attempt
    assert tokenize.function(TokenizeConfig(**config, shards_per_block=4), again) == whole
    assert list(again.published) == [1, 2, 3]


@given(num_shards=st.integers(1, 200), shards_per_block=st.none() | st.integers(1, 220))
def test_each_shard_is_in_one_block_and_only_the_last_may_be_smaller(num_shards, shards_per_block):
    blocks = shard_blocks(num_shards, shards_per_block)
    assert sorted(number for block in blocks for number in block) == list(range(num_shards))
    assert {len(block) for block in blocks[:-1]} <= {shards_per_block}
    assert len(blocks[-1]) <= (shards_per_block or num_shards)


def test_a_block_is_a_sample_of_a_sorted_source():
    first = shard_blocks(1000, 100)[0]
    assert 400 < sum(first) / len(first) < 600 and min(first) < 100 and max(first) > 900


def test_the_bytes_do_not_depend_on_the_library_that_encodes(tmp_path, documents, tokenizer, caplog):
    with caplog.at_level("INFO"):
        results = [run(tmp_path / name, documents, tokenizer, encoder=name) for name in ("auto", "tokenizers")]
    assert [result.encoder for result in results] == ["tiktoken", "tokenizers"]
    same = {"encoder": "tiktoken", "why_encoder": results[0].why_encoder}
    assert results[0] == results[1].model_copy(update=same)
    assert files_of(tmp_path / "auto") == files_of(tmp_path / "tokenizers")
    check_message("\n".join(message for message in caplog.messages if message.startswith("encoding by")))


def test_a_block_that_fails_a_gate_is_not_published(tmp_path, tokenizer):
    documents = write_shards(tmp_path / "documents", [TEXTS[:20], TEXTS[:20], TEXTS[20:]])
    context = Context(tmp_path / "out")
    config = {"documents": documents, "tokenizer": tokenizer, "validation_share": 0.2, "shards_per_block": 2}
    with expect_error(GateError):
        tokenize.function(TokenizeConfig(**config), context)
    assert len(context.published) < 2


def test_a_text_that_spells_a_special_token_does_not_end_its_document(tmp_path, tokenizer):
    documents = write_shards(tmp_path / "documents", [[f"a<|eos|>b {index}" for index in range(20)]])
    run(tmp_path / "out", documents, tokenizer)
    cache = TokenCache.open(str(tmp_path / "out" / "train"))
    assert (cache.read(0, cache.num_tokens) == 0).sum() == cache.num_documents


def test_no_copy_of_a_held_out_text_is_trained_on(tmp_path, tokenizer):
    splits = {"train": set(), "validation": set()}
    for source, shards in (("one", [TEXTS, TEXTS[:30]]), ("other", [TEXTS[40:], TEXTS[::-1]])):
        run(tmp_path / source, write_shards(tmp_path / f"{source}-documents", shards), tokenizer)
        for split, texts in splits.items():
            cache = TokenCache.open(str(tmp_path / source / split))
            offsets = document_offsets(cache).tolist()
            texts |= {cache.read(start, stop - start).tobytes() for start, stop in itertools.pairwise(offsets)}
    assert len(splits["train"]) + len(splits["validation"]) == len(TEXTS)
    assert not splits["train"] & splits["validation"]


def test_the_split_depends_on_the_text_and_has_the_given_share():
    held_out = [is_validation(f"document-{index}".encode(), 0.1) for index in range(20_000)]
    assert 0.09 < sum(held_out) / 20_000 < 0.11
    larger = [is_validation(f"document-{index}".encode(), 0.2) for index in range(20_000)]
    assert all(more or not less for less, more in zip(held_out, larger, strict=True))


def test_a_changed_tokenizer_file_is_refused(tmp_path, documents, tokenizer):
    wrong = tokenizer.result.model_copy(update={"digest": "0" * 64})
    with expect_error(TokenizerMismatchError):
        run(tmp_path / "out", documents, with_result(tokenizer, result=wrong))


def test_another_vocabulary_than_the_file_is_refused(tmp_path, documents, tokenizer):
    wrong = tokenizer.result.model_copy(update={"vocab_size": 401})
    with expect_error(TokenizerMismatchError):
        run(tmp_path / "out", documents, with_result(tokenizer, result=wrong))


def test_a_cache_records_its_documents_and_its_tokenizer(tmp_path, documents, tokenizer):
    run(tmp_path / "out", documents, tokenizer)
    for split in ("train", "validation"):
        cache = TokenCache.open(
            str(tmp_path / "out" / split), tokenizer_digest=tokenizer.result.digest, documents_digest="d" * 64
        )
        assert cache.documents_digest == documents.digest
        with expect_error(CacheError):
            TokenCache.open(cache.path, documents_digest="e" * 64)


def test_lost_documents_leave_no_cache(tmp_path, documents, tokenizer):
    with expect_error(GateError):
        run(tmp_path / "out", with_one_more(documents, 1), tokenizer)
    with expect_error(CacheError):
        TokenCache.open(str(tmp_path / "out" / "train"))


def test_no_block_with_lost_documents_is_published_nor_any_after_it(tmp_path, tokenizer):
    documents = write_shards(tmp_path / "documents", [TEXTS[start : start + 10] for start in range(0, 60, 10)])
    of_the_second = shard_blocks(6, 2)[1][0]
    context = Context(tmp_path / "out")
    config = {"documents": with_one_more(documents, of_the_second), "tokenizer": tokenizer, "validation_share": 0.2}
    with expect_error(GateError):
        tokenize.function(TokenizeConfig(**config, shards_per_block=2), context)
    assert list(context.published) == [1]


def test_documents_without_counted_shards_are_refused(tmp_path, documents, tokenizer):
    uncounted = documents.result.model_copy(update={"shard_sizes": ()})
    with expect_error(UserError):
        run(tmp_path / "out", with_result(documents, result=uncounted), tokenizer)


def test_the_recipe_sets_the_limits_of_the_gates(tmp_path, documents, tokenizer):
    strict = dataclasses.replace(GateLimits(), min_bytes_per_token=9.0)
    with expect_error(GateError):
        run(tmp_path / "out", documents, tokenizer, gates=strict)


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_a_split_without_documents_is_refused_before_anything_is_encoded(tmp_path, documents, tokenizer, share):
    with expect_error(CacheError):
        run(tmp_path / "out", documents, tokenizer, validation_share=share)
    assert not (tmp_path / "out").exists()


def test_a_tiny_validation_split_is_a_warning(tmp_path, documents, tokenizer, caplog):
    result = run(tmp_path / "out", documents, tokenizer, validation_share=0.1)
    (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    check_message(warning.getMessage())
    assert 0 < result.num_validation_documents < 16


def test_no_more_documents_are_read_for_the_splits_than_it_takes(tmp_path, documents, tokenizer, monkeypatch):
    def read(paths):
        raise AssertionError("no document needs to be read")
        yield

    monkeypatch.setattr("runtime.text.documents.read_documents", read)
    monkeypatch.setattr("runtime.data.splits.CERTAIN_DOCUMENTS", 12)
    assert run(tmp_path / "out", documents, tokenizer).num_validation_documents > 0


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
