"""Token cache: the tokens of one source in one long row, every document closed by EOS; complete or invisible.

A cache is a manifest, `cache.json`, written last, over shards written independently of each other:

    cache.json               counts, checksums, digests of the tokenizer and of the text, and where the shards are
    token_bytes/             bytes of text that each token id stands for
    <shard>/tokens/          all documents of the shard, one after another, each closed by EOS

Positions count over all shards in the manifest's order. Consecutive shards form blocks, which order.py reads one after
the other. No date, host, attempt or path is written: equal documents and equal tokenizers give equal bytes.
"""

import functools
import json
import posixpath
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import fsspec
import google_crc32c
import numpy as np
import tensorstore as ts
from jaxtyping import Int32, Int64, Integer

from runtime.data.flat_array import DamagedArrayError, Elements, FlatArray, Numbers, key_value_store, read_context
from runtime.data.local_arrays import LocalArrays

MANIFEST = "cache.json"
FORMAT = 4
CHUNK_CACHE_IN_BYTES = 64 << 20
SHARDS_OPENED_TOGETHER = 32
TOKEN_BYTES_DTYPE = np.dtype(np.int32)


class CacheError(ValueError):
    """A cache that is missing, torn or not the expected one; the message names the path and the fix."""


@dataclass(frozen=True, kw_only=True)
class TokenFormat:
    """Meaning of the ids of a cache; all its shards share it."""

    vocab_size: int
    eos_token_id: int
    """Closes every document and occurs nowhere else."""
    bos_token_id: int | None
    """Opens every document; None if the tokenizer has none."""
    tokenizer_digest: str
    """SHA-256 of the `tokenizer.json` that made the ids."""

    def __post_init__(self) -> None:
        for name in ("eos_token_id", "bos_token_id"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < self.vocab_size:
                raise CacheError(f"TokenFormat.{name} is {value}, outside the vocabulary of {self.vocab_size} ids.")
        if self.bos_token_id == self.eos_token_id:
            raise CacheError(
                f"TokenFormat.bos_token_id and eos_token_id are both {self.eos_token_id}, so the end of a document "
                "would look like its beginning. Pass bos_token_id=None."
            )

    @property
    def dtype(self) -> np.dtype:
        """The narrowest unsigned integers that hold the vocabulary."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """A shard in the manifest."""

    path: str
    """Relative to the cache's folder; may lead out of it and back into the same output."""
    num_tokens: int
    num_documents: int
    num_bytes: int
    """UTF-8 bytes of the text."""
    tokens_crc32c: str


class TokenCache:
    """Reads a finished cache: any window of any length, from a local folder, `gs://` or `s3://`."""

    is_whole: bool = True

    def __init__(self, path: str, manifest: dict, context: ts.Context) -> None:
        """Use `open`, which checks the arguments."""
        self.path = path
        self.format = TokenFormat(**manifest["format"])
        self.documents_digest: str | None = manifest["documents_digest"]
        """Identity of the step that wrote the documents; None for ids that were never text."""
        self.shards = tuple(ShardRecord(**shard) for shard in manifest["shards"])
        self.num_tokens = sum(shard.num_tokens for shard in self.shards)
        self.num_documents = sum(shard.num_documents for shard in self.shards)
        self.num_bytes = sum(shard.num_bytes for shard in self.shards)
        self.vocab_size = self.format.vocab_size
        self.eos_token_id = self.format.eos_token_id
        self._starts = np.cumsum([0, *(shard.num_tokens for shard in self.shards)])
        self.block_ends = tuple(self._starts[np.cumsum(manifest["shards_by_block"], dtype=np.int64)].tolist())
        """Position after the last token of each block."""
        self._context = context
        self._tokens: list[FlatArray] = []
        self._local: LocalArrays | None = None

    @classmethod
    def open(
        cls,
        path: str,
        *,
        tokenizer_digest: str | None = None,
        documents_digest: str | None = None,
        context: ts.Context | None = None,
    ) -> "TokenCache":
        """Open the cache whose manifest lies in `path`.

        Every shard must be there with the recorded length; contents are checked chunk by chunk as they are read. The
        digests are what the caller expects; None accepts any. Caches with one `context` share its pool of chunks. Raise
        CacheError if the cache is missing, torn, or not the expected one. Raise OSError if the store or this machine
        failed; the cache may be intact.
        """
        cache = cls(path, _read_manifest(path), context or read_context(CHUNK_CACHE_IN_BYTES))
        fix = "Tokenize the documents again with the expected tokenizer."
        cache._check("tokenizer", cache.format.tokenizer_digest, tokenizer_digest, fix)
        fix = "Use the cache of the expected documents; the command `ls` lists steps by digest."
        cache._check("documents", cache.documents_digest or "none", documents_digest, fix)
        # One after another, ten thousand shards on a distant store would delay the first batch by minutes.
        with ThreadPoolExecutor(SHARDS_OPENED_TOGETHER) as pool:
            cache._tokens = list(pool.map(cache._shard_array, cache.shards))
        folders = [key_value_store(array.path) for array in cache._tokens]
        if folders and folders[0]["driver"] == "file":
            lengths = [shard.num_tokens for shard in cache.shards]
            cache._local = LocalArrays([folder["path"] for folder in folders], lengths, cache.format.dtype)
        return cache

    def read(self, start: int, length: int) -> Integer[np.ndarray, "length"]:
        return self.read_windows(np.array([start], np.int64), length)[0]

    def read_windows(self, starts: Int64[np.ndarray, "n"], length: int) -> Integer[np.ndarray, "n length"]:
        """Return a window of `length` tokens from each of `starts`, as uint16 or uint32."""
        return self.read_spans(starts, np.full(len(starts), length, np.int64)).reshape(len(starts), length)

    def read_spans(self, starts: Numbers, lengths: Numbers) -> Elements:
        """Return the tokens of each span, one span after the other, checked against their checksums."""
        if np.any(lengths < 0) or np.any(starts < 0) or np.any(starts + lengths > self.num_tokens):
            raise IndexError(
                f"{self.path}: spans of {lengths.tolist()[:8]} tokens from {starts.tolist()[:8]} do not lie within the "
                f"{self.num_tokens} tokens of the cache."
            )
        try:
            return self._local.read_spans(starts, lengths) if self._local else self._read_remote(starts, lengths)
        except DamagedArrayError as error:
            raise self._torn(error) from error

    @functools.cached_property
    def token_bytes(self) -> Int32[np.ndarray, "vocab_size"]:
        """Exact bytes of text of each id; special tokens have none."""
        array = self._array("token_bytes", TOKEN_BYTES_DTYPE, self.vocab_size)
        try:
            return array.finish_read(array.start_read(0, self.vocab_size))
        except DamagedArrayError as error:
            raise self._torn(error) from error

    def grow(self) -> None:
        """Raise CacheError: only a cache that is being built grows (growing_cache.py)."""
        raise CacheError(f"{self.path}: the cache is finished and has no more blocks.")

    def _read_remote(self, starts: Numbers, lengths: Numbers) -> Elements:
        tokens = np.empty(int(lengths.sum()), self.format.dtype)
        pending = []
        filled = 0
        shards = np.searchsorted(self._starts, starts, side="right") - 1
        begins = starts - self._starts[shards]
        for begin, length, shard in zip(begins.tolist(), lengths.tolist(), shards.tolist(), strict=True):
            while length:
                array = self._tokens[shard]
                count = min(length, self.shards[shard].num_tokens - begin)
                pending.append((filled, count, array, array.start_read(begin, begin + count)))
                filled, length, begin, shard = filled + count, length - count, 0, shard + 1
        for place, count, array, future in pending:
            tokens[place : place + count] = array.finish_read(future)
        return tokens

    def _check(self, what: str, recorded: str, expected: str | None, fix: str) -> None:
        if expected not in (None, recorded):
            raise CacheError(f"{self.path}: recorded {what}: {recorded[:12]}…; expected: {expected[:12]}…. {fix}")

    def _shard_array(self, shard: ShardRecord) -> FlatArray:
        return self._array(f"{shard.path}/tokens", self.format.dtype, shard.num_tokens)

    def _array(self, relative: str, dtype: np.dtype, length: int) -> FlatArray:
        try:
            return FlatArray(resolve(self.path, relative), dtype, length, self._context)
        except DamagedArrayError as error:
            raise self._torn(error) from error

    def _torn(self, reason: object) -> CacheError:
        return CacheError(
            f"{self.path}: the token cache is torn: {reason} Its files were changed or lost after they were committed. "
            "Restore them, or run the tokenize step that made it (its folder begins with the step's name) with "
            "--force STEP --until STEP."
        )


def resolve(folder: str, relative: str) -> str:
    """Return `relative` as seen from `folder`, a local path or a URL."""
    protocol, separator, rest = folder.rpartition("://")
    return protocol + separator + posixpath.normpath(posixpath.join(rest, relative))


def _read_manifest(path: str) -> dict:
    try:
        with fsspec.open(f"{path}/{MANIFEST}", "r") as file:
            text = file.read()
    except FileNotFoundError as error:
        raise CacheError(
            f"{path}: no {MANIFEST}, which the tokenize step writes last: there is no finished token cache here. Run "
            "that step, or check the path."
        ) from error
    try:
        document = json.loads(text)
        recorded = document.pop("crc32c")
    except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
        raise CacheError(f"{path}/{MANIFEST}: cut short or not a manifest ({error}). Tokenize again.") from error
    if document.get("format_version") != FORMAT:
        raise CacheError(
            f"{path}/{MANIFEST}: format version {document.get('format_version')}; this code reads version {FORMAT}. "
            "Tokenize again."
        )
    if recorded != checksum_of(document):
        raise CacheError(f"{path}/{MANIFEST}: changed after it was written: its CRC32C differs. Tokenize again.")
    return document


def checksum_of(document: dict) -> str:
    """Return the CRC32C that a manifest records of itself."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return google_crc32c.Checksum(canonical.encode()).digest().hex()
