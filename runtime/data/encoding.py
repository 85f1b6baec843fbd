"""Encoding: texts to ids on all cores, by tiktoken where it makes the ids of the tokenizers library, else by that.

benchmarks/tokenize_at_the_encoders_limit.py measures how fast each of the two is on the same text.
"""

import array
import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import fsspec
import numpy as np
import tiktoken

from runtime.data.cache import TokenFormat
from runtime.data.normalizing import Normalizing
from runtime.data.plain_tokenizer import plain_document, plain_tokenizer
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


class EncodedBatch(NamedTuple):
    """Ids of some texts, and what the tokenizer did to them."""

    ids: list[np.ndarray]
    """Bare ids of each text; none of a text that cannot be encoded."""
    failures: dict[int, str]
    """Why a text cannot be encoded, by its index."""
    num_changed: int
    """Encoded texts that the normaliser changes, so that decoding does not give them back."""
    normalizer_bytes: int
    """UTF-8 bytes that the normaliser adds to the encoded texts; negative where it takes some."""


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
        _check_digest(path, content, token_format)
        self._specials = [token_format.eos_token_id]
        if token_format.bos_token_id is not None:
            self._specials.append(token_format.bos_token_id)
        document = plain_document(content.decode(), frozenset(self._specials))
        self.token_bytes = _checked_token_bytes(path, document, token_format)
        self._tokenizer = plain_tokenizer(document)
        self.normalizing = Normalizing(document["normalizer"])
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self.unknown_id = None if unknown is None else self._tokenizer.token_to_id(unknown)
        """None also where it is EOS or BOS, which no document holds."""
        if self.unknown_id in self._specials:
            self.unknown_id = None
        self.library: Literal["tokenizers", "tiktoken"] = "tokenizers"
        self.reason = "tokenizers is configured"
        """Why `library` encodes."""
        self._fast = None
        if library == "tokenizers":
            return
        try:
            ranks = ranks_of(document)
        except NotConvertibleError as error:
            self.reason = f"tiktoken would make other ids: {error}"
            if library == "tiktoken":
                raise NotConvertibleError(f'{path}: {self.reason}. Use encoder="tokenizers" or "auto".') from error
            return
        self._fast = _encoding(ranks)
        # tiktoken knows no added tokens, so a text that spells one is left to tokenizers.
        self._added = re.compile("|".join(map(re.escape, ranks.added_texts))) if ranks.added_texts else None
        self.library, self.reason = "tiktoken", "tiktoken makes the same ids"
        self._pool = ThreadPoolExecutor(_num_threads())

    def encode(self, texts: Sequence[str], *, names: Sequence[str] | None = None) -> EncodedBatch:
        """Return the ids of each text, using all cores; `names` are the texts' names in errors.

        Raises:
            EncodersDifferError: the two libraries differ on one of the texts that are compared.
        """
        failures: dict[int, str] = {}
        if self._fast is None:
            ids = self._encode_by_tokenizers(texts, failures)
        else:
            self._compare(texts, names)
            ids = list(self._pool.map(self._encode_fast, texts, chunksize=max(1, len(texts) // 64)))
        num_changed = normalizer_bytes = 0
        if not self.normalizing.is_identity:
            for index, text in enumerate(texts):
                normalized = text if index in failures else self.normalizing(text)
                if normalized != text:
                    num_changed += 1
                    normalizer_bytes += len(normalized.encode()) - len(text.encode())
        return EncodedBatch(ids, failures, num_changed, normalizer_bytes)

    def _encode_by_tokenizers(self, texts: Sequence[str], failures: dict[int, str]) -> list[np.ndarray]:
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            found = [np.array(encoding.ids, IDS_DTYPE) for encoding in encodings]
        except BaseException as error:
            _check_is_of_a_text(error)
            found = [self._encode_alone(index, text, failures) for index, text in enumerate(texts)]
        for index, ids in enumerate(found):
            for special in self._specials:
                if np.any(ids == special):
                    failures[index] = f"the tokenizer makes its special token {special} of the text"
                    found[index] = np.zeros(0, IDS_DTYPE)
        return found

    def _encode_alone(self, index: int, text: str, failures: dict[int, str]) -> np.ndarray:
        try:
            return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, IDS_DTYPE)
        except BaseException as error:
            _check_is_of_a_text(error)
            failures[index] = str(error)
            return np.zeros(0, IDS_DTYPE)

    def _encode_fast(self, text: str) -> np.ndarray:
        assert self._fast is not None
        normalized = self.normalizing(text)
        if self._added is not None and (self._added.search(text) or self._added.search(normalized)):
            return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, IDS_DTYPE)
        try:
            ids = self._fast.encode_ordinary(normalized)
        except BaseException as error:
            # tiktoken's regular expression runs out of stack on a million blanks in a row, that of tokenizers does not.
            _check_is_of_a_text(error)
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


def _check_is_of_a_text(error: BaseException) -> None:
    """Raise an error that is not the library's answer to a text."""
    # Rust's panic is no Exception, and its type cannot be imported.
    if type(error) is not Exception and type(error).__name__ != "PanicException":
        raise error


def _check_digest(path: str, content: bytes, token_format: TokenFormat) -> None:
    digest, found = token_format.tokenizer_digest, hashlib.sha256(content).hexdigest()
    if found != digest:
        raise TokenizerMismatchError(
            f"{path}: recorded sha256: {digest[:12]}…; now: {found[:12]}…. The file was changed after it was "
            "committed; run the step that made the tokenizer with --force."
        )


def _checked_token_bytes(path: str, document: dict, token_format: TokenFormat) -> np.ndarray:
    """Return the byte lengths of the ids, or raise TokenizerMismatchError for another number of ids."""
    lengths = token_bytes(document)
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
