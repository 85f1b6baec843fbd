"""Token cache: the tokens of one source in one long row, every document closed by EOS; complete or invisible.

A cache is a manifest, `cache.json`, written last, over shards written independently of each other:

    cache.json               counts, checksums, digests of the tokenizer and of the text, and where the shards are
    token_bytes/             bytes of text that each token id stands for
    <shard>/tokens/          all documents of the shard, one after another, each closed by EOS
    <shard>/document_ends/   for each document, the place in `tokens` behind its EOS

Positions count over all shards in the manifest's order. Consecutive shards form blocks, which `order.py` reads one
after the other; a cache is one block unless whoever wrote it says otherwise. No date, host, attempt or path is written:
equal documents of one step and equal tokenizers give equal bytes.
"""

import functools
import json
import posixpath
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import fsspec
import google_crc32c
import numpy as np
import tensorstore as ts
from jaxtyping import Int32, Int64, Integer

from runtime.data.activity import Activity
from runtime.data.flat_array import FlatArray, FlatArrayError, read_context
from runtime.data.key_value_store import key_value_store
from runtime.data.local_arrays import LocalArrayError, LocalArrays

MANIFEST = "cache.json"
FORMAT = 3
CHUNK_CACHE_IN_BYTES = 64 << 20
SHARDS_OPENED_AT_ONCE = 32
DOCUMENT_ENDS_DTYPE = np.dtype(np.int64)
TOKEN_BYTES_DTYPE = np.dtype(np.int32)


class CacheError(ValueError):
    """A cache that is missing, torn or not the one asked for; the message names the path and the cure."""


@dataclass(frozen=True, kw_only=True)
class TokenFormat:
    """What the ids of a cache mean; all its shards share it."""

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
                f"TokenFormat.bos_token_id and eos_token_id are both {self.eos_token_id}: the end of a document could "
                "not be told from its beginning. Pass bos_token_id=None."
            )

    @property
    def dtype(self) -> np.dtype:
        """The narrowest unsigned integers that hold the vocabulary."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """What the manifest knows about one shard."""

    path: str
    """Relative to the cache's folder; may lead out of it and back into the same output."""
    num_tokens: int
    num_documents: int
    num_bytes: int
    """UTF-8 bytes of the text that went in."""
    tokens_crc32c: str
    document_ends_crc32c: str


