"""Decontamination: documents that share runs of words with evaluation items (`runtime.text.item_index`).

Words are compared without case, punctuation and layout (`runtime.text.folding`). A text is also searched without its
zero-width spaces and hyphens at line ends, which may divide a word, and with the characters of its HTML references.

Every item with a run is hit. If more than `MAX_NAMED_FIELDS` fields of a task have it, such as a common prompt, the
first ones are named.
"""

import functools
import html
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from runtime.text.batch import Segments, TextBatch, growing_ngrams, ngram_hashes
from runtime.text.item_index import read_index, read_table
from runtime.text.items import ItemField

PARTNER_WORDS = 64
"""So many words before or after a question its answer is looked for."""
_MAX_TABLE_BITS = 24
_REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_HYPHEN_AND_NEWLINE = re.compile(r"[-\u2010\u00ad](?<=\w.)[ \t]*\r?\n[ \t]*(?=\w)")
_ZERO_WIDTH_SPACE = "\u200b"
_NOTHING = ("\u00ad", "\u2060")
"""Characters that words are compared without, of two and of three bytes."""


class Hit(NamedTuple):
    """A run of words that a document shares with an item; positions are UTF-8 bytes of the document's text.

    The words may be in several fields of the item; `field` has the first of them.
    """

    document: int
    start: int
    end: int
    task: str
    item: int
    field: str
    num_words: int
    excerpt: str


class _Lookup(NamedTuple):
    """Runs of one length: their hashes, sorted, and all fields that have each."""

    hashes: np.ndarray
    """Each hash once."""
    starts: np.ndarray
    """The place in `owners` where the fields of each hash begin, with the total at the end."""
    owners: np.ndarray
    needs_partner: np.ndarray
    """bool, one entry an owner."""
    table: np.ndarray
    """Whether a hash begins with these bits."""


class _Span(NamedTuple):
    """Words of a batch that are a run of a field."""

    first: int
    after: int
    owner: int


class ItemIndex:
    """The runs of the evaluation items by hash. Built once, then loaded for every shard."""

    def __init__(self, folder: str) -> None:
        """Load what `build_index` wrote to `folder`."""
        self._folder = folder
        runs, self._partners = read_index(folder)
        self._lookups: dict[int, _Lookup] = {}
        for length in np.unique(runs.lengths).tolist():
            chosen = np.flatnonzero(runs.lengths == length)
            chosen = chosen[np.lexsort((runs.owners[chosen], runs.hashes[chosen]))]
            unique, starts = np.unique(runs.hashes[chosen], return_index=True)
            # The table of a few hashes stays in a core's cache.
            table = np.zeros(1 << min((64 * len(unique)).bit_length(), _MAX_TABLE_BITS), bool)
            table[_slots(unique, len(table))] = True
            starts = np.append(starts, len(chosen))
            self._lookups[length] = _Lookup(unique, starts, runs.owners[chosen], runs.needs_partner[chosen], table)

    def hits(self, texts: list[str]) -> list[Hit]:
        """Return hits by document, position and item; runs of one item that overlap or touch are one hit."""
        found = self._hits(dict(enumerate(texts)), texts)
        joined = {row: whole for row, text in enumerate(texts) if (whole := _put_together(text)) is not None}
        further = self._hits(joined, texts) if joined else []
        return _longest(found, further) if further else found

    def _hits(self, searched: dict[int, str], texts: list[str]) -> list[Hit]:
        """Return the hits in texts by number that have the places of the originals, `texts`."""
        batch, numbers = TextBatch(list(searched.values())), list(searched)
        words = batch.folded_words
        spans = self._merged(sorted(self._spans(words)), words.documents)
        return [self._hit(batch, texts, numbers, span) for span in spans]

    def _spans(self, words: Segments) -> Iterator[_Span]:
        for length, hashes, first in growing_ngrams(words, self._lookups):
            lookup = self._lookups[length]
            # One bit rejects nearly all, so that few pay for the binary search.
            passed = np.flatnonzero(lookup.table[_slots(hashes, len(lookup.table))])
            slots = np.minimum(np.searchsorted(lookup.hashes, hashes[passed]), len(lookup.hashes) - 1)
            matched = lookup.hashes[slots] == hashes[passed]
            for begin, slot in zip(first[passed[matched]].tolist(), slots[matched].tolist(), strict=True):
                near: dict[int, set[int]] = {}
                for place in range(lookup.starts[slot], lookup.starts[slot + 1]):
                    span = _Span(begin, begin + length, int(lookup.owners[place]))
                    if not lookup.needs_partner[place] or self._has_partner(words, span, near):
                        yield span

    def _has_partner(self, words: Segments, span: _Span, near: dict[int, set[int]]) -> bool:
        """Return whether another field of the item stands near; `near` keeps the n-grams there by their length."""
        for length, wanted in self._partners[span.owner]:
            if length not in near:
                near[length] = _ngrams_near(words, span, length)
            if wanted in near[length]:
                return True
        return False

    def _merged(self, spans: list[_Span], documents: np.ndarray) -> list[_Span]:
        """Join spans of one document and item that overlap or touch; the first names the field."""
        merged: list[_Span] = []
        last: dict[tuple[int, str, int], int] = {}
        for first, after, owner in spans:
            field = self._fields[owner]
            key = (int(documents[first]), field.task, field.item)
            place = last.get(key)
            if place is not None and first <= merged[place].after:
                merged[place] = merged[place]._replace(after=max(merged[place].after, after))
            else:
                last[key] = len(merged)
                merged.append(_Span(first, after, owner))
        return merged

    @functools.cached_property
    def _fields(self) -> list[ItemField]:
        # Only hits need the names, and most shards have none.
        return [ItemField(**row, text="") for row in read_table(self._folder, "fields").to_pylist()]

    def _hit(self, batch: TextBatch, texts: list[str], numbers: list[int], span: _Span) -> Hit:
        words, field = batch.folded_words, self._fields[span.owner]
        row = int(words.documents[span.first])
        offset, document = int(batch.document_starts[row]), numbers[row]
        start, end = int(words.starts[span.first]) - offset, int(words.ends[span.after - 1]) - offset
        excerpt = texts[document].encode()[start:end].decode(errors="replace")
        num_words = span.after - span.first
        return Hit(document, start, end, field.task, field.item, field.field, num_words, excerpt)


