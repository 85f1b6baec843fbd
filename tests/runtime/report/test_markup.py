"""Markup: no text of a document or model reaches a page unescaped or turns it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from runtime.report.html import document, macro
from runtime.report.markup import printable


@given(st.text(st.characters(codec=None)))
def test_no_text_can_open_a_tag_or_leave_its_quotes(text):
    made = macro("figure.html", "button", text, text, text)
    assert made.count("<") == made.count(">") == 2 and made.count('"') == 6
    made.encode()


@given(st.text(st.characters(codec=None)))
def test_no_text_ends_the_element_that_holds_it_as_data(text):
    made = macro("documents.html", "of_step", {text: [text]}, None)
    data = made.partition('type="application/json">')[2].partition("</script>")[0]
    assert not set("<>&") & set(data)
    assert list(json.loads(data)["lists"].values()) == [[printable(text)]]


def test_joining_markup_with_text_gives_text_that_is_escaped_again():
    made = macro("pages.html", "words", "x")
    assert "&lt;pre&gt;" in document("t", "", f"{made}", scripts=())


def test_controls_that_reverse_or_break_a_page_are_replaced():
    assert printable("a\u202eb\x00c\ud800d\r\ne") == "a\ufffdb\ufffdc\ufffdd\ne"
    assert "a\ufffdb" in macro("tables.html", "of_rows", ["a"], [["a\u202eb"]], "t")


def test_cells_are_escaped_and_numbers_marked():
    made = macro("tables.html", "of_rows", ["a", "#b"], [["<x>", "1"]], "t")
    assert '<th scope="row">&lt;x&gt;</th><td class="number">1</td>' in made
    assert macro("tables.html", "of_rows", ["a"], [], "t") == ""
