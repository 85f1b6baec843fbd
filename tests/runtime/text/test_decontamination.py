"""Pins down: a long run of words shared with an item is found where it stands; shorter ones are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.decontamination import ItemField, ItemIndex, build_index

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


def test_a_hit_says_which_item_and_where_in_the_document(index):
    shouted = QUESTION.upper().replace(" ", "\n", 3)
    document = f"Größe. {PADDING} {shouted}? {PADDING}"
    (hit,) = index.hits([PADDING, document])
    assert (hit.document, hit.task, hit.item, hit.field, hit.num_words) == (1, "toy", 0, "question", 17)
    assert document.encode()[hit.start : hit.end].decode() == hit.excerpt == shouted


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


def test_field_lengths_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(ValueError, match="min_field_words is 14, ngram_words is 13"):
        build_index(FIELDS, str(tmp_path), ngram_words=13, min_field_words=14)


@given(st.lists(st.sampled_from([*QUESTION.split(), "and", "other"]), max_size=40))
def test_hits_are_exactly_the_shared_runs_of_plain_python(index, chosen):
    grams = {tuple(QUESTION.split()[i : i + 13]) for i in range(5)}
    expected = any(tuple(chosen[i : i + 13]) in grams for i in range(len(chosen)))
    assert bool(index.hits([" ".join(chosen)])) == expected
