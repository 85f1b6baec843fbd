"""Spans: three sentences in a row that also occur elsewhere in the corpus (C4, arXiv:1910.10683, section 2.2).

"We discarded all but one of any three-sentence span occurring more than once in the data set." In detail:

- A sentence ends after one of . ! ? … 。 ！ ？ and closing quotation marks and brackets, before white space or the end
  of the text; and at the end of a line. (C4 uses a model of English.)
- Two spans are equal if their sentences are, in lower case and with single spaces.
- A span needs `min_words` words: C4's lines have three words at least.
- A span repeats an equal span before it, in order of document and position, that it does not overlap. The sentences of
  repeats are removed; the others keep their order.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from runtime.text.span_rule import RepeatedSpans

SENTENCES_PER_SPAN = 3
_SENTENCE = re.compile(r"""\S(?:[^\n]*?[.!?…。！？]["'”’»)\]]*(?=\s|$)|[^\n]*)""")


class Sentence(NamedTuple):
    """The place of a sentence in characters, without the white space around it."""

    start: int
    end: int


def sentences(text: str) -> list[Sentence]:
    """Return the sentences of a text, in order."""
    found = []
    for match in _SENTENCE.finditer(text):
        trimmed = match.group().rstrip()
        found.append(Sentence(match.start(), match.start() + len(trimmed)))
    return found


def span_keys(text: str, rule: RepeatedSpans) -> tuple[int, np.ndarray]:
    """Return the number of sentences, and uint64[sentences - 2, 2]: a key for the span that begins at each.

    Keys are 128 bits of BLAKE2b; the key of a span of too few words is 0.
    """
    found = sentences(text)
    words = [text[sentence.start : sentence.end].lower().split() for sentence in found]
    digests = [_digest(" ".join(of_sentence).encode(errors="surrogatepass")) for of_sentence in words]
    keys = bytearray()
    for first in range(max(0, len(found) - SENTENCES_PER_SPAN + 1)):
        span = range(first, first + SENTENCES_PER_SPAN)
        long = sum(len(words[place]) for place in span) >= rule.min_words
        keys += _digest(b"".join(digests[place] for place in span)) if long else bytes(16)
    return len(found), np.frombuffer(bytes(keys), "<u8").reshape(-1, 2)


def without_sentences(text: str, gone: Sequence[bool]) -> str:
    """Return a text without these sentences; of the gaps around removed ones, the widest stays."""
    found = sentences(text)
    kept = [place for place in range(len(found)) if not gone[place]]
    if not kept:
        return ""
    parts = [text[found[kept[0]].start : found[kept[0]].end]]
    for before, after in itertools.pairwise(kept):
        gaps = (text[found[place].end : found[place + 1].start] for place in range(before, after))
        parts += [max(gaps, key=lambda gap: gap.count("\n")), text[found[after].start : found[after].end]]
    return "".join(parts)


def covered(num_sentences: int, repeats: Iterator[int] | Sequence[int]) -> np.ndarray:
    """Return bool[sentences]: the sentences of spans that begin at `repeats`."""
    gone = np.zeros(num_sentences, bool)
    for first in repeats:
        gone[first : first + SENTENCES_PER_SPAN] = True
    return gone


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
