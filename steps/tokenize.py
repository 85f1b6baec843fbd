"""Tokenize: documents to two token caches, one to train on and one held out."""

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, Runtime, StepContext, step
from marin_dag.run.supply import usable_cpus
from runtime.data.gates import GateLimits
from steps.documents import DocumentsResult
from steps.local_splits import check_local_splits
from steps.tokenizer import TokenizerResult

if TYPE_CHECKING:
    from runtime.data.cache import TokenCache, TokenFormat
    from runtime.data.encoding import Encoder
    from runtime.data.gates import ShardCounts


EncoderName = Literal["auto", "tokenizers"]


class TokenizeConfig(BaseModel, frozen=True, extra="forbid"):
    documents: Input[DocumentsResult]
    tokenizer: Input[TokenizerResult]
    validation_share: float = Field(gt=0, lt=1)
    """Share of the documents, chosen by the hash of their texts, that are never trained on."""
    gates: GateLimits = GateLimits()
    """Limits that the caches must keep to be committed."""
    shards_per_block: int | None = Field(default=None, ge=1)
    """Shards of a block; None makes one block. A block is published when it is tokenized, and training can start on the
    first one through the step's `growing()`. The first epoch reads block after block."""
    encoder: EncoderName = "auto"
    """The library that encodes; "auto" uses tiktoken where its ids are provably those of tokenizers."""
    shards_in_flight: Runtime[int] = 64


class TokenizeResult(BaseModel, frozen=True, extra="forbid"):
    """Two token caches; tokens include BOS and EOS, bytes are UTF-8 text. One cache of a block may be empty."""

    train: str
    """Folder of a token cache, relative to the step's output."""
    validation: str
    num_train_tokens: int
    num_validation_tokens: int
    num_train_bytes: int
    num_validation_bytes: int
    num_train_documents: int
    num_validation_documents: int
    vocab_size: int
    eos_token_id: int
    encoder: str = ""
    """The library that encoded; empty for ids that were never text."""
    why_encoder: str = ""


def _check(config: TokenizeConfig) -> None:
    check_local_splits(config.documents, config.validation_share)


@step(policy="tracked", packages=("tokenizers", "tensorstore", "tiktoken"), parts=True, check=_check)
def tokenize(config: TokenizeConfig, context: StepContext) -> TokenizeResult:
    """Write one cache shard for each shard of documents, so the bytes do not depend on the workers."""
    from runtime.data.gates import ShardWritten, Tally, check_gates
    from runtime.data.tokenizing import FinishedBlocks, SplitShard, shard_blocks, write_caches

    documents = config.documents.result
    sizes = documents.sizes_by_shard(config.documents.name)
    paths = [config.documents.join(shard) for shard in documents.shards]
    _check_splits(paths, documents.num_documents, config.validation_share, context)
    tokenizer = config.tokenizer.result
    path = config.tokenizer.join(tokenizer.tokenizer)
    encoder, token_format = _encoder(path, tokenizer, config.encoder)
    context.log.info("encoding by %s (encoder=%r): %s", encoder.library, config.encoder, encoder.reason)
    check = functools.partial(check_gates, limits=config.gates, name=context.name)
    write_all = functools.partial(
        write_caches, token_format=token_format, lengths=encoder.token_bytes, documents_digest=config.documents.digest
    )
    numbers = shard_blocks(len(documents.shards), config.shards_per_block)
    items = [
        (paths[number], f"../shards/{place:05d}")
        for place, number in enumerate(number for block in numbers for number in block)
    ]
    finished, blocks, tally = FinishedBlocks(numbers), list[list[SplitShard]](), Tally()
    # Blocks that an earlier attempt published stay as they are; one block is the whole, which follows at once.
    published = set(context.milestones()) if len(numbers) > 1 else {1}

    def publish_blocks(place: int, found: dict) -> None:
        for part, shards in finished.add(place, SplitShard.from_json(found)):
            blocks.append(shards)
            for number, shard in zip(numbers[part - 1], shards, strict=True):
                size = sizes[number]
                tally.add(shard.counts, ShardWritten(documents.shards[number], size.num_documents, size.num_bytes))
            if part in published:
                continue
            check(tally, is_whole=False)
            folder = f"blocks/{part:05d}"
            caches = write_all(f"{context.output_path}/{folder}", blocks=[shards], below="../../")
            context.publish(part, folder, _result(*caches, encoder))

    write = functools.partial(
        tokenize_item,
        tokenizer_path=path,
        tokenizer=tokenizer,
        validation_share=config.validation_share,
        library=config.encoder,
    )
    context.map(write, items, in_flight=config.shards_in_flight, name="shards", on_finished=publish_blocks)
    check(tally)
    _warn(tally.total, encoder, context)
    return _result(*write_all(context.output_path, blocks=blocks), encoder)


