"""Markup: text is escaped, and markup is kept."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.report.markup import Cell, Markup, element, escaped, table


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
    made = element("input", class_='a"b', aria_label="x", title=None)
    assert made == '<input class="a&quot;b" aria-label="x">'


def test_cells_are_marked_and_escaped():
    made = table(["a", "#b"], [["<x>", Cell("1", is_best=True)]], "t")
    assert '<th scope="row">&lt;x&gt;</th><td class="number best">1</td>' in made


def test_equal_cells_of_consecutive_rows_are_one_cell_and_only_within_the_cell_before_them():
    rows = [["a", "x", "1"], ["a", "x", "2"], ["b", "x", "2"]]
    made = table(["first", "second", "third"], rows, "t", grouped=2)
    assert '<th scope="rowgroup" rowspan="2">a</th><td rowspan="2">x</td><td>1</td></tr><tr><td>2</td>' in made
    assert made.endswith('<th scope="row">b</th><td>x</td><td>2</td></tr></tbody></table></div>')
