"""Index of evaluation items: which runs of words in a document are a sign of contamination.

- A run of `ngram_words` words of any field (13: GPT-3, arXiv:2005.14165, appendix C).
- The whole of a shorter field of `min_field_words` words, three of them rare. An entry of a list is no such field.
- In an item of short fields alone, the longest (the question) and near it another with a rare word of its own (the
  answer), together of `min_field_words` words. The question is no entry of a list, unless all fields are.

A word is rare if it has three bytes and is not one of the common words of English. An item without such runs is not
searched, and counted.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.text.array_files import read_array, write_array
from runtime.text.batch import Segments, TextBatch, begins_run, growing_ngrams, ngram_hashes, run_starts
from runtime.text.common_words import COMMON_WORDS
from runtime.text.hashing import mix
from runtime.text.items import ItemField

MAX_NAMED_FIELDS = 100
"""Fields of a task that are named for one run; a common prompt has more."""
MIN_QUESTION_WORDS = 4
"""Words of a field that is found with another one near it."""
MIN_RARE_WORDS = 3
_MIN_RARE_BYTES = 3
_FIELDS_SCHEMA = pa.schema([("task", pa.string()), ("item", pa.int32()), ("field", pa.string())])


class IndexCounts(NamedTuple):
    num_ngrams: int
    num_not_searched: dict[str, int]
    """Items by task."""


class Runs(NamedTuple):
    """Runs of words and the fields that have them, one entry a run and field."""

    hashes: np.ndarray
    owners: np.ndarray
    """int32, the number of the field."""
    lengths: np.ndarray
    """int8, words."""
    needs_partner: np.ndarray
    """bool, whether a run only counts with another field of its item near it."""


class Partners(NamedTuple):
    """Fields that may stand near a question, by the number of the question's field."""

    questions: np.ndarray
    """int32, ascending."""
    hashes: np.ndarray
    lengths: np.ndarray

    def of(self, question: int) -> list[tuple[int, int]]:
        """Return length and hash of the fields of its item."""
        first, after = np.searchsorted(self.questions, (question, question + 1))
        return list(zip(self.lengths[first:after].tolist(), self.hashes[first:after].tolist(), strict=True))


class _Fields(NamedTuple):
    """What the fields of all items are made of; one entry a field."""

    num_words: np.ndarray
    items: np.ndarray
    """Numbers of their items."""
    tasks: np.ndarray
    is_listed: np.ndarray
    num_rare: np.ndarray
    """Rare words, each counted once."""
    hashes: np.ndarray
    """uint64, of all words of a short field; 0 for others."""


def build_index(fields: Iterable[ItemField], folder: str, *, ngram_words: int, min_field_words: int) -> IndexCounts:
    """Write the index of all fields.

    Raises:
        ValueError: `min_field_words` is not between 1 and `ngram_words`.
    """
    if not 1 <= min_field_words <= ngram_words:
        raise ValueError(f"min_field_words is {min_field_words}. Set it between 1 and ngram_words ({ngram_words}).")
    kept = [field for field in fields if field.text.strip()]
    words = TextBatch([field.text for field in kept]).folded_words
    num_words = np.bincount(words.documents, minlength=len(kept))
    short = words.chosen(np.flatnonzero(num_words[words.documents] < ngram_words))
    found = _describe(kept, num_words, short)
    partners = _partners(found, short, ngram_words, min_field_words)
    alone = _alone(found, ngram_words, min_field_words)
    runs = _runs(found, words, alone, np.setdiff1d(partners.questions, alone), ngram_words)
    for name, values in runs._asdict().items():
        write_array(f"{folder}/{name}.npy", values)
    for name, values in partners._asdict().items():
        write_array(f"{folder}/partners-{name}.npy", values)
    columns = {name: [getattr(field, name) for field in kept] for name in ("task", "item", "field")}
    with fsspec.open(f"{folder}/fields.parquet", "wb", auto_mkdir=True) as file:
        pq.write_table(pa.table(columns, schema=_FIELDS_SCHEMA), file, compression="zstd", write_page_checksum=True)
    searched = np.concatenate([np.flatnonzero(found.num_words >= ngram_words), alone, partners.questions])
    is_searched = np.isin(found.items, found.items[searched])
    missed = {(kept[place].task, kept[place].item) for place in np.flatnonzero(~is_searched)}
    return IndexCounts(_num_distinct(runs), dict(sorted(Counter(task for task, _ in missed).items())))


def read_index(folder: str) -> tuple[Runs, Partners]:
    """Read what `build_index` wrote, without the names of the fields."""
    runs = Runs(*(read_array(f"{folder}/{name}.npy") for name in Runs._fields))
    return runs, Partners(*(read_array(f"{folder}/partners-{name}.npy") for name in Partners._fields))


