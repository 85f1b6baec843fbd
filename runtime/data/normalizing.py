"""Normalizing: what the normaliser of a `tokenizer.json` makes of a text, without the marks that stand for spaces.

Unicode forms are computed by Python, ten times as fast as by the tokenizers library. The two have Unicode tables of
different years, so a text with a character that could differ is normalised by the library.
"""

import functools
import json
import unicodedata
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool
from tokenizers import Tokenizer

from runtime.data.token_bytes import SPACE_MARK

UNICODE_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_IN_TABLE = 0x2FA20
"""Characters from here on are rare, and all count as newer."""
# Pictographs and ideographs that no form changes, assigned after Unicode 3.2.
_INERT = ((0x9FA6, 0x9FFF), (0x1F300, 0x1FAFF))


class Normalizing:
    """A function from a text to its normalised form."""

    def __init__(self, part: dict | None) -> None:
        """Take the value of `normalizer` in a tokenizer.json."""
        parts = [each for each in _flat(part) if not _marks_spaces(each)]
        self._steps = [_step(each) for each in parts]
        self.name = ", ".join(each["type"] for each in parts)
        self.is_unicode_form = all(each["type"] in UNICODE_FORMS for each in _flat(part))
        """Whether it does no more than bring texts into a Unicode form."""
        self.is_identity = not parts

    def __call__(self, text: str) -> str:
        for step in self._steps:
            text = step(text)
        return text


def _flat(part: dict | None) -> Iterator[dict]:
    if part is not None and part["type"] == "Sequence":
        for each in part["normalizers"]:
            yield from _flat(each)
    elif part is not None:
        yield part


def _marks_spaces(part: dict) -> bool:
    """Return whether a part only writes SentencePiece's mark for a space, which decoding takes back."""
    match part:
        case {"type": "Prepend", "prepend": mark} | {"type": "Replace", "pattern": {"String": " "}, "content": mark}:
            return bool(mark == SPACE_MARK)
    return False


def _step(part: dict) -> Callable[[str], str]:
    by_library = _library(part).normalize_str
    if part["type"] not in UNICODE_FORMS:
        return by_library

    def normalized(text: str) -> str:
        if text.isascii():
            return text
        if _is_newer()[np.frombuffer(text.encode("utf-32-le"), "<u4")].any():
            return str(by_library(text))
        return unicodedata.normalize(part["type"], text)

    return normalized


def _library(part: dict):  # type: ignore[no-untyped-def]  # the library has no public type for it
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "normalizer": part, "model": empty})).normalizer


@functools.cache
def _is_newer() -> Bool[np.ndarray, "code_points"]:
    """Return, by code point, whether the forms of a character may depend on the version of Unicode.

    Forms of characters that Unicode 3.2 has never change (Unicode's stability policy).
    """
    old = unicodedata.ucd_3_2_0
    newer = np.ones(0x110000, bool)
    newer[:_IN_TABLE] = [old.category(chr(place)) == "Cn" for place in range(_IN_TABLE)]
    for first, last in _INERT:
        newer[first : last + 1] = False
    return newer