def _check_splits(shards: Sequence[str], num_documents: int, validation_share: float, context: StepContext) -> None:
    """Raise CacheError for a split without documents, and warn of a tiny validation split."""
    from runtime.data.cache import CacheError
    from runtime.data.splits import small_split
    from runtime.text.documents import read_documents

    texts = (document.text.encode() for document in read_documents(shards))
    small = small_split(texts, validation_share, num_documents=num_documents)
    if small is not None and small.empty:
        raise CacheError(small.problem(validation_share))
    if small is not None:
        context.log.warning("%s", small.problem(validation_share))


def _warn(total: "ShardCounts", encoder: "Encoder", context: StepContext) -> None:
    """Warn of documents that are not in the caches, or not as they were written."""
    if total.num_unencoded:
        context.log.warning(
            "%d of %d documents cannot be encoded and are left out: %s",
            total.num_unencoded,
            total.num_documents,
            "; ".join(total.unencoded),
        )
    if total.num_changed:
        context.log.warning(
            "the normalizer of the tokenizer (%s) changes %d of %d documents: decoding does not give them back",
            encoder.normalizing.name,
            total.num_changed,
            total.num_documents,
        )


def _result(train: "TokenCache", validation: "TokenCache", encoder: "Encoder") -> TokenizeResult:
    return TokenizeResult(
        train="train",
        validation="validation",
        num_train_tokens=train.num_tokens,
        num_validation_tokens=validation.num_tokens,
        num_train_bytes=train.num_bytes,
        num_validation_bytes=validation.num_bytes,
        num_train_documents=train.num_documents,
        num_validation_documents=validation.num_documents,
        vocab_size=train.vocab_size,
        eos_token_id=train.eos_token_id,
        encoder=encoder.library,
        why_encoder=encoder.reason,
    )


def tokenize_item(
    item: tuple[str, str],
    path: str,
    *,
    tokenizer_path: str,
    tokenizer: TokenizerResult,
    validation_share: float,
    library: EncoderName,
) -> dict:
    """Tokenize one shard in a worker; `item` is the shard of documents and the place of its tokens in the caches."""
    from runtime.data.tokenizing import tokenize_shard

    encoder, token_format = _encoder(tokenizer_path, tokenizer, library)
    source, relative_path = item
    return tokenize_shard(source, path, relative_path, encoder, token_format, validation_share).to_json()


@functools.lru_cache(maxsize=1)
def _encoder(path: str, tokenizer: TokenizerResult, library: EncoderName) -> "tuple[Encoder, TokenFormat]":
    """Return the encoder of this process: comparing two libraries takes seconds for a large vocabulary."""
    from runtime.data.cache import TokenFormat
    from runtime.data.encoding import Encoder

    token_format = TokenFormat(
        vocab_size=tokenizer.vocab_size,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        tokenizer_digest=tokenizer.digest,
    )
    # OMP_NUM_THREADS is the share of a worker, as for other libraries; Ray sets it.
    cores = usable_cpus()
    num_threads = min(cores, int(os.environ.get("OMP_NUM_THREADS") or cores))
    return Encoder(path, token_format, library, num_threads=num_threads), token_format
