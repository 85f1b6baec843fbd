"""Lists: numbers as browsers show them, and lists of prose that Resiliparse takes for navigation."""

import re

import pytest

from runtime.text.extraction.html import page_text

PARAGRAPH = "<p>A paragraph that is long enough for a page of its own, and has no links.</p>"


def text(body):
    return page_text(f"<html><body><article>{PARAGRAPH}{body}{PARAGRAPH}</article></body></html>", main_content=True)


@pytest.mark.parametrize(
    ("body", "labels"),
    [
        ("<ol><li>x<li>x</ol>", "1 2"),
        ("<ol start=5><li>x<li>x</ol>", "5 6"),
        ("<ol start=-1><li>x<li>x<li>x</ol>", "-1 0 1"),
        ("<ol><li>x<li value=10>x<li>x</ol>", "1 10 11"),
        ("<ol reversed><li>x<li>x<li>x</ol>", "3 2 1"),
        ("<ol reversed start=9><li>x<li>x</ol>", "9 8"),
        ("<ol type=a><li>x<li>x</ol>", "a b"),
        ("<ol type=A start=26><li>x<li>x</ol>", "Z AA"),
        ("<ol type=i start=3><li>x<li>x<li type=I>x</ol>", "iii iv V"),
        ("<ol type=I start=3999><li>x<li>x</ol>", "MMMCMXCIX 4000"),
        ("<ol type=a start=0><li>x<li>x</ol>", "0 a"),
        ("<ol start=two><li>x</ol>", "1"),
        ("<ol start=7><li><p>x</p><p>more</p><li><b>x</b></ol>", "7 8"),
        ("<ol start=3><li><ol type=a><li>x<li>x</ol><li>x</ol>", "a b 4"),
    ],
)
def test_items_have_the_numbers_that_a_browser_shows(body, labels):
    assert re.findall(r"(\S+)\. x", text(body)) == labels.split()


def item(linked, num_characters=300):
    words = round(num_characters * linked / 5)
    link = f"<a href=/x>{'link ' * words}</a>" if words else ""
    return f"<li>{link}{'word ' * (num_characters // 5 - words)}</li>"


@pytest.mark.parametrize("percent", range(0, 50, 4))
@pytest.mark.parametrize("wrapped", ["{}", "<div>{}</div>", "<section><div>{}</div></section>", "<ol><li>{}</ol>"])
def test_a_list_of_which_less_than_half_is_linked_stays(percent, wrapped):
    found = text(wrapped.format(f"<ul>{item(percent / 100)}</ul>"))
    assert found.count("word ") >= 29
    assert found.count("link ") == round(300 * percent / 500)


def test_a_fact_with_four_links_stays_under_its_heading():
    fact = (
        "that the <a>small grey field mouse</a> is a kind of <a>field mouse</a> from the <a>northern island</a>, and "
        "is found only in a stretch of forest smaller than the area of <a>the harbour</a>?"
    )
    assert "smaller than the area of the harbour?" in text(f"<h2>Facts</h2><ul><li>... {fact}</li></ul>")


def test_links_of_a_list_keep_what_is_in_them():
    found = text(f"<ul><li>{'word ' * 20}<a>one<br>two <b>–</b> <sup>2</sup></a></li></ul>")
    assert "one\n" in found
    assert "two – 2" in found


def test_a_list_of_links_is_navigation():
    assert "link link" not in text(f"<div>{'<ul>' + item(0.95) * 5 + '</ul>'}</div>")