def _describe(kept: list[ItemField], num_words: np.ndarray, short: Segments) -> _Fields:
    """Describe the fields; `short` are the words of the short ones."""
    items: dict[tuple[str, int], int] = {}
    owners, hashes = _rare(short)
    first = np.unique(_keys(owners, hashes), return_index=True)[1]
    return _Fields(
        num_words,
        np.array([items.setdefault((field.task, field.item), len(items)) for field in kept], np.int64),
        np.unique(np.array([field.task for field in kept], str), return_inverse=True)[1],
        np.array([field.is_listed for field in kept], bool),
        np.bincount(owners[first], minlength=len(kept)),
        _whole_hashes(num_words, short),
    )


def _rare(words: Segments) -> tuple[np.ndarray, np.ndarray]:
    """Return fields and hashes of all rare words."""
    is_rare = (words.ends - words.starts >= _MIN_RARE_BYTES) & ~np.isin(words.hashes, _common_hashes())
    return words.documents[is_rare], words.hashes[is_rare]


def _common_hashes() -> np.ndarray:
    return TextBatch([COMMON_WORDS]).folded_words.hashes


def _whole_hashes(num_words: np.ndarray, short: Segments) -> np.ndarray:
    hashes = np.zeros(len(num_words), np.uint64)
    for length, found, first in growing_ngrams(short, np.unique(num_words[short.documents]).tolist()):
        fields = short.documents[first]
        is_whole = num_words[fields] == length
        hashes[fields[is_whole]] = found[is_whole]
    return hashes


def _partners(found: _Fields, words: Segments, ngram_words: int, min_field_words: int) -> Partners:
    """Return the fields that may stand near the question of their item, for items of short fields alone."""
    is_long = np.bincount(found.items, found.num_words >= ngram_words) > 0
    short = np.flatnonzero((found.num_words > 0) & ~is_long[found.items])
    # The question of an item comes first.
    order = short[np.lexsort((short, -found.num_words[short], found.is_listed[short], found.items[short]))]
    question = order[run_starts(found.items[order])]
    telling = _has_other_rare_words(found, words, order, question)
    fits = telling & (found.num_words[question] >= MIN_QUESTION_WORDS)
    fits &= found.num_words[question] + found.num_words[order] >= min_field_words
    question, order = question[fits], order[fits]
    by_question = np.lexsort((order, question))
    question, order = question[by_question], order[by_question]
    return Partners(question.astype(np.int32), found.hashes[order], found.num_words[order].astype(np.int8))


def _has_other_rare_words(found: _Fields, words: Segments, fields: np.ndarray, questions: np.ndarray) -> np.ndarray:
    """Return for each field whether it has a rare word that is not in its question."""
    question_of = np.full(len(found.num_words), -1)
    question_of[fields] = questions
    owners, hashes = _rare(words)
    asked = _keys(owners, hashes)
    others = question_of[owners] >= 0
    owners, hashes = owners[others], hashes[others]
    is_other = ~np.isin(_keys(question_of[owners], hashes), asked)
    return np.isin(fields, owners[is_other])


def _keys(fields: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    return mix(hashes ^ mix(fields.astype(np.uint64) + np.uint64(1)))


def _alone(found: _Fields, ngram_words: int, min_field_words: int) -> np.ndarray:
    """Return the short fields whose words are a sign by themselves."""
    is_short = (found.num_words >= min_field_words) & (found.num_words < ngram_words)
    return np.flatnonzero(is_short & (found.num_rare >= MIN_RARE_WORDS) & ~found.is_listed)


def _runs(found: _Fields, words: Segments, alone: np.ndarray, questions: np.ndarray, ngram_words: int) -> Runs:
    hashes, first = ngram_hashes(words, ngram_words)
    parts = [_runs_of(*_of_first_fields(hashes, words.documents[first], found.tasks), ngram_words, False)]
    for length in range(1, ngram_words):
        of_length = alone[found.num_words[alone] == length]
        parts.append(_runs_of(*_of_first_fields(found.hashes[of_length], of_length, found.tasks), length, False))
        of_length = questions[found.num_words[questions] == length]
        parts.append(_runs_of(found.hashes[of_length], of_length, length, True))
    return Runs(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _runs_of(hashes: np.ndarray, owners: np.ndarray, length: int, needs_partner: bool) -> Runs:
    count = len(hashes)
    return Runs(hashes, owners.astype(np.int32), np.full(count, length, np.int8), np.full(count, needs_partner))


def _num_distinct(runs: Runs) -> int:
    return len(np.unique(np.stack([runs.hashes, runs.lengths.astype(np.uint64)]), axis=1)[0])


def _of_first_fields(keys: np.ndarray, fields: np.ndarray, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each n-gram with its fields once, by key and field; at most `MAX_NAMED_FIELDS` fields a task."""
    order = np.lexsort((fields, keys))
    keys, fields = keys[order], fields[order]
    is_first = begins_run(keys, fields)
    keys, fields = keys[is_first], fields[is_first]
    of_task = tasks[fields]
    # The fields of a task may be scattered, so ranks are taken in the order of key, task and field.
    order = np.lexsort((fields, of_task, keys))
    ranks = np.arange(len(keys)) - run_starts(keys[order], of_task[order])
    named = np.zeros(len(keys), bool)
    named[order] = ranks < MAX_NAMED_FIELDS
    return keys[named], fields[named]
