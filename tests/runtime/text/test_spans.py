"""Pins down: three sentences that stood before go, by a definition of a few lines, however the documents are cut."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.documents import Document, write_documents
from runtime.text.key_files import ALL_BUCKETS, ranges
from runtime.text.span_files import edited_documents, write_repeats, write_spans
from runtime.text.span_rule import RepeatedSpans
from runtime.text.spans import sentences, without_sentences

RULE = RepeatedSpans(min_words=6, min_sentences_left=1)
VOICES = [
    "The toy went to sea.",
    "It was wound!",
    "Who wound it?",
    "A child did",
    "A  CHILD did",
    "ok",
    "Nobody knew then.",
]


def plain(documents, min_words=6):
    """What stays of each document, a list of sentences, straight from the definition."""
    seen, kept = {}, []
    for number, document in enumerate(documents):
        gone = set()
        for place in range(len(document) - 2):
            span = tuple(" ".join(sentence.lower().split()) for sentence in document[place : place + 3])
            if sum(len(sentence.split()) for sentence in span) < min_words:
                continue
            where = seen.setdefault(span, (number, place))
            if where[0] != number or place - where[1] >= 3:
                gone |= {place, place + 1, place + 2}
        kept.append([sentence for place, sentence in enumerate(document) if place not in gone])
    return kept


def found(tmp_path, documents, cuts=(), keys_per_task=1 << 20, num_earlier=0):
    """The same from the files of shards that are cut before these documents."""
    edges = [0, *cuts, len(documents)]
    shards, folders = [], []
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        shards.append(str(tmp_path / f"{number}.parquet"))
        folders.append(str(tmp_path / str(number)))
        rows = [Document(f"{number}/{row}", "\n".join(text), "") for row, text in enumerate(documents[begin:end])]
        write_documents(shards[-1], rows)
    counts = [write_spans(shard, folder, RULE) for shard, folder in zip(shards, folders, strict=True)]
    parts = []
    for number, buckets in enumerate(ranges(sum(count.num_keys for count in counts), keys_per_task)):
        parts.append(str(tmp_path / f"{number}.bin"))
        write_repeats(parts[-1], folders, num_earlier, buckets)
    kept = []
    for number in range(num_earlier, len(shards)):
        own = number - num_earlier
        left = edited_documents(
            shards[number], folders[number], parts, number=own, num_shards=len(shards) - num_earlier
        )
        kept += [document.text for document in left]
    return [[line for line in text.split("\n") if line] for text in kept]


@given(
    st.lists(st.lists(st.sampled_from(VOICES), max_size=9), max_size=6),
    st.lists(st.integers(0, 6), max_size=3),
    st.sampled_from([1, 3, 1 << 20]),
)
def test_what_stays_is_what_the_definition_says(tmp_path_factory, documents, cuts, keys_per_task):
    cuts = sorted(min(cut, len(documents)) for cut in cuts)
    folder = tmp_path_factory.mktemp("spans")
    assert found(folder, documents, cuts, keys_per_task) == plain(documents)


def test_the_first_place_of_a_span_stays_and_its_overlap_with_itself_is_no_repetition(tmp_path):
    toy, wound, who, child = VOICES[:4]
    documents = [[toy, wound, who], [child, toy, wound, who, child], [toy] * 4, [toy] * 7]
    assert found(tmp_path, documents) == [[toy, wound, who], [child, child], [toy] * 4, []]


def test_what_an_earlier_source_has_goes_and_nothing_of_the_earlier_source(tmp_path):
    toy, wound, who, child = VOICES[:4]
    documents = [[toy, wound, who], [toy, wound, who], [child, toy, wound, who], [who, child, toy]]
    assert found(tmp_path, documents, cuts=(2,), num_earlier=1) == [[child], [who, child, toy]]


def test_spans_of_few_words_are_none(tmp_path):
    assert found(tmp_path, [["}", "}", "}"], ["}", "}", "}"]]) == [["}"] * 3] * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two!  Three? (Four.) Five", ["One.", "Two!", "Three?", "(Four.)", "Five"]),
        ("Version 1.5 is out. “So it is.” he said", ["Version 1.5 is out.", "“So it is.”", "he said"]),
        ("A heading\n\n  a line … and more\nend.", ["A heading", "a line …", "and more", "end."]),
        ("吾輩は猫である。 名前はない。", ["吾輩は猫である。", "名前はない。"]),
        ("\r\n \n", []),
        ("...", ["..."]),
    ],
)
def test_a_sentence_ends_at_its_mark_or_at_the_end_of_its_line(text, expected):
    assert [text[sentence.start : sentence.end] for sentence in sentences(text)] == expected


@given(st.text(alphabet="ab.!? \n\t”)", max_size=60))
def test_sentences_hold_all_of_a_text_but_white_space_and_come_back_whole(text):
    found = sentences(text)
    assert re.sub(r"\s", "", "".join(text[start:end] for start, end in found)) == re.sub(r"\s", "", text)
    assert without_sentences(text, [False] * len(found)) == text.strip()


def test_paragraphs_stay_apart_where_a_sentence_between_them_goes():
    text = "First. Gone.\n\nGone too. Last."
    assert without_sentences(text, [False, True, True, False]) == "First.\n\nLast."
    assert without_sentences(text, [False, True, False, False]) == "First.\n\nGone too. Last."
    assert without_sentences(text, [True] * 4) == ""


def test_ranges_cover_all_buckets_once():
    for num_keys, keys_per_task in ((0, 5), (10, 5), (10**6, 7), (11, 5)):
        found = list(ranges(num_keys, keys_per_task))
        assert [found[0].first, found[-1].after] == list(ALL_BUCKETS)
        assert all(one.after == other.first for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("field", ["min_words", "min_sentences_left"])
def test_a_rule_that_makes_no_sense_is_refused(field):
    with pytest.raises(ValueError, match=rf"RepeatedSpans\.{field} is 0"):
        RepeatedSpans(**{field: 0})
