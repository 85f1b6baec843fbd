"""Encoding: texts to ids on all cores, by tiktoken where it makes the ids of the tokenizers library, else by that.

benchmarks/tokenize_at_the_encoders_limit.py measures how fast each of the two is on the same text.
"""

import array
import hashlib
import re
import threading
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

COMPARED_TEXTS = 8
COMPARED_CHARACTERS = 1 << 10
"""The beginnings of this many texts of each call are encoded by both libraries and compared."""
MAX_ENCODINGS = 16
"""An encoding of 128,000 ids takes 35 MB."""
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

    def __init__(
        self,
        path: str,
        token_format: TokenFormat,
        library: Literal["auto", "tokenizers"] = "auto",
        *,
        num_threads: int = 1,
    ) -> None:
        """Read the file `path`; raise TokenizerMismatchError if it does not agree with `token_format`.

        The library "auto" is tiktoken, with so many threads, where its ids are provably the same, else tokenizers.
        """
        with fsspec.open(path, "rb") as file:
            content = file.read()
        digest, found = token_format.tokenizer_digest, hashlib.sha256(content).hexdigest()
        if found != digest:
            raise TokenizerMismatchError(
                f"{path}: recorded sha256: {digest[:12]}…; now: {found[:12]}…. The file was changed after it was "
                "committed; run the step that made the tokenizer with --force."
            )
        specials = (token_format.eos_token_id, token_format.bos_token_id)
        self._specials = [special for special in specials if special is not None]
        document = plain_document(content.decode(), frozenset(self._specials))
        self.token_bytes = token_bytes(document)
        if len(self.token_bytes) != token_format.vocab_size:
            raise TokenizerMismatchError(
                f"{path}: has {len(self.token_bytes)} ids; declared: {token_format.vocab_size}. Declare the vocabulary "
                "of the file: a model of another size would index past its embedding."
            )
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
        self._fast: _Encodings | None = None
        if library == "auto":
            try:
                self._use_tiktoken(ranks_of(document), num_threads)
            except NotConvertibleError as error:
                self.reason = f"tiktoken would make other ids: {error}"

    def _use_tiktoken(self, ranks: Ranks, num_threads: int) -> None:
        pool, fast = ThreadPoolExecutor(num_threads), _Encodings(ranks)
        try:
            pool.submit(fast.encode, "").result()
        except ValueError as error:  # the two libraries have different dialects of regular expressions
            raise NotConvertibleError(f"its pattern is none that tiktoken reads ({error})") from error
        # tiktoken knows no added tokens, so a text that spells one is left to tokenizers.
        self._added = re.compile("|".join(map(re.escape, ranks.added_texts))) if ranks.added_texts else None
        self.library, self.reason = "tiktoken", "tiktoken makes the same ids"
        self._pool, self._fast = pool, fast

    def encode(self, texts: Sequence[str], *, names: Sequence[str] | None = None) -> EncodedBatch:
        """Return the ids of each text, using all cores; `names` are the texts' names in errors."""
        if self._fast is None:
            found = self._encode_by_tokenizers(texts)
        else:
            self._compare(texts, names)
            found = list(self._pool.map(self._encode_fast, texts, chunksize=max(1, len(texts) // 64)))
        failures = {index: each for index, each in enumerate(found) if isinstance(each, str)}
        ids = [np.zeros(0, IDS_DTYPE) if isinstance(each, str) else each for each in found]
        num_changed = normalizer_bytes = 0
        if not self.normalizing.is_identity:
            for index, text in enumerate(texts):
                normalized = text if index in failures else self.normalizing(text)
                if normalized != text:
                    num_changed += 1
                    normalizer_bytes += len(normalized.encode()) - len(text.encode())
        return EncodedBatch(ids, failures, num_changed, normalizer_bytes)

    def _encode_by_tokenizers(self, texts: Sequence[str]) -> list[np.ndarray | str]:
        found: list[np.ndarray | str]
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            found = [np.array(encoding.ids, IDS_DTYPE) for encoding in encodings]
        except BaseException as error:
            _check_is_of_a_text(error)
            found = [self._encode_alone(text) for text in texts]
        for index, ids in enumerate(found):
            for special in self._specials:
                if not isinstance(ids, str) and np.any(ids == special):
                    found[index] = f"the tokenizer makes its special token {special} of the text"
        return found

    def _encode_alone(self, text: str) -> np.ndarray | str:
        """Return the ids by tokenizers, or why the text cannot be encoded."""
        try:
            return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, IDS_DTYPE)
        except BaseException as error:
            _check_is_of_a_text(error)
            return str(error)

    def _encode_fast(self, text: str) -> np.ndarray | str:
        assert self._fast is not None
        normalized = self.normalizing(text)
        if self._added is not None and (self._added.search(text) or self._added.search(normalized)):
            return self._encode_alone(text)
        try:
            ids = self._fast.encode(normalized)
        except BaseException as error:
            # tiktoken's regular expression runs out of stack on a million blanks in a row, that of tokenizers does not.
            _check_is_of_a_text(error)
            return self._encode_alone(text)
        # `encode_to_numpy` looks for special tokens and takes a quarter longer; NumPy reads a list three times slower.
        return np.frombuffer(array.array("I", ids), IDS_DTYPE)

    def _compare(self, texts: Sequence[str], names: Sequence[str] | None) -> None:
        chosen = range(0, len(texts), max(1, len(texts) // COMPARED_TEXTS))
        beginnings = [texts[index][:COMPARED_CHARACTERS] for index in chosen]
        expected = self._tokenizer.encode_batch(beginnings, add_special_tokens=False)
        fast = self._pool.map(self._encode_fast, beginnings)
        for index, text, found, encoding in zip(chosen, beginnings, fast, expected, strict=True):
            if not isinstance(found, str) and not np.array_equal(found, encoding.ids):
                same = min(len(found), len(encoding.ids))
                wrong = np.flatnonzero(found[:same] != np.array(encoding.ids[:same]))
                place = encoding.offsets[int(wrong[0]) if len(wrong) else same - 1][0]
                raise EncodersDifferError(
                    f"{names[index] if names else f'text {index}'}: tiktoken and tokenizers make different ids, first "
                    f"at character {place}: {text[place : place + EXCERPT_CHARACTERS]!r}. Run this step with "
                    'encoder="tokenizers".'
                )


class _Encodings:
    """Encodings of tiktoken, one for each of the first `MAX_ENCODINGS` threads; further threads share them.

    The first thread that uses an encoding has its regular expression at hand. Any other takes a quarter more time,
    for it has to ask for a copy at each piece of a text.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._made: list[tiktoken.Encoding] = []
        self._lock, self._num_threads, self._of_thread = threading.Lock(), 0, threading.local()

    def encode(self, text: str) -> list[int]:
        found: tiktoken.Encoding | None = getattr(self._of_thread, "encoding", None)
        if found is None:
            found = self._of_thread.encoding = self._next()
        return found.encode_ordinary(text)

    def _next(self) -> tiktoken.Encoding:
        """Return the encoding of one more thread."""
        with self._lock:
            index = self._num_threads % MAX_ENCODINGS
            if index == len(self._made):
                # No special tokens: text that spells one is text.
                pattern, ranks = self._ranks.pattern, self._ranks.mergeable_ranks
                made = tiktoken.Encoding("converted", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
                self._made.append(made)
            self._num_threads += 1
            return self._made[index]


def _check_is_of_a_text(error: BaseException) -> None:
    """Raise an error that is not the library's answer to a text."""
    # Rust's panic is no Exception, and its type cannot be imported.
    if type(error) is not Exception and type(error).__name__ != "PanicException":
        raise error
