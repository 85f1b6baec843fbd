"""Tokenize: documents in, two token caches out, one to train on and one held out."""

import functools
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, Runtime, StepContext, step
from runtime.data.gates import GateLimits
from steps.documents import DocumentsResult
from steps.tokenizer import TokenizerResult

if TYPE_CHECKING:
    from runtime.data.cache import TokenCache, TokenFormat
    from runtime.data.encoding import Encoder


EncoderName = Literal["auto", "tokenizers", "tiktoken"]


class TokenizeConfig(BaseModel, frozen=True, extra="forbid"):
    """Every field but `shards_in_flight` is identity."""

    documents: Input[DocumentsResult]
    tokenizer: Input[TokenizerResult]
    validation_share: float = Field(gt=0, lt=1)
    """Share of the documents, chosen by the hash of their texts, that are never trained on."""
    gates: GateLimits = GateLimits()
    """What the caches must satisfy before they are committed."""
    shards_per_block: int | None = Field(default=None, ge=1)
    """A block is published as soon as so many shards are tokenized, and training can start on the first of them: take
    the step's `growing()`. The first epoch reads block after block; None makes one block of all."""
    encoder: EncoderName = "auto"
    """The library that encodes; "auto" takes tiktoken only where its ids are provably those of tokenizers."""
    shards_in_flight: Runtime[int] = 64


class TokenizeResult(BaseModel, frozen=True, extra="forbid"):
    """Two token caches; tokens count BOS and EOS, bytes are the UTF-8 text that went in.

    Of a block these are the block's own, of which one may be empty.
    """

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
    """The library that encoded; empty where no text was."""
    why_encoder: str = ""
    """Whether tiktoken gives the ids of this tokenizer, and why."""


@step(policy="tracked", packages=("tokenizers", "tensorstore", "tiktoken"), parts=True)
def tokenize(config: TokenizeConfig, context: StepContext) -> TokenizeResult:
    """One cache shard for one shard of documents, so the bytes do not depend on the workers."""
    from runtime.data.gates import ShardWritten, Tally, refuse_bad_cache
    from runtime.data.tokenizing import SplitShard, WholeBlocks, shard_blocks, write_block, write_split

    tokenizer = config.tokenizer.result
    path = config.tokenizer.join(tokenizer.tokenizer)
    encoder, token_format = _reader(path, tokenizer, config.encoder)
    context.log.info("encoding by %s (encoder=%r); %s", encoder.library, config.encoder, encoder.reason)
    gates = functools.partial(
        refuse_bad_cache, limits=config.gates, has_bos=tokenizer.bos_token_id is not None, name=context.name
    )
    documents = config.documents.result
    sizes = documents.sizes_by_shard(config.documents.name)
    blocks = shard_blocks(len(documents.shards), config.shards_per_block)
    items = [
        (config.documents.join(documents.shards[number]), f"../shards/{place:05d}")
        for place, number in enumerate(number for block in blocks for number in block)
    ]
    of_all = encoder.token_bytes, config.documents.digest
    whole_blocks, of_blocks, tally = WholeBlocks(blocks), dict[int, list[SplitShard]](), Tally()
    # One block is the whole, and follows at once. What an earlier attempt has published stays as it is.
    published = set(context.milestones()) if len(blocks) > 1 else {1}

    def publish_what_is_whole(place: int, found: dict) -> None:
        for part, of_block in whole_blocks.finished(place, SplitShard.from_json(found)):
            of_blocks[part] = of_block
            for number, shard in zip(blocks[part - 1], of_block, strict=True):
                size = sizes[number]
                written = ShardWritten(documents.shards[number], size.num_documents, size.num_bytes)
                tally.add(shard.counts, written)
            if part in published:
                continue
            gates(tally, is_whole=False)
            folder = f"blocks/{part:05d}"
            caches = write_block(f"{context.output_path}/{folder}", token_format, of_block, *of_all)
            context.publish(part, folder, _result(*caches, encoder))

    write = functools.partial(
        tokenize_item,
        tokenizer_path=path,
        tokenizer=tokenizer,
        validation_share=config.validation_share,
        library=config.encoder,
    )
    context.map(write, items, in_flight=config.shards_in_flight, name="shards", on_finished=publish_what_is_whole)
    gates(tally)
    in_order = [of_blocks[part] for part in sorted(of_blocks)]
    return _result(
        write_split(context.output_path, "train", token_format, in_order, *of_all),
        write_split(context.output_path, "validation", token_format, in_order, *of_all),
        encoder,
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
    """One shard, wherever it runs; `item` is the shard of documents and where the caches will find its tokens."""
    from runtime.data.tokenizing import tokenize_shard

    encoder, token_format = _reader(tokenizer_path, tokenizer, library)
    source, relative_path = item
    return tokenize_shard(source, path, relative_path, encoder, token_format, validation_share).to_json()


@functools.lru_cache(maxsize=1)
def _reader(path: str, tokenizer: TokenizerResult, library: EncoderName) -> "tuple[Encoder, TokenFormat]":
    """Made once in a worker: to prove that two libraries agree takes seconds of a large vocabulary."""
    from runtime.data.cache import TokenFormat
    from runtime.data.encoding import Encoder

    token_format = TokenFormat(
        vocab_size=tokenizer.vocab_size,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        tokenizer_digest=tokenizer.digest,
    )
    return Encoder(path, token_format, library), token_format
