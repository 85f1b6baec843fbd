"""A shard of documents gives the same tokens and counts wherever the work is cut."""

import hashlib

import numpy as np
import pytest

from runtime.data import tokenizing
from runtime.data.cache import TokenFormat
from runtime.data.encoding import Encoder
from runtime.data.splits import is_validation
from runtime.data.tokenizing import tokenize_shard
from runtime.text.documents import Document, write_documents
from runtime.text.tokenizer_training import train

TEXTS = [f"Naïve café {index}: 吾輩は猫である, {index * 7919} times; don't" for index in range(100)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    document = train(TEXTS, vocab_size=400).to_str()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(document)
    digest = hashlib.sha256(document.encode()).hexdigest()
    token_format = TokenFormat(vocab_size=400, eos_token_id=1, bos_token_id=0, tokenizer_digest=digest)
    return Encoder(str(path), token_format), token_format


def shard_of(folder, texts, encoder, validation_share=0.3):
    write_documents(f"{folder}/documents.parquet", [Document(f"d{n}", text, "s") for n, text in enumerate(texts)])
    return tokenize_shard(f"{folder}/documents.parquet", f"{folder}/shard", "shard", *encoder, validation_share)


def test_texts_that_begin_alike_fall_into_both_splits():
    """Pages of one site share a header: a split by their beginnings would hold out a whole site."""
    held_out = [is_validation((1_000 * "The same header. " + f"page {n}").encode(), 0.3) for n in range(1_000)]
    assert 250 < sum(held_out) < 350


def test_counts_are_of_all_tokens_wherever_counting_is_cut(tmp_path, encoder, monkeypatch):
    whole = shard_of(tmp_path / "whole", TEXTS, encoder)
    monkeypatch.setattr(tokenizing, "COUNTED_TOGETHER", 7)
    cut = shard_of(tmp_path / "cut", TEXTS, encoder)
    assert whole == cut
    assert whole.counts.token_bytes == whole.counts.num_bytes == sum(len(text.encode()) for text in TEXTS)


def test_replacement_characters_are_counted(tmp_path, encoder):
    found = shard_of(tmp_path, ["one \ufffd", "two", "\ufffd\ufffd three"], encoder, validation_share=1e-12)
    assert found.counts.num_replacement == 3


def test_the_size_of_encoded_batches_changes_nothing(tmp_path, encoder, monkeypatch):
    whole = shard_of(tmp_path / "whole", TEXTS, encoder)
    for size in (1, 40, 1_000):
        monkeypatch.setattr(tokenizing, "BATCH_BYTES", size)
        assert shard_of(tmp_path / f"by-{size}", TEXTS, encoder) == whole
        batches = tokenizing._batches(f"{tmp_path}/whole/documents.parquet")
        held = [sum(len(document.text) for document in batch[:-1]) for batch in batches]
        assert max(held) < size, "a batch ends with the document that fills it"


def test_fingerprints_of_held_out_shards_differ(tmp_path, encoder):
    """The gate for duplicate shards compares fingerprints; the training tokens of these shards are equal."""
    held_out = [text for text in TEXTS if is_validation(text.encode(), 0.3)]
    one, other = (shard_of(tmp_path / str(n), [held_out[n]], encoder) for n in range(2))
    assert one.train.num_documents == other.train.num_documents == 0
    assert one.counts.fingerprint != other.counts.fingerprint
    again = shard_of(tmp_path / "again", [held_out[0]], encoder)
    assert again.counts.fingerprint == one.counts.fingerprint


def test_very_long_and_invisible_documents_are_tokenized(tmp_path, encoder):
    texts = ["a" * 300_000, "吾輩" * 50_000, "\u200b" * 1_000, "\ufeff", "", " " * 5_000, "e\u0301" * 20_000]
    found = shard_of(tmp_path, texts, encoder, validation_share=1e-12)
    assert found.train.num_documents == len(texts)
    assert found.counts.num_empty_documents == 1
    assert found.counts.token_bytes == found.counts.num_bytes == sum(len(text.encode()) for text in texts)
    assert np.uint64(found.train.num_tokens) == found.counts.num_tokens + 2 * len(texts)