def _ngrams_near(words: Segments, span: _Span, length: int) -> set[int]:
    """Return the n-grams before and after a span in its document that do not overlap with it."""
    document = words.documents[span.first]
    begin, end = np.searchsorted(words.documents, (document, document + 1)).tolist()
    found: set[int] = set()
    for first, after in ((span.first - PARTNER_WORDS, span.first), (span.after, span.after + PARTNER_WORDS)):
        found |= set(ngram_hashes(words.chosen(slice(max(first, begin), min(after, end))), length)[0].tolist())
    return found


def _put_together(text: str) -> str | None:
    """Return a text of the same places with divided words whole and references (`&eacute;`) read; None if unchanged."""
    joined = _REFERENCE.sub(_read_reference, text)
    joined = _HYPHEN_AND_NEWLINE.sub(lambda found: _nothing(len(found[0].encode())), joined)
    joined = joined.replace(_ZERO_WIDTH_SPACE, _nothing(3))
    return joined if joined != text else None


def _read_reference(found: re.Match[str]) -> str:
    """Return the letter that an HTML reference stands for, or as many spaces for another character."""
    character, size = html.unescape(found[0]), len(found[0])
    if character == found[0]:
        return character
    if not character or unicodedata.category(character[0]) == "Cf":  # `unescape` leaves out control characters
        return _nothing(size)
    rest = size - len(character.encode())
    return character + _nothing(rest) if character.isalnum() and rest > 1 else " " * size


def _nothing(num_bytes: int) -> str:
    """Return characters of two bytes, and one of three if the number is odd, that are no part of a word."""
    halves, odd = divmod(num_bytes, 2)
    return _NOTHING[0] * (halves - odd) + _NOTHING[1] * odd


def _longest(*several: list[Hit]) -> list[Hit]:
    """Return the hits that do not lie in a longer one of their document and item, in order."""
    of_item: dict[tuple[int, str, int], list[Hit]] = {}
    for hit in sorted({hit for hits in several for hit in hits}, key=lambda hit: (hit.start, -hit.end)):
        longer = of_item.setdefault((hit.document, hit.task, hit.item), [])
        if not longer or hit.end > max(other.end for other in longer):
            longer.append(hit)
    return sorted(hit for hits in of_item.values() for hit in hits)


def _slots(hashes: np.ndarray, num_slots: int) -> np.ndarray:
    return (hashes >> np.uint64(65 - num_slots.bit_length())).astype(np.int64)
