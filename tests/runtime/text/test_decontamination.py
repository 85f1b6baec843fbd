"""Decontamination: a long run of words shared with an item is found at its place; shorter runs are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.decontamination import ItemIndex
from runtime.text.item_index import MAX_NAMED_FIELDS, build_index
from runtime.text.items import ItemField, copy_item_files, read_item_fields
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
        ("'", "&#39;"),
        ("'", "&rsquo;"),
        (",", "&#x2C;"),
        ("villages", "vil&shy;lages"),
        ("flood", "fl&#111;od"),
    ],
)
def test_typographic_characters_hide_no_question(tmp_path, found, put):
    build_index([ItemField("toy", 0, "question", QUOTED)], str(tmp_path), ngram_words=13, min_field_words=8)
    set_in_type = QUOTED.replace(found, put)
    assert set_in_type != QUOTED
    (hit,) = ItemIndex(str(tmp_path)).hits([f"Größe. {set_in_type} {PADDING}"])
    assert (f"{hit.excerpt}?", hit.num_words) == (set_in_type, 22)


def test_a_reference_to_a_number_keeps_the_places_behind_it(index):
    """Above U+FFFF, only the last numbers of each plane are no characters; some of the others are tested."""
    numbers = {*range(0x10000), *range(0x10000, 0x110000, 499)}
    numbers |= {0x10000 * plane + number for plane in range(1, 18) for number in (-2, -1, 0)}
    references = "".join(f"&#{number};" for number in sorted(numbers))
    (hit,) = index.hits([f"{references} {QUESTION}"])
    assert (hit.excerpt, hit.start) == (QUESTION, len(references) + 1)


@pytest.mark.parametrize("reference", ["&#1;", "&#11;", "&#x7f;", "&#xFDD0;"])
def test_a_reference_that_html_leaves_out_divides_no_word(index, reference):
    divided = QUESTION.replace("average", f"aver{reference}age")
    (hit,) = index.hits([f"{PADDING} {divided}"])
    assert hit.excerpt == divided


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
    counts = build_index(fields, str(tmp_path), ngram_words=13, min_field_words=8)
    hits = ItemIndex(str(tmp_path)).hits([QUESTION])
    assert counts == (5, {})
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
    assert build_index([FIELDS[2]], str(tmp_path), ngram_words=13, min_field_words=8) == (0, {"toy": 1})
    assert ItemIndex(str(tmp_path)).hits([PADDING]) == []


def test_impossible_field_lengths_are_refused(tmp_path):
    with expect_error(ValueError):
        build_index(FIELDS, str(tmp_path), ngram_words=13, min_field_words=14)


def test_runs_of_a_script_without_spaces_may_have_127_characters(tmp_path):
    """Each character of such scripts is a word, and thirteen words are no sign of a copy."""
    question = "".join(chr(0x4E00 + number) for number in range(MOST_NGRAM_WORDS + 2))
    fields = [ItemField("toy", 0, "question", question)]
    longest = {"ngram_words": MOST_NGRAM_WORDS, "min_field_words": MOST_NGRAM_WORDS}
    assert build_index(fields, str(tmp_path), **longest) == (3, {})
    found = ItemIndex(str(tmp_path))
    (hit,) = found.hits([question[1:]])
    assert hit.num_words == MOST_NGRAM_WORDS + 1
    assert found.hits([question[3:]]) == []


@given(st.lists(st.sampled_from([*QUESTION.split(), "and", "other"]), max_size=40))
def test_hits_match_plain_python(index, chosen):
    grams = {tuple(QUESTION.split()[i : i + 13]) for i in range(5)}
    expected = any(tuple(chosen[i : i + 13]) in grams for i in range(len(chosen)))
    assert bool(index.hits([" ".join(chosen)])) == expected


SHORT = [
    ItemField("toy", 0, "goal", "How to keep a guinea pig warm"),
    ItemField("toy", 0, "sol1", "Line its cage with straw."),
    ItemField("toy", 0, "sol2", "Line its cage with ice."),
    ItemField("toy", 1, "question", "What is the best way to help other people in your life?"),
    ItemField("toy", 1, "choices[0]", "Ask them what they need."),
    ItemField("toy", 2, "question", "Is it open?"),
    ItemField("toy", 2, "choices[0]", "yes"),
    ItemField("toy", 3, "question", "Which law of the state limits it?"),
    ItemField("toy", 3, "choices[0]", "the due process clause of the fourteenth amendment"),
]


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("short"))
    counts = build_index(SHORT, folder, ngram_words=13, min_field_words=8)
    assert counts.num_not_searched == {"toy": 2}, "one of common words alone, and one of a few words in all"
    return ItemIndex(folder)


def test_a_short_question_is_found_with_its_answer_near_it(short):
    goal, answer = SHORT[0].text, SHORT[1].text
    for text in (
        f"{goal}? {answer}",
        f"Answer: {answer} {PADDING} Question: {goal.upper()}",
        f"{goal}\n\n- b) {answer}",
    ):
        (hit,) = short.hits([f"{PADDING} {text}"])
        assert (hit.item, hit.field, hit.num_words) == (0, "goal", 7)
    assert short.hits([f"{PADDING} {goal}.", f"{PADDING} {answer}", f"{goal} {'and so on ' * 30} {answer}"]) == []


def test_plain_english_and_an_answer_alone_are_no_hits(short):
    assert short.hits([SHORT[3].text, SHORT[8].text, f"{SHORT[3].text} {SHORT[4].text}"]) == []
    (hit,) = short.hits([f"{SHORT[7].text} {SHORT[8].text}"])
    assert (hit.item, hit.field) == (3, "question")


TASKS = ("river", "valley", "harbour", "meadow", "forest", "mountain", "island", "desert", "village", "castle")


def planted():
    """Return fifty items: long questions, short ones with an answer, and rare short ones alone; and their texts."""
    fields, texts = [], []
    for number in range(50):
        place, other = TASKS[number % 10], TASKS[number // 5]
        kind = number % 3
        question = (
            f"In which year did settlers of the {place} number {number} near the {other} first build a bridge",
            f"Who founded {place} {other} {number}",
            f"Why did {number} wooden bridges of the {place} near {other} collapse",
        )[kind]
        answer = f"The grandfather of baron {number + 100}"
        fields.append(ItemField("toy", number, "question", question))
        if kind != 2:
            fields.append(ItemField("toy", number, "answer", answer))
        texts.append(question if kind == 2 else f"{question}?\n{answer}")
    return fields, texts


HOMOGLYPHS = str.maketrans("aeopcxyi", "\u0430\u0435\u03bf\u0440\u0441\u0445\u0443\u0456")
VARIANTS = {
    "verbatim": lambda text: text,
    "case": str.upper,
    "punctuation": lambda text: text.replace(" ", ", ").replace("?", " ...!"),
    "line breaks": lambda text: text.replace(" ", "\r\n"),
    "full width": lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "zero-width spaces between words": lambda text: text.replace(" ", "\u200b"),
    "zero-width spaces in words": lambda text: "\u200b".join(text).replace("\u200b \u200b", " "),
    "zero-width joiners": lambda text: "\u2060\u200d\ufeff".join(text),
    "homoglyphs": lambda text: text.translate(HOMOGLYPHS),
    "hyphens at line ends": lambda text: text.replace("oo", "o-\no").replace("er", "e\u2010\r\n  r"),
    "soft hyphens": lambda text: text.replace("oo", "o\u00ado"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_fifty_of_fifty_planted_items_are_found(tmp_path, variant):
    fields, texts = planted()
    assert build_index(fields, str(tmp_path), ngram_words=13, min_field_words=8).num_not_searched == {}
    documents = [f"{PADDING} {VARIANTS[variant](text)}\n{PADDING}" for text in texts]
    hits = ItemIndex(str(tmp_path)).hits(documents)
    assert {(hit.document, hit.item) for hit in hits} == {(number, number) for number in range(50)}
    for hit in hits:
        assert documents[hit.document].encode()[hit.start : hit.end].decode() == hit.excerpt


def test_a_run_with_a_word_divided_at_a_line_end_is_one_hit(index):
    divided = QUESTION.replace("average", "aver-\nage")
    (hit,) = index.hits([f"{PADDING} {divided} {PADDING}"])
    assert hit.excerpt == divided


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
    [
        b'{"q":"half of one \\ud800"}',
        '{"q":"é"}'.encode("latin-1"),
        '{"q":"é"}'.encode("utf-16"),
        b'{"q":"a\rb"}',
        b"[" * 100_000,
    ],
    ids=["surrogate", "latin-1", "utf-16", "carriage return", "deep"],
)
def test_an_item_that_is_no_object_is_refused(line, tmp_path):
    with expect_error(ValueError):
        copied(tmp_path, b'{"q":"a"}\n' + line + b"\n")
