"""Encoding: texts to ids on all cores, by tiktoken where it makes the ids of the tokenizers library, else by that.

benchmarks/tokenize_at_the_encoders_limit.py measures how fast each of the two is on the same text.
"""

import array
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import fsspec
import numpy as np
import tiktoken
from tokenizers import Tokenizer

from runtime.data.cache import TokenFormat
from runtime.data.ranks import NotConvertibleError, Ranks, ranks_of
from runtime.data.token_bytes import token_bytes

EncoderName = Literal["auto", "tokenizers", "tiktoken"]

COMPARED_TEXTS = 8
COMPARED_CHARACTERS = 1 << 10
"""The beginnings of this many texts of each call are encoded by both libraries and compared."""
IDS_DTYPE = np.uint32
EXCERPT_CHARACTERS = 60


class TokenizerMismatchError(ValueError):
    """A tokenizer file that is not the one whose identity the step declares."""


class EncodersDifferError(ValueError):
    """A text of which tiktoken and tokenizers make different ids."""


class Encoder:
    """A `tokenizer.json` as a function from texts to ids; text that spells a special token is plain text."""

    def __init__(self, path: str, token_format: TokenFormat, library: EncoderName = "auto") -> None:
        """Read `tokenizer.json` from `path`.

        Args:
            path: The file.
            token_format: Expected meaning of its ids.
            library: "auto" uses tiktoken where its ids are provably the same, else tokenizers.

        Raises:
            TokenizerMismatchError: the file does not agree with `token_format`.
            NotConvertibleError: `library` is "tiktoken", which would make other ids.
        """
        with fsspec.open(path, "rb") as file:
            content = file.read()
        self.token_bytes = _checked_token_bytes(path, content, token_format)
        self._tokenizer = Tokenizer.from_str(content.decode())
        # A web page that spells out the end-of-text token must not end its document.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self.unknown_id = None if unknown is None else self._tokenizer.token_to_id(unknown)
        """None also where it is EOS or BOS, which the cache writer refuses inside a document."""
        if self.unknown_id in (token_format.eos_token_id, token_format.bos_token_id):
            self.unknown_id = None
        self.library: Literal["tokenizers", "tiktoken"] = "tokenizers"
        self.reason = "tokenizers is configured"
        """Why `library` encodes."""
        self._fast = None
        if library == "tokenizers":
            return
        try:
            self._fast = _encoding(ranks_of(content.decode()))
        except NotConvertibleError as error:
            self.reason = f"tiktoken would make other ids: {error}"
            if library == "tiktoken":
                raise NotConvertibleError(f'{path}: {self.reason}. Use encoder="tokenizers" or "auto".') from error
            return
        self.library, self.reason = "tiktoken", "tiktoken makes the same ids"
        self._pool = ThreadPoolExecutor(_num_threads())

    def encode(self, texts: Sequence[str], *, names: Sequence[str] | None = None) -> list[np.ndarray]:
        """Return the bare ids of each text, using all cores; `names` are the texts' names in errors.

        Raises:
            EncodersDifferError: the two libraries differ on one of the texts that are compared.
        """
        if self._fast is None:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array(encoding.ids, IDS_DTYPE) for encoding in encodings]
        self._compare(texts, names)
        return list(self._pool.map(self._encode_fast, texts, chunksize=max(1, len(texts) // 64)))

    def _encode_fast(self, text: str) -> np.ndarray:
        assert self._fast is not None
        try:
            ids = self._fast.encode_ordinary(text)
        except BaseException as error:
            # tiktoken's regular expression runs out of stack on a million blanks in a row. Rust's panic is no
            # Exception and its type cannot be imported. The tokenizers library has no such limit.
            if type(error).__name__ != "PanicException":
                raise
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        # `encode_to_numpy` looks for special tokens and takes a quarter longer; NumPy reads a list three times slower.
        return np.frombuffer(array.array("I", ids), IDS_DTYPE)

    def _compare(self, texts: Sequence[str], names: Sequence[str] | None) -> None:
        chosen = range(0, len(texts), max(1, len(texts) // COMPARED_TEXTS))
        beginnings = [texts[index][:COMPARED_CHARACTERS] for index in chosen]
        expected = self._tokenizer.encode_batch(beginnings, add_special_tokens=False)
        for index, text, encoding in zip(chosen, beginnings, expected, strict=True):
            found = self._encode_fast(text)
            if not np.array_equal(found, encoding.ids):
                same = min(len(found), len(encoding.ids))
                wrong = np.flatnonzero(found[:same] != np.array(encoding.ids[:same]))
                place = encoding.offsets[int(wrong[0]) if len(wrong) else same - 1][0]
                raise EncodersDifferError(
                    f"{names[index] if names else f'text {index}'}: tiktoken and tokenizers make different ids, first "
                    f"at character {place}: {text[place : place + EXCERPT_CHARACTERS]!r}. Run this step with "
                    'encoder="tokenizers".'
                )


def _checked_token_bytes(path: str, content: bytes, token_format: TokenFormat) -> np.ndarray:
    """Return the byte lengths of the ids of a tokenizer file, or raise TokenizerMismatchError for another file."""
    digest, found = token_format.tokenizer_digest, hashlib.sha256(content).hexdigest()
    if found != digest:
        raise TokenizerMismatchError(
            f"{path}: recorded sha256: {digest[:12]}…; now: {found[:12]}…. The file was changed after it was "
            "committed; run the step that made the tokenizer with --force."
        )
    lengths = token_bytes(content.decode())
    if len(lengths) != token_format.vocab_size:
        raise TokenizerMismatchError(
            f"{path}: has {len(lengths)} ids; declared: {token_format.vocab_size}. Declare the vocabulary of the file: "
            "a model of another size would index past its embedding."
        )
    return lengths


def _encoding(ranks: Ranks) -> tiktoken.Encoding:
    # No special tokens: text that spells one is text.
    return tiktoken.Encoding(
        "converted", pat_str=ranks.pattern, mergeable_ranks=ranks.mergeable_ranks, special_tokens={}
    )


def _num_threads() -> int:
    """Return the cores of this process; OMP_NUM_THREADS lowers them, as for other libraries."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, int(os.environ.get("OMP_NUM_THREADS") or cores))
