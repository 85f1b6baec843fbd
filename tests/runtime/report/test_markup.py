"""Markup: no text of a document or model reaches a page unescaped or turns it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from runtime.report import page_html
from runtime.report.html import document, macro, table
from runtime.report.markup import printable


@given(st.text(st.characters(codec=None)))
def test_no_text_can_open_a_tag_or_leave_its_quotes(text):
    made = macro("figure.html", "button", text, text, text)
    assert made.count("<") == made.count(">") == 2 and made.count('"') == 6
    made.encode()


@given(st.text(st.characters(codec=None)))
def test_no_text_ends_the_element_that_holds_it_as_data(text):
    made = page_html.macro("documents.html", "of_step", {text: [text]}, None)
    data = made.partition('type="application/json">')[2].partition("</script>")[0]
    assert not set("<>&") & set(data)
    assert list(json.loads(data)["lists"].values()) == [[printable(text)]]


def test_joining_markup_with_text_gives_text_that_is_escaped_again():
    made = page_html.macro("pages.html", "words", "x")
    assert "&lt;pre&gt;" in document("t", "", f"{made}", scripts=())


def test_controls_that_reverse_or_break_a_page_are_replaced():
    assert printable("a\u202eb\x00c\ud800d\r\ne") == "a\ufffdb\ufffdc\ufffdd\ne"
    assert "a\ufffdb" in table(["a"], [["a\u202eb"]], "t")


def test_cells_are_escaped_and_numbers_marked():
    made = table(["a", "#b"], [["<x>", "1"]], "t")
    assert '<th scope="row">&lt;x&gt;</th><td class="number">1</td>' in made
    assert table(["a"], [], "t") == ""


def test_equal_cells_of_consecutive_rows_are_one_cell_and_only_within_the_cell_before_them():
    rows = [["a", "x", "1"], ["a", "x", "2"], ["b", "x", "2"]]
    made = table(["first", "second", "third"], rows, "t", grouped=2)
    assert '<th scope="rowgroup" rowspan="2">a</th><td rowspan="2">x</td><td>1</td></tr><tr><td>2</td>' in made
    assert made.endswith('<th scope="row">b</th><td>x</td><td>2</td></tr></tbody></table></div>')


class CountedRow(list):
    """A row that counts how often it is cut, which each comparison does."""

    num_cuts = 0

    def __getitem__(self, place):
        CountedRow.num_cuts += isinstance(place, slice)
        return super().__getitem__(place)


def test_the_work_of_grouped_cells_grows_with_the_rows_alone():
    rows = [CountedRow([f"group {index // 2}", f"{index}"]) for index in range(200)]
    assert table(["group", "row"], rows, "t", grouped=1).count('rowspan="2"') == 100
    assert CountedRow.num_cuts <= 2 * len(rows)