class TokenCache:
    """Reads a finished cache: any window of any length, from a local folder, `gs://` or `s3://`."""

    is_whole: bool = True
    """Nothing is added to it any more; see runtime/data/growing_cache.py."""

    def __init__(
        self,
        path: str,
        token_format: TokenFormat,
        shards: Sequence[ShardRecord],
        shards_by_block: Sequence[int],
        token_bytes_crc32c: str,
        documents_digest: str | None,
        context: ts.Context,
    ) -> None:
        """For `open`, which checks what it passes here."""
        self.path = path
        self.format = token_format
        self.documents_digest = documents_digest
        """Identity of the step that wrote the documents; None for ids that were never text."""
        self.shards = tuple(shards)
        self.num_tokens = sum(shard.num_tokens for shard in shards)
        self.num_documents = sum(shard.num_documents for shard in shards)
        self.num_bytes = sum(shard.num_bytes for shard in shards)
        self.vocab_size = token_format.vocab_size
        self.eos_token_id = token_format.eos_token_id
        self._token_bytes_crc32c = token_bytes_crc32c
        self._starts = np.cumsum([0, *(shard.num_tokens for shard in shards)])
        self._first_documents = np.cumsum([0, *(shard.num_documents for shard in shards)])
        self._shard_ends = np.cumsum(shards_by_block).tolist()
        self.block_ends = tuple(self._starts[self._shard_ends].tolist())
        """For each block, the position behind its last token."""
        self._context = context
        self._tokens: dict[int, FlatArray] = {}
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
        """Opens the cache whose manifest lies in `path`, or raises `CacheError`.

        Every shard must be there with the recorded length; contents are checked chunk by chunk as they are
        read, or all at once by `verify`. An `OSError` is of the store or of this machine, and none of the cache. The
        digests are what the caller expects, None whatever they are. Caches that are opened with one `context` share its
        pool of chunks.
        """
        document = _read_manifest(path)
        cache = cls(
            path,
            TokenFormat(**document["format"]),
            [ShardRecord(**shard) for shard in document["shards"]],
            document["shards_by_block"],
            document["token_bytes_crc32c"],
            document["documents_digest"],
            context or read_context(CHUNK_CACHE_IN_BYTES),
        )
        recorded = cache.format.tokenizer_digest
        if tokenizer_digest is not None and tokenizer_digest != recorded:
            raise CacheError(
                f"{path}: recorded tokenizer: {recorded[:12]}…; expected: {tokenizer_digest[:12]}…. Its ids mean "
                "other text; tokenize the documents again with the tokenizer you expect."
            )
        if documents_digest is not None and documents_digest != cache.documents_digest:
            raise CacheError(
                f"{path}: recorded documents: {_short(cache.documents_digest)}; expected: {_short(documents_digest)}. "
                "It is made of another text; take the cache of the documents you expect (`ls` lists steps by digest)."
            )
        # One after another, ten thousand shards on a distant store would hold up the first batch for minutes.
        with ThreadPoolExecutor(SHARDS_OPENED_AT_ONCE) as pool:
            list(pool.map(cache._shard_tokens, range(len(cache.shards))))
        cache._local = cache._local_arrays()
        return cache

    def read(self, start: int, length: int) -> Integer[np.ndarray, "length"]:
        """`length` tokens from position `start` on, as uint16 or uint32; checked against their checksums."""
        return self.read_windows(np.array([start], np.int64), length)[0]

    def read_windows(self, starts: Int64[np.ndarray, "n"], length: int) -> Integer[np.ndarray, "n length"]:
        """One window of `length` tokens from each of `starts`; all reads are under way at once."""
        return self.read_spans(starts, np.full(len(starts), length, np.int64)).reshape(len(starts), length)

    def read_spans(
        self, starts: Int64[np.ndarray, "n"], lengths: Int64[np.ndarray, "n"]
    ) -> Integer[np.ndarray, "sum_of_lengths"]:
        """The tokens of each span, one span after the other; all reads are under way at once."""
        if np.any(lengths < 0) or np.any(starts < 0) or np.any(starts + lengths > self.num_tokens):
            raise IndexError(
                f"{self.path}: spans of {lengths.tolist()[:8]} tokens from {starts.tolist()[:8]} do not lie within the "
                f"{self.num_tokens} tokens of the cache."
            )
        try:
            return self._local.read_spans(starts, lengths) if self._local else self._read_afar(starts, lengths)
        except (FlatArrayError, LocalArrayError) as error:
            raise self._torn(error) from error

    @functools.cached_property
    def document_offsets(self) -> Int64[np.ndarray, "num_documents_plus_1"]:
        """Where each document begins, and at the end `num_tokens`; document i is [offsets[i], offsets[i + 1])."""
        return np.concatenate([np.zeros(1, np.int64), self._document_ends(0, self.num_documents)])

    def num_documents_of(self, block: int) -> int:
        """Documents of a block."""
        first, last = self._documents_of(block)
        return last - first

    def document_ends(self, block: int, first: int = 0, last: int | None = None) -> Int64[np.ndarray, "documents"]:
        """Where the documents `first` to `last` of a block end, all of them if left out, as positions in the cache."""
        begin, end = self._documents_of(block)
        return self._document_ends(begin + first, end if last is None else begin + last)

    @functools.cached_property
    def token_bytes(self) -> Int32[np.ndarray, "vocab_size"]:
        """Exact bytes of text of each id; special tokens have none."""
        return self._read_all("token_bytes", TOKEN_BYTES_DTYPE, self.vocab_size)

    def grow(self, activity: Activity) -> None:
        """For those that are still being built; see runtime/data/growing_cache.py."""
        raise CacheError(f"{self.path}: the cache is finished; nothing is added to it any more.")

    def verify(self) -> None:
        """Reads everything and compares checksums and boundaries; raises `CacheError` at the first difference."""
        for index, shard in enumerate(self.shards):
            try:
                tokens = self._shard_tokens(index).crc32c()
                ends = self._array(f"{shard.path}/document_ends", DOCUMENT_ENDS_DTYPE, shard.num_documents).crc32c()
            except FlatArrayError as error:
                raise self._torn(error) from error
            for name, found in (("tokens", tokens), ("document_ends", ends)):
                recorded = getattr(shard, f"{name}_crc32c")
                if found != recorded:
                    raise self._torn(f"{shard.path}/{name}: recorded crc32c: {recorded}; now: {found}.")
        if self._array("token_bytes", TOKEN_BYTES_DTYPE, self.vocab_size).crc32c() != self._token_bytes_crc32c:
            raise self._torn(f"token_bytes: crc32c is not the recorded {self._token_bytes_crc32c}.")

    def _read_afar(
        self, starts: Int64[np.ndarray, "n"], lengths: Int64[np.ndarray, "n"]
    ) -> Integer[np.ndarray, "sum_of_lengths"]:
        tokens = np.empty(int(lengths.sum()), self.format.dtype)
        under_way = []
        filled = 0
        shards = np.searchsorted(self._starts, starts, side="right") - 1
        begins = starts - self._starts[shards]
        for begin, length, shard in zip(begins.tolist(), lengths.tolist(), shards.tolist(), strict=True):
            while length:
                array = self._shard_tokens(shard)
                count = min(length, self.shards[shard].num_tokens - begin)
                under_way.append((filled, count, array, array.start_read(begin, begin + count)))
                filled, length, begin, shard = filled + count, length - count, 0, shard + 1
        for place, count, array, future in under_way:
            tokens[place : place + count] = array.finish_read(future)
        return tokens

    def _local_arrays(self) -> LocalArrays | None:
        """What maps the files, where they lie on a disk of this machine and in its own order of bytes."""
        if key_value_store(self.path)["driver"] != "file" or sys.byteorder != "little" or not self.shards:
            return None
        layouts = {self._shard_tokens(index).layout for index in range(len(self.shards))}
        if len(layouts) > 1:
            raise self._torn(f"its shards are laid out in {len(layouts)} ways: {sorted(layouts)}.")
        ((file_length, chunk_length),) = layouts
        return LocalArrays(
            [key_value_store(resolve(self.path, f"{shard.path}/tokens"))["path"] for shard in self.shards],
            [shard.num_tokens for shard in self.shards],
            self.format.dtype,
            file_length=file_length,
            chunk_length=chunk_length,
        )

    def _documents_of(self, block: int) -> tuple[int, int]:
        """First document of a block, and the one behind its last."""
        return (
            int(self._first_documents[self._shard_ends[block - 1] if block else 0]),
            int(self._first_documents[self._shard_ends[block]]),
        )

    def _document_ends(self, first: int, last: int) -> Int64[np.ndarray, "documents"]:
        under_way = []
        while first < last:
            index = int(np.searchsorted(self._first_documents, first, side="right")) - 1
            shard, before = self.shards[index], int(self._first_documents[index])
            array = self._array(f"{shard.path}/document_ends", DOCUMENT_ENDS_DTYPE, shard.num_documents)
            until = min(last - before, shard.num_documents)
            under_way.append((index, array, array.start_read(first - before, until)))
            first = before + until
        found = [np.zeros(0, np.int64)]
        for index, array, future in under_way:
            found.append(self._finished(array, future) + self._starts[index])
        return np.concatenate(found)

    def _shard_tokens(self, index: int) -> FlatArray:
        if index not in self._tokens:
            shard = self.shards[index]
            self._tokens[index] = self._array(f"{shard.path}/tokens", self.format.dtype, shard.num_tokens)
        return self._tokens[index]

    def _array(self, relative: str, dtype: np.dtype, length: int) -> FlatArray:
        try:
            return FlatArray(resolve(self.path, relative), dtype, length, self._context)
        except FlatArrayError as error:
            raise self._torn(error) from error

    def _read_all(self, relative: str, dtype: np.dtype, length: int) -> np.ndarray:
        array = self._array(relative, dtype, length)
        return self._finished(array, array.start_read(0, length))

    def _finished(self, array: FlatArray, future: ts.Future) -> np.ndarray:
        try:
            return array.finish_read(future)
        except FlatArrayError as error:
            raise self._torn(error) from error

    def _torn(self, reason: object) -> CacheError:
        return CacheError(
            f"{self.path}: the token cache is torn: {reason} Its files were changed or lost after they were committed; "
            "restore them, or run the tokenize step that made it, by whose name its folder begins, with "
            "--force STEP --until STEP."
        )


