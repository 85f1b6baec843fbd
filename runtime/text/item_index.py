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

from runtime.tables.parquet_bytes import from_parquet, to_parquet
from runtime.text.batch import Segments, TextBatch, begins_run, growing_ngrams, ngram_hashes, run_starts
from runtime.text.items import ItemField

MAX_NAMED_FIELDS = 100
"""Fields of a task that are named for one run; a common prompt has more."""
MIN_QUESTION_WORDS = 4
"""Words of a field that is found with another one near it."""
MIN_RARE_WORDS = 3
_MIN_RARE_BYTES = 3
_COMMON_WORDS = """
a able about above accept across act add after again against age ago agree air all allow almost alone along already also
although always am among amount an and another answer any anyone anything appear are area around as ask at away back bad
base be became because become been before began begin behind being believe below best better between big black blue body
book both boy bring brought build business but buy by call called came can cannot car care carry case cause center
certain chance change check child children choose city class clear close cold color come common company complete
consider contact continue correct cost could country course create cut day days deal decide describe did difference
different difficult do does doing done door down draw drive during each early easy eat effect either else end enough
especially even event ever every everyone everything example expect explain eye face fact family far fast father feel
feet few find fine first five following food for form found four free friend friends from front full further future
game gave general get girl give given go goes going gone good got great green ground group grow had half hand happen
happy hard has have having he head hear heard heart help her here herself high him himself his history hold home hope
hot hour hours house how however i idea if important in include including increase information inside instead into is
issue it its itself job just keep kind knew know known land large last late later law lead learn least leave left less
let letter level life light like likely line list little live local long longer look lot love low made mail main major
make making man many matter may maybe me mean means meet men might mind minute moment money month months more morning
most mother move much must my name national near need never new news next night no none not note nothing now number of
off offer office often oh old on once one only open or order other others our out outside over own page paper part
party pass past pay people perhaps period person phone place plan play please point possible power present president
probably problem process produce program provide public put question questions quite read ready real really reason
receive red remain remember report rest result right room run said same saw say school second see seem seen send sent
set several shall she short should show side since six size small so some someone something sometimes soon sort sound
speak special stand start state states statement still stop story street strong student students study such support sure
system table take taken talk team tell ten than thank thanks that the their them themselves then there therefore these
they thing things think third this those though thought thousand three through time times to today together told too
took top toward town tree tried true try trying turn two type under understand united until up upon us use used useful
using usually very view visit wait walk want war was watch water way ways we week weeks well went were what when where
whether which while white who whole whom whose why will with within without woman women word words work world would
write wrong year years yes yet you young your yourself
"""


class IndexCounts(NamedTuple):
    num_ngrams: int
    num_not_searched: dict[str, int]
    """Items by task."""


class Runs(NamedTuple):
    """Runs of words and the fields that have them, one entry per run and field."""

    hashes: np.ndarray
    owners: np.ndarray
    """int32, the number of the field."""
    lengths: np.ndarray
    """int8, words."""
    needs_partner: np.ndarray
    """bool, whether a run only counts with another field of its item near it."""


Partners = dict[int, list[tuple[int, int]]]
"""The number of a question's field -> length and hash of the fields that may stand near it."""


def build_index(fields: Iterable[ItemField], folder: str, *, ngram_words: int, min_field_words: int) -> IndexCounts:
    """Write the index of all fields. Raise ValueError if `min_field_words` is not between 1 and `ngram_words`."""
    if not 1 <= min_field_words <= ngram_words:
        raise ValueError(f"min_field_words is {min_field_words}. Set it between 1 and ngram_words ({ngram_words}).")
    kept = [field for field in fields if field.text.strip()]
    words = TextBatch([field.text for field in kept]).folded_words
    num_words = np.bincount(words.documents, minlength=len(kept))
    short = words.chosen(np.flatnonzero(num_words[words.documents] < ngram_words))
    alone, partners = _short_runs(kept, num_words.tolist(), _rare_words(short), ngram_words, min_field_words)
    questions = sorted({question for question, _ in partners})
    whole = _whole_hashes(num_words, short)
    runs = _runs(words, whole, num_words, alone, sorted(set(questions) - set(alone)), ngram_words)
    tasks = np.unique(np.array([field.task for field in kept], str), return_inverse=True)[1]
    runs = _of_first_fields(runs, tasks)
    answers = [field for _, field in partners]
    columns = {
        "runs": runs._asdict(),
        "partners": {
            "questions": np.array([question for question, _ in partners], np.int32),
            "lengths": num_words[answers].astype(np.int8),
            "hashes": whole[answers],
        },
        "fields": {name: [getattr(field, name) for field in kept] for name in ("task", "item", "field")},
    }
    for name, of_table in columns.items():
        with fsspec.open(f"{folder}/{name}.parquet", "wb", auto_mkdir=True) as file:
            file.write(to_parquet(pa.table(of_table)))
    searched = {kept[place][:2] for place in (*np.flatnonzero(num_words >= ngram_words), *alone, *questions)}
    missed = {field[:2] for field in kept} - searched
    return IndexCounts(len(np.unique(runs.hashes)), dict(sorted(Counter(task for task, _ in missed).items())))


