"""Decontamination: a long run of words shared with an item is found at its place; shorter runs are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.decontamination import (
    MAX_NAMED_FIELDS,
    ItemField,
    ItemIndex,
    build_index,
    copy_item_files,
    read_item_fields,
)
from tests.catalogue import expect_error

MOST_NGRAM_WORDS = 127
"""The step that builds an index refuses more."""

QUESTION = "Which of these rivers carries the most water to the sea in an average year of rain"
ANSWER = "The one that drains the largest wet basin"
FIELDS = [
    ItemField("toy", 0, "question", QUESTION),
    ItemField("toy", 0, "answer", ANSWER),
    ItemField("toy", 0, "option", "all of the above are true"),
]
PADDING = "Here is a page about something else, with words of its own before and after."


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("index"))
    build_index(FIELDS, folder, ngram_words=13, min_field_words=8)
    return ItemIndex(folder)


def test_a_hit_has_the_item_and_the_place_in_the_document(index):
    shouted = QUESTION.upper().replace(" ", "\n", 3)
    document = f"Größe. {PADDING} {shouted}? {PADDING}"
    (hit,) = index.hits([PADDING, document])
    assert (hit.document, hit.task, hit.item, hit.field, hit.num_words) == (1, "toy", 0, "question", 17)
    assert document.encode()[hit.start : hit.end].decode() == hit.excerpt == shouted


QUOTED = (
    "Why don't the farmers of the valley's lower villages, who grow wheat, move before the spring's first flood rises?"
)


@pytest.mark.parametrize(
    ("found", "put"),
    [
        ("'", "\u2019"),
        ("'", "\u02bc"),
        (" ", "\u00a0"),
        (" ", "\u3000"),
        (" ", "\u200b"),
        (", ", "\u2009\u2014\u2009"),
        (",", "\u2026"),
        ("villages", "vil\u00adlages"),
        ("flood", "\uff26\uff4c\uff4f\uff4f\uff44"),
        ("first", "\ufb01rst"),
    ],
)
def test_typographic_characters_hide_no_question(tmp_path, found, put):
    build_index([ItemField("toy", 0, "question", QUOTED)], str(tmp_path), ngram_words=13, min_field_words=8)
    set_in_type = QUOTED.replace(found, put)
    assert set_in_type != QUOTED
    (hit,) = ItemIndex(str(tmp_path)).hits([f"Größe. {set_in_type} {PADDING}"])
    assert (f"{hit.excerpt}?", hit.num_words) == (set_in_type, 22)


def test_a_question_written_without_spaces_is_found(tmp_path):
    question = "\u6cb3\u6d41\u7ecf\u8fc7\u5c71\u8c37\uff0c\u8239\u53ea\u987a\u6d41\u800c\u4e0b\u5230\u5927\u6d77"
    build_index([ItemField("toy", 0, "question", question)], str(tmp_path), ngram_words=13, min_field_words=8)
    (hit,) = ItemIndex(str(tmp_path)).hits([f"\u4eca\u5929{question.replace(chr(0xFF0C), ' ')}\u3002\u597d"])
    assert hit.excerpt == question.replace(chr(0xFF0C), " ")
    assert ItemIndex(str(tmp_path)).hits([f"\u4eca\u5929{question[:12]}\u3002"]) == []
    in_another_form = question[:3] + "\U000e0100" + question[3:]
    assert [hit.excerpt for hit in ItemIndex(str(tmp_path)).hits([in_another_form])] == [in_another_form]


def test_a_text_of_two_tasks_is_a_hit_in_both_and_in_each_of_their_items(tmp_path):
    rows = [("other", 3, "passage"), ("toy", 0, "prompt"), ("toy", 0, "question"), ("toy", 7, "question")]
    build_index([ItemField(*row, QUESTION) for row in rows], str(tmp_path), ngram_words=13, min_field_words=8)
    hits = ItemIndex(str(tmp_path)).hits([f"{PADDING} {QUESTION} {PADDING} {QUESTION}"])
    assert [(hit.task, hit.item, hit.field) for hit in hits] == 2 * [rows[0], rows[1], rows[3]]
    assert {hit.num_words for hit in hits} == {17}


def test_a_common_prompt_names_its_first_items_only(tmp_path):
    items = [(task, item) for task in ("other", "toy") for item in range(MAX_NAMED_FIELDS + 1)]
    fields = [ItemField(*item, "prompt", QUESTION) for item in items]
    num_ngrams = build_index(fields, str(tmp_path), ngram_words=13, min_field_words=8)
    hits = ItemIndex(str(tmp_path)).hits([QUESTION])
    assert num_ngrams == 5
    assert [(hit.task, hit.item) for hit in hits] == [item for item in items if item[1] < MAX_NAMED_FIELDS]


def test_touching_runs_of_one_item_are_one_hit_of_the_first_field(tmp_path):
    words = [f"word{number}" for number in range(26)]
    question, answer = " ".join(words[:13]), " ".join(words[13:])
    fields = [ItemField("toy", 0, "question", question), ItemField("toy", 0, "answer", answer)]
    build_index(fields, str(tmp_path), ngram_words=13, min_field_words=8)
    found = ItemIndex(str(tmp_path))
    (hit,) = found.hits([f"{question} {answer}"])
    assert (hit.field, hit.num_words) == ("question", 26)
    assert [hit.num_words for hit in found.hits([f"{question} and {answer}"])] == [13, 13]
    fields.append(ItemField("toy", 0, "option", " ".join(words[2:11])))
    build_index(fields, str(tmp_path), ngram_words=13, min_field_words=8)
    (hit,) = ItemIndex(str(tmp_path)).hits([question])
    assert (hit.field, hit.num_words) == ("question", 13), "and none is cut short by one that lies in it"


def test_twelve_words_of_a_question_are_no_hit(index):
    assert index.hits([f"{PADDING} {' '.join(QUESTION.split()[:12])} {PADDING}"]) == []


def test_thirteen_words_out_of_the_middle_are_a_hit(index):
    (hit,) = index.hits([f"{PADDING} {' '.join(QUESTION.split()[2:15])} {PADDING}"])
    assert hit.num_words == 13


def test_a_short_field_is_found_whole_and_a_very_short_one_never(index):
    (hit,) = index.hits([f"{PADDING} {ANSWER}. All of the above are true."])
    assert (hit.field, hit.num_words) == ("answer", 8)
    assert index.hits([" ".join(ANSWER.split()[:7])]) == []


def test_an_item_without_long_fields_is_no_error(tmp_path):
    assert build_index([FIELDS[2]], str(tmp_path), ngram_words=13, min_field_words=8) == 0
    assert ItemIndex(str(tmp_path)).hits([PADDING]) == []


def test_impossible_field_lengths_are_refused(tmp_path):
    with expect_error(ValueError):
        build_index(FIELDS, str(tmp_path), ngram_words=13, min_field_words=14)


def test_runs_of_a_script_without_spaces_may_have_127_characters(tmp_path):
    """In such scripts each character is a word, and thirteen words are no sign of a copy."""
    question = "".join(chr(0x4E00 + number) for number in range(MOST_NGRAM_WORDS + 2))
    fields = [ItemField("toy", 0, "question", question)]
    longest = {"ngram_words": MOST_NGRAM_WORDS, "min_field_words": MOST_NGRAM_WORDS}
    assert build_index(fields, str(tmp_path), **longest) == 3
    found = ItemIndex(str(tmp_path))
    (hit,) = found.hits([question[1:]])
    assert hit.num_words == MOST_NGRAM_WORDS + 1
    assert found.hits([question[3:]]) == []


@given(st.lists(st.sampled_from([*QUESTION.split(), "and", "other"]), max_size=40))
def test_hits_match_plain_python(index, chosen):
    grams = {tuple(QUESTION.split()[i : i + 13]) for i in range(5)}
    expected = any(tuple(chosen[i : i + 13]) in grams for i in range(len(chosen)))
    assert bool(index.hits([" ".join(chosen)])) == expected


def copied(tmp_path, data: bytes):
    (tmp_path / "toy.jsonl").write_bytes(data)
    num_items = copy_item_files({"toy": str(tmp_path / "toy.jsonl")}, str(tmp_path / "copy"))
    return num_items, list(read_item_fields({"toy": str(tmp_path / "copy/toy.jsonl")}))


def test_copied_items_have_the_same_lines_as_bytes_and_as_text(tmp_path):
    data = b'\xef\xbb\xbf{"q":"caf\xc3\xa9",\r"a":["x"]}\r\n\n  {"q":"\xe2\x80\xa8"}'
    num_items, fields = copied(tmp_path, data)
    assert num_items == {"toy": 2}
    assert fields == [
        ItemField("toy", 0, "q", "café"),
        ItemField("toy", 0, "a[0]", "x"),
        ItemField("toy", 1, "q", "\u2028"),
    ]
    as_text = (tmp_path / "copy/toy.jsonl").read_text(encoding="utf-8").split("\n")
    assert [bool(line) for line in as_text] == [True, True, False]


@pytest.mark.parametrize(
    "line",
    [b'{"q":"half of one \\ud800"}', '{"q":"é"}'.encode("latin-1"), '{"q":"é"}'.encode("utf-16"), b'{"q":"a\rb"}'],
)
def test_an_item_that_is_no_object_is_refused(line, tmp_path):
    with expect_error(ValueError):
        copied(tmp_path, b'{"q":"a"}\n' + line + b"\n")
