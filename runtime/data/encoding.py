"""Encoding: texts to ids on all cores, by tiktoken where it gives the ids of the tokenizer's own library, else by that.

How fast each of the two is on the same text, benchmarks/tokenize_at_the_encoders_limit.py measures in one run.
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
"""Of so many texts of each call, spread over it, so much of the beginning is encoded by both libraries and compared."""
IDS_DTYPE = np.uint32
EXCERPT_CHARACTERS = 60


class TokenizerMismatchError(ValueError):
    """A tokenizer file that is not the one whose identity the step declares."""


class EncodersDifferError(ValueError):
    """A text of which tiktoken and tokenizers make different ids."""


class Encoder:
    """A `tokenizer.json` as a plain function from texts to ids; what a text spells is never a special token."""

    def __init__(self, path: str, token_format: TokenFormat, library: EncoderName = "auto") -> None:
        """Reads the file.

        Args:
            path: Of `tokenizer.json`.
            token_format: What its ids are expected to mean.
            library: "auto" takes tiktoken where its ids are provably the same, and tokenizers where not.

        Raises:
            TokenizerMismatchError: it is another file than `token_format` tells.
            NotConvertibleError: tiktoken is asked for and cannot give the same ids.
        """
        with fsspec.open(path, "rb") as file:
            content = file.read()
        found = hashlib.sha256(content).hexdigest()
        digest = token_format.tokenizer_digest
        if found != digest:
            raise TokenizerMismatchError(
                f"{path}: recorded sha256: {digest[:12]}…; now: {found[:12]}…. The file was changed after it was "
                "committed; run the step that made the tokenizer with --force."
            )
        self.token_bytes = token_bytes(content.decode())
        if len(self.token_bytes) != token_format.vocab_size:
            raise TokenizerMismatchError(
                f"{path}: has {len(self.token_bytes)} ids, recorded is a vocabulary of {token_format.vocab_size}. "
                "Declare the vocabulary that the file has: a model of another size would index past its embedding."
            )
        self._tokenizer = Tokenizer.from_str(content.decode())
        # A web page that spells out the end-of-text token must not end its document.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self.unknown_id = None if unknown is None else self._tokenizer.token_to_id(unknown)
        """None also where it closes or opens documents: the cache's writer refuses it inside of one."""
        if self.unknown_id in (token_format.eos_token_id, token_format.bos_token_id):
            self.unknown_id = None
        ranks = None
        try:
            ranks = ranks_of(content.decode())
            self.reason = f"tiktoken gives its ids: {ranks.proof}"
        except NotConvertibleError as error:
            self.reason = f"tiktoken cannot give its ids: {error}"
        self.library: Literal["tokenizers", "tiktoken"] = "tokenizers" if ranks is None else "tiktoken"
        """The one that encodes."""
        if library != "auto":
            self.library = library
        self._fast = None
        if self.library == "tiktoken":
            if ranks is None:
                raise NotConvertibleError(f'{path}: {self.reason}; take encoder="tokenizers", or "auto".')
            self._fast = _encoding(ranks)
            self._pool = ThreadPoolExecutor(_num_threads())

    def encode(self, texts: Sequence[str], *, names: Sequence[str] | None = None) -> list[np.ndarray]:
        """Bare ids of each text, on all cores; `names` are what errors call the texts.

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
            # A million blanks in a row, and its regular expression is out of stack. Rust tells that by a panic, which
            # is no Exception and has no name to import. The other library has no such limit.
            if type(error).__name__ != "PanicException":
                raise
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        # Not `encode_to_numpy`: it looks for special tokens, of which there are none, and takes a quarter longer. And
        # NumPy takes three times as long as `array` to read a list.
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
                    f"{names[index] if names else f'text {index}'}: tiktoken and tokenizers make different ids of it, "
                    f"first at character {place}: {text[place : place + EXCERPT_CHARACTERS]!r}. Run this step with "
                    'encoder="tokenizers"; its output is not affected by what the other would have made.'
                )


def _encoding(ranks: Ranks) -> tiktoken.Encoding:
    # No special tokens: what a text spells is text.
    return tiktoken.Encoding(
        "converted", pat_str=ranks.pattern, mergeable_ranks=ranks.mergeable_ranks, special_tokens={}
    )


def _num_threads() -> int:
    """Cores of this process; a worker that was given fewer is told so by this variable, as all libraries are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, int(os.environ.get("OMP_NUM_THREADS") or cores))