def write_manifest(
    path: str,
    token_format: TokenFormat,
    shards: Sequence[ShardRecord],
    *,
    shards_by_block: Sequence[int],
    token_bytes_crc32c: str,
    documents_digest: str | None,
) -> None:
    """Makes a cache of finished shards visible; the last thing that is written."""
    document = {
        "shards_by_block": list(shards_by_block),
        "shards": [asdict(shard) for shard in shards],
        "format": asdict(token_format),
        "format_version": FORMAT,
        "token_bytes_crc32c": token_bytes_crc32c,
        "documents_digest": documents_digest,
    }
    document["crc32c"] = _checksum(document)
    with fsspec.open(f"{path}/{MANIFEST}", "w", auto_mkdir=True) as file:
        file.write(json.dumps(document, indent=1, sort_keys=True) + "\n")


def resolve(folder: str, relative: str) -> str:
    """`relative` seen from `folder`; local path or URL."""
    protocol, separator, rest = folder.rpartition("://")
    return protocol + separator + posixpath.normpath(posixpath.join(rest, relative))


def _read_manifest(path: str) -> dict:
    try:
        with fsspec.open(f"{path}/{MANIFEST}", "r") as file:
            text = file.read()
    except FileNotFoundError as error:
        raise CacheError(
            f"{path}: no {MANIFEST}, so there is no finished token cache here; the tokenize step writes it last. "
            "Run that step, or check the path."
        ) from error
    try:
        document = json.loads(text)
        recorded = document.pop("crc32c")
    except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
        raise CacheError(f"{path}/{MANIFEST}: cut short or not a manifest ({error}); tokenize again.") from error
    if document.get("format_version") != FORMAT:
        raise CacheError(
            f"{path}/{MANIFEST}: format version {document.get('format_version')}; this version reads {FORMAT}. "
            "Tokenize again."
        )
    if recorded != _checksum(document):
        raise CacheError(f"{path}/{MANIFEST}: changed after it was written (its crc32c differs); tokenize again.")
    return document


def _short(digest: str | None) -> str:
    return "none" if digest is None else f"{digest[:12]}…"


def _checksum(document: dict) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return google_crc32c.Checksum(canonical.encode()).digest().hex()
