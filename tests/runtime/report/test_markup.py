"""Markup: text is escaped, markup is kept, numbers have one form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.report.markup import Markup, element, escaped, number
from runtime.report.tables import Cell, Column, table
from tests.catalogue import expect_error


def test_text_is_escaped_and_markup_is_kept():
    assert element("p", "a < b & c", element("b", '"')) == "<p>a &lt; b &amp; c<b>&quot;</b></p>"


@given(st.text(st.characters(codec=None)))
def test_no_text_can_open_a_tag_or_leave_its_quotes(text):
    found = escaped(text)
    assert not set("<>\"'") & set(found)
    found.encode()


def test_joining_markup_with_text_gives_plain_text_that_is_escaped_again():
    assert element("p", Markup("<b>") + "x") == "<p>&lt;b&gt;x</p>"


def test_controls_that_reverse_or_break_a_page_are_replaced():
    assert escaped("a\u202eb\x00c\ud800d\r\ne") == "a\ufffdb\ufffdc\ufffdd\ne"


def test_attributes_are_escaped_and_named_as_in_html():
    assert element("rect", class_='a"b', stroke_width=2, viewBox="0 0 1 1", hidden=True, rx=None) == (
        '<rect class="a&quot;b" stroke-width="2" viewBox="0 0 1 1" hidden/>'
    )


def test_an_attribute_name_that_is_no_word_is_refused():
    with expect_error(ValueError):
        element("p", **{"x onload": "y"})


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (-0.04, "0"), (2.25, "2.2"), (10, "10"), (100.0, "100")])
def test_a_coordinate_has_one_form(value, text):
    assert number(value) == text


def test_a_row_of_the_wrong_length_is_refused():
    with expect_error(ValueError):
        table([Column("a"), Column("b")], [["x"]], "t")


def test_cells_are_marked_and_escaped():
    made = table([Column("a"), Column("b", "number")], [["<x>", Cell("1", is_best=True)]], "t")
    assert '<th scope="row">&lt;x&gt;</th><td class="number best">1</td>' in made