def read_index(folder: str) -> tuple[Runs, Partners]:
    """Read what `build_index` wrote, without the names of the fields."""
    runs, found = read_table(folder, "runs"), read_table(folder, "partners")
    partners: Partners = {}
    for question, length, hash_ in zip(*(column.to_pylist() for column in found.columns), strict=True):
        partners.setdefault(question, []).append((length, hash_))
    return Runs(*(column.to_numpy() for column in runs.columns)), partners


def read_table(folder: str, name: str) -> pa.Table:
    """Read one of the index's tables."""
    with fsspec.open(f"{folder}/{name}.parquet", "rb") as file:
        return from_parquet(file.read())


def _rare_words(words: Segments) -> dict[int, set[int]]:
    """Return the hashes of the rare words of each field."""
    common = TextBatch([_COMMON_WORDS]).folded_words.hashes
    is_rare = (words.ends - words.starts >= _MIN_RARE_BYTES) & ~np.isin(words.hashes, common)
    found: dict[int, set[int]] = {}
    for field, hash_ in zip(words.documents[is_rare].tolist(), words.hashes[is_rare].tolist(), strict=True):
        found.setdefault(field, set()).add(hash_)
    return found


def _short_runs(
    kept: list[ItemField], num_words: list[int], rare: dict[int, set[int]], ngram_words: int, min_field_words: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the short fields that are a sign by themselves, and pairs of question and answer that are one."""
    by_item: dict[tuple[str, int], list[int]] = {}
    for number, (task, item, *_) in enumerate(kept):
        if num_words[number]:
            by_item.setdefault((task, item), []).append(number)
    alone: list[int] = []
    partners: list[tuple[int, int]] = []
    for fields in by_item.values():
        for field in fields:
            is_short = min_field_words <= num_words[field] < ngram_words
            if is_short and len(rare.get(field, ())) >= MIN_RARE_WORDS and not kept[field].is_listed:
                alone.append(field)
        question = min(fields, key=lambda field: (kept[field].is_listed, -num_words[field], field))
        if max(num_words[field] for field in fields) < ngram_words and num_words[question] >= MIN_QUESTION_WORDS:
            asked = rare.get(question, set())
            partners += [
                (question, field)
                for field in fields
                if num_words[question] + num_words[field] >= min_field_words and rare.get(field, set()) - asked
            ]
    return sorted(alone), sorted(partners)


def _whole_hashes(num_words: np.ndarray, short: Segments) -> np.ndarray:
    """Return, uint64, the hash of all words of each short field; 0 for others."""
    hashes = np.zeros(len(num_words), np.uint64)
    for length, found, first in growing_ngrams(short, np.unique(num_words[short.documents]).tolist()):
        fields = short.documents[first]
        is_whole = num_words[fields] == length
        hashes[fields[is_whole]] = found[is_whole]
    return hashes


def _runs(
    words: Segments, whole: np.ndarray, num_words: np.ndarray, alone: list[int], questions: list[int], ngram_words: int
) -> Runs:
    hashes, first = ngram_hashes(words, ngram_words)
    short = np.array([*alone, *questions], np.int64)
    owners = np.concatenate([words.documents[first], short])
    lengths = np.concatenate([np.full(len(first), ngram_words), num_words[short]])
    needs_partner = np.arange(len(owners)) >= len(owners) - len(questions)
    return Runs(np.concatenate([hashes, whole[short]]), owners.astype(np.int32), lengths.astype(np.int8), needs_partner)


def _of_first_fields(runs: Runs, tasks: np.ndarray) -> Runs:
    """Return each run with its fields once, by run, task and field; at most `MAX_NAMED_FIELDS` fields per task."""
    order = np.lexsort((runs.owners, tasks[runs.owners], runs.hashes))
    runs = Runs(*(column[order] for column in runs))
    is_first = begins_run(runs.hashes, runs.owners)
    runs = Runs(*(column[is_first] for column in runs))
    ranks = np.arange(len(runs.owners)) - run_starts(runs.hashes, tasks[runs.owners])
    named = (ranks < MAX_NAMED_FIELDS) | runs.needs_partner
    return Runs(*(column[named] for column in runs))
