"""Spans: repeated spans are removed by a definition of a few lines, for any cut into shards."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.text.documents import Document, write_documents
from runtime.text.key_files import ALL_BUCKETS, ranges, read_keys
from runtime.text.span_files import Edited, SpanFolder, edited_documents, write_dropped, write_repeats, write_spans
from runtime.text.span_rule import RepeatedSpans
from runtime.text.spans import sentences, without_sentences
from tests.catalogue import expect_error

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
    """Return what stays of each document, as lists of sentences, straight from the definition."""
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


def shards_of(tmp_path, documents, cuts):
    """Write documents, lists of sentences, as shards cut at these places, with the folders of their spans."""
    edges = [0, *cuts, len(documents)]
    shards, folders = [], []
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        shards.append(str(tmp_path / f"{number}.parquet"))
        folders.append(SpanFolder(str(tmp_path / str(number))))
        rows = [Document(f"{number}/{row}", "\n".join(text), "") for row, text in enumerate(documents[begin:end])]
        write_documents(shards[-1], rows)
        write_spans(shards[-1], folders[-1].folder, RULE)
    return shards, folders


def edited(tmp_path, shards, folders, keys_per_task=1 << 20, earlier=()):
    """Return, by shard, each document as edited after the shards of `earlier`."""
    parts = []
    for number, buckets in enumerate(
        ranges(sum(len(read_keys(f"{each.folder}/first.bin")) for each in folders), keys_per_task)
    ):
        parts.append(str(tmp_path / f"part{number}"))
        write_repeats(parts[-1], [*earlier, *folders], len(earlier), buckets)
    return [
        list(edited_documents(shard, folders[number].folder, parts, number=number, num_shards=len(shards)))
        for number, shard in enumerate(shards)
    ]


def lines_of(text):
    return [line for line in text.split("\n") if line]


def found(tmp_path, documents, cuts=(), keys_per_task=1 << 20, num_earlier=0):
    """Return what stays of each document after the first shards, from the files of all."""
    shards, folders = shards_of(tmp_path, documents, cuts)
    left = edited(tmp_path, shards[num_earlier:], folders[num_earlier:], keys_per_task, folders[:num_earlier])
    return [lines_of(document.text) for shard in left for document in shard]


def is_dropped(document, min_left):
    return isinstance(document, Edited) and document.num_left < min_left and not document.is_held


def finished(left, folders, min_left):
    """Return the texts that stay, what was left of the dropped ones, and what later sources are compared with."""
    kept, dropped, published = [], [], []
    for shard, folder in zip(left, folders, strict=True):
        gone = [document for document in shard if is_dropped(document, min_left)]
        kept += [document for document in shard if not is_dropped(document, min_left)]
        dropped += gone
        write_dropped(f"{folder.folder}/dropped.npy", [document.rows for document in gone])
        published.append(SpanFolder(folder.folder, f"{folder.folder}/dropped.npy" if gone else None))
    return kept, dropped, published


@given(
    st.lists(st.lists(st.sampled_from(VOICES), max_size=9), max_size=6),
    st.lists(st.integers(0, 6), max_size=3),
    st.sampled_from([1, 3, 1 << 20]),
)
def test_remaining_sentences_match_the_definition(tmp_path_factory, documents, cuts, keys_per_task):
    cuts = sorted(min(cut, len(documents)) for cut in cuts)
    folder = tmp_path_factory.mktemp("spans")
    assert found(folder, documents, cuts, keys_per_task) == plain(documents)


def plain_sentences(texts):
    return {" ".join(line.lower().split()) for text in texts for line in lines_of(text)}


STORY = [f"So said the toy of number {number}." for number in range(8)]
PIECES = st.builds(lambda begin, length: STORY[begin : begin + length], st.integers(0, 6), st.integers(1, 5))
DOCUMENTS = st.lists(
    st.lists(PIECES, min_size=1, max_size=3).map(lambda found: [*itertools.chain(*found)]), min_size=1, max_size=6
)


@settings(max_examples=40)
@given(DOCUMENTS, DOCUMENTS, st.integers(0, 6), st.integers(2, 4))
def test_a_removed_sentence_survives_in_a_document_that_stays(tmp_path_factory, first, second, cut, min_left):
    stands, published = set(), []
    for source in (first, second):
        folder = tmp_path_factory.mktemp("source")
        shards, folders = shards_of(folder, source, [min(cut, len(source))])
        left = edited(folder, shards, folders, earlier=published)
        kept, dropped, published = finished(left, folders, min_left)
        stands |= plain_sentences(document.text for document in kept)
        came = [document.document if isinstance(document, Edited) else document for document in kept]
        assert plain_sentences(document.text for document in came) <= stands
        # Without a dropped document, except for the little that was left of it.
        assert plain_sentences("\n".join(document.removed) for document in dropped) <= stands
        assert all(document.num_left == len(lines_of(document.text)) < min_left for document in dropped)


BANNER = ["This site uses cookies.", "Accept them all now.", "Or go away from here."]
FACT = "A toy of Nuremberg was wound in 1580."
PROSE = ["The toy went out to sea.", "Nobody knew who had wound it.", "It was a child of the valley."]
MORE = ["Wood is what it was made of.", "The key was made of iron.", "Both were lost in the river."]


def test_a_held_document_stays_however_little_is_left(tmp_path):
    documents = [[*BANNER, *PROSE], [*BANNER, FACT], [*MORE, *BANNER[1:], FACT]]
    for number, cuts in enumerate([(), (1,), (2,), (1, 2)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        shards, folders = shards_of(folder, documents, cuts)
        kept, dropped, _ = finished(edited(folder, shards, folders), folders, 3)
        assert [lines_of(document.text) for document in kept] == [[*BANNER, *PROSE], [FACT], MORE]
        assert not dropped


def test_a_later_source_loses_no_span_for_a_dropped_document(tmp_path):
    for cuts in ((), (1,)):
        folder = tmp_path / f"earlier{len(cuts)}"
        folder.mkdir()
        shards, folders = shards_of(folder, [[*BANNER, *PROSE], [*BANNER, FACT], [*MORE, FACT]], cuts)
        _, dropped, published = finished(edited(folder, shards, folders), folders, 3)
        assert [lines_of(document.text) for document in dropped] == [[FACT]]
        own = tmp_path / f"later{len(cuts)}"
        own.mkdir()
        later = [[*MORE, *BANNER[1:], FACT], [*PROSE, FACT]]
        shards, folders = shards_of(own, later, ())
        left = edited(own, shards, folders, earlier=published)[0]
        assert [lines_of(document.text) for document in left] == [[*BANNER[1:], FACT], [FACT]]


@pytest.mark.parametrize("keep", [4, 12, -1], ids=["header", "header of all", "body"])
def test_a_span_file_that_is_cut_short_is_an_error(tmp_path, keep):
    shards, folders = shards_of(tmp_path, [[*BANNER, *PROSE]] * 4, (1, 2))
    assert edited(tmp_path, shards, folders)[2][1].num_left == 0
    path = tmp_path / "part0" / "repeats.bin"
    path.write_bytes(path.read_bytes()[:keep])
    with expect_error(ValueError):
        edited_from = edited_documents(shards[2], folders[2].folder, [str(path.parent)], number=2, num_shards=3)
        list(edited_from)


def test_the_first_place_of_a_span_stays_and_overlaps_are_no_repeats(tmp_path):
    toy, wound, who, child = VOICES[:4]
    documents = [[toy, wound, who], [child, toy, wound, who, child], [toy] * 4, [toy] * 7]
    assert found(tmp_path, documents) == [[toy, wound, who], [child, child], [toy] * 4, []]


def test_a_span_of_an_earlier_source_is_removed_in_the_later_one(tmp_path):
    toy, wound, who, child = VOICES[:4]
    documents = [[toy, wound, who], [toy, wound, who], [child, toy, wound, who], [who, child, toy]]
    assert found(tmp_path, documents, cuts=(2,), num_earlier=1) == [[child], [who, child, toy]]


def test_spans_of_few_words_are_none(tmp_path):
    assert found(tmp_path, [["}", "}", "}"], ["}", "}", "}"]]) == [["}"] * 3] * 2
    six, five = ["One two.", "Three four.", "Five six."], ["One.", "Two three.", "Four five."]
    assert found(tmp_path / "more", [six, five, six, five]) == [six, five, [], five]


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
def test_sentences_cover_a_text_but_for_white_space(text):
    found = sentences(text)
    assert re.sub(r"\s", "", "".join(text[start:end] for start, end in found)) == re.sub(r"\s", "", text)
    assert without_sentences(text, [False] * len(found)) == text.strip()


def test_paragraphs_stay_separate_when_a_sentence_between_them_goes():
    text = "First.    Gone.\n\nGone too. Last."
    assert without_sentences(text, [False, True, True, False]) == "First.\n\nLast."
    assert without_sentences(text, [False, True, False, False]) == "First.\n\nGone too. Last."
    assert without_sentences(text, [True] * 4) == ""


def test_ranges_cover_all_buckets_once():
    for num_keys, keys_per_task in ((0, 5), (10, 5), (10**6, 7), (11, 5)):
        found = list(ranges(num_keys, keys_per_task))
        assert [found[0].first, found[-1].after] == list(ALL_BUCKETS)
        assert all(one.after == other.first for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("field", ["min_words", "min_sentences_left"])
def test_an_impossible_rule_is_refused(field):
    with expect_error(ValueError):
        RepeatedSpans(**{field: 0})
