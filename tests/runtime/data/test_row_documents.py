"""The document at a position of a cache is the one whose text lies there, in any order of shards."""

import hashlib

import numpy as np
from tokenizers import Tokenizer

from runtime.data.cache import TokenCache, TokenFormat
from runtime.data.encoding import Encoder
from runtime.data.row_documents import DocumentsSource, document_ids
from runtime.data.tokenizing import shard_blocks, tokenize_shard, write_caches
from runtime.text.documents import Document, write_documents
from runtime.text.tokenizer_training import train

TEXTS = {f"d{number}": f"Text {number}: {number * 7919} and {number % 7} more." for number in range(90)}
NUM_SHARDS, SHARE = 5, 0.3


def made(folder) -> tuple[TokenCache, DocumentsSource, Tokenizer]:
    """Return a cache of five shards in blocks of two, of which the order is drawn."""
    tokenizer = train(TEXTS.values(), vocab_size=400)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    digest = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    token_format = TokenFormat(vocab_size=400, eos_token_id=1, bos_token_id=0, tokenizer_digest=digest)
    encoder = Encoder(str(folder / "tokenizer.json"), token_format)
    documents = [Document(name, text, "s") for name, text in TEXTS.items()]
    paths = [f"{folder}/{number}.parquet" for number in range(NUM_SHARDS)]
    for number, path in enumerate(paths):
        write_documents(path, documents[number::NUM_SHARDS])
    blocks, place = [], 0
    for numbers in shard_blocks(NUM_SHARDS, 2):
        blocks.append([])
        for number in numbers:
            relative = f"shards/{place:05d}"
            args = (paths[number], f"{folder}/{relative}", f"../{relative}", encoder, token_format, SHARE)
            blocks[-1].append(tokenize_shard(*args))
            place += 1
    cache, _ = write_caches(str(folder), token_format, blocks, encoder.token_bytes, "0" * 64)
    return cache, DocumentsSource(paths, SHARE, 2), tokenizer


def test_every_position_is_in_the_document_that_is_named(tmp_path):
    cache, source, tokenizer = made(tmp_path)
    tokens = cache.read(0, cache.num_tokens)
    ends = np.flatnonzero(tokens == cache.eos_token_id)
    positions = np.random.default_rng(0).integers(0, cache.num_tokens, 200)
    begins = [0, *(ends[:-1] + 1).tolist()]
    of = np.searchsorted(ends, positions)
    texts = [
        tokenizer.decode(tokens[begins[number] : ends[number]].tolist(), skip_special_tokens=True) for number in of
    ]
    assert [TEXTS[name or ""] for name in document_ids(cache, positions, source)] == texts


def test_no_document_is_named_where_counting_cannot_tell(tmp_path):
    cache, source, _ = made(tmp_path)
    assert set(document_ids(cache, np.array([0, 50]), source._replace(validation_share=0.9))) == {None}
