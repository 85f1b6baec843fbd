"""Cache writers: one for a shard, one for a small cache of a single shard."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import fsspec
import numpy as np

from runtime.data.cache import FORMAT, MANIFEST, TOKEN_BYTES_DTYPE, CacheError, ShardRecord, TokenFormat, checksum_of
from runtime.data.flat_array import FlatArrayWriter

IDS_DTYPE = np.uint32


class ShardWriter:
    """Writes the `tokens` of one shard; memory does not grow with the shard."""

    def __init__(self, path: str, token_format: TokenFormat) -> None:
        # Files of a killed attempt would otherwise become a part of this shard.
        with contextlib.suppress(FileNotFoundError):
            filesystem, key = fsspec.core.url_to_fs(path)
            filesystem.rm(key, recursive=True)
        self._format = token_format
        self._tokens = FlatArrayWriter(f"{path}/tokens", token_format.dtype)
        self._num_documents = self._num_bytes = 0

    def add(self, documents: Sequence[Sequence[int] | np.ndarray], *, num_bytes: int) -> np.ndarray:
        """Add documents given as bare ids, each between BOS (if the format has one) and EOS; return all these tokens.

        `num_bytes` is the UTF-8 length of their texts. Raise CacheError if an id is outside the vocabulary, or EOS or
        BOS is inside a document. A text that spells a special token must be encoded as plain characters.
        """
        if not documents:
            return np.zeros(0, IDS_DTYPE)
        bos, eos = self._format.bos_token_id, np.array([self._format.eos_token_id], IDS_DTYPE)
        opening = np.array([] if bos is None else [bos], IDS_DTYPE)
        pieces: list[np.ndarray] = []
        for document in documents:
            # Not cast before the check: wider ids would wrap.
            pieces += [opening, np.asarray(document) if len(document) else np.zeros(0, IDS_DTYPE), eos]
        tokens = np.concatenate(pieces)
        self._check(tokens, len(documents))
        self._tokens.append(tokens)
        self._num_documents += len(documents)
        self._num_bytes += num_bytes
        return tokens

    def close(self, relative_path: str) -> ShardRecord:
        """Finish the shard; `relative_path` is its place as seen from the cache's manifest."""
        crc32c = self._tokens.close()
        counts = {"num_tokens": self._tokens.length, "num_documents": self._num_documents, "num_bytes": self._num_bytes}
        return ShardRecord(path=relative_path, tokens_crc32c=crc32c, **counts)

    def _check(self, tokens: np.ndarray, num_documents: int) -> None:
        if tokens.min() < 0 or tokens.max() >= self._format.vocab_size:
            raise CacheError(
                f"ids from {tokens.min()} to {tokens.max()} do not fit vocab_size={self._format.vocab_size}. Encode "
                "with the tokenizer of the cache."
            )
        for name in ("eos_token_id", "bos_token_id"):
            special = getattr(self._format, name)
            found = int(np.count_nonzero(tokens == special)) if special is not None else num_documents
            if found != num_documents:
                raise CacheError(
                    f"{name}={special} occurs {found} times in {num_documents} documents; documents are added as bare "
                    "ids. Encode with add_special_tokens=False and encode_special_tokens=True."
                )


@contextlib.contextmanager
def token_cache_writer(path: str, token_format: TokenFormat, token_bytes: np.ndarray) -> Iterator[ShardWriter]:
    """Yield the writer of a cache of one shard; an error inside the `with` block leaves no manifest and so no cache."""
    writer = ShardWriter(f"{path}/shards/00000", token_format)
    yield writer
    finish_cache(path, token_format, [[writer.close("shards/00000")]], token_bytes)


def finish_cache(
    path: str,
    token_format: TokenFormat,
    blocks: Sequence[Sequence[ShardRecord]],
    token_bytes: np.ndarray,
    *,
    documents_digest: str | None = None,
    may_be_empty: bool = False,
) -> None:
    """Write the byte counts and, last, the manifest over the shards of `blocks` that are not empty.

    `documents_digest` is the identity of the step that wrote the documents; None for ids that were never text.
    """
    if len(token_bytes) != token_format.vocab_size:
        raise CacheError(
            f"{path}: byte lengths of {len(token_bytes)} ids for a vocabulary of {token_format.vocab_size}; "
            "take both from one tokenizer."
        )
    writer = FlatArrayWriter(f"{path}/token_bytes", TOKEN_BYTES_DTYPE)
    writer.append(token_bytes)
    writer.close()
    filled = [[shard for shard in shards if shard.num_documents] for shards in blocks]
    if not any(filled) and not may_be_empty:
        raise CacheError(f"{path}: no documents to train on or to evaluate with; check the source.")
    document = {
        "shards_by_block": [len(shards) for shards in filled],
        "shards": [asdict(shard) for shards in filled for shard in shards],
        "format": asdict(token_format),
        "format_version": FORMAT,
        "documents_digest": documents_digest,
    }
    with fsspec.open(f"{path}/{MANIFEST}", "w", auto_mkdir=True) as file:
        file.write(json.dumps(document | {"crc32c": checksum_of(document)}, indent=1, sort_keys=True) + "\n")
