"""Short texts: every printable character comes out of a page, alone in any tag, as itself or as a reference."""

import html
import itertools
import unicodedata

import pytest

from runtime.text.extraction.html import page_text, plain_text

PRINTABLE = [c for c in map(chr, range(0x21, 0x30000)) if c.isprintable() and not c.isspace()]
THREE_BYTES = [c for c in PRINTABLE if len(c.encode()) == 3]
OTHERS = [c for c in PRINTABLE if len(c.encode()) != 3]
TWO_BYTES = [c for c in OTHERS if len(c.encode()) == 2]
# A cell is tried with each character; the other tags with these.
SAMPLE = [*THREE_BYTES[::37], *TWO_BYTES[::7], *OTHERS[::97], *(f"x{c}" for c in TWO_BYTES[::11])]
PARAGRAPH = "<p>A paragraph that is long enough for a page of its own, and has no links.</p>"

INLINE = [
    *(f"<p>a<{tag}>{{}}</{tag}>z</p>" for tag in ("b", "i", "em", "strong", "a", "span", "code", "font", "u", "time")),
    "<p>a<b></b>{}<b></b>z</p>",
    "<p>a<b><i><u>{}</u></i></b>z</p>",
    "<p>a<!-- note -->{}<!-- note -->z</p>",
    "<p>a<b>\n{}\t</b>z</p>",
]
BLOCKS = [
    *(f"<{tag}>{{}}</{tag}>" for tag in ("p", "div", "h2", "blockquote", "dd", "section", "center")),
    "<p><b>{}</b></p>",
    "<ol><li>{}</ol>",
    "<ol><li><a>{}</a></ol>",
    "<ol><li><time>{}</time></ol>",
    "<table><tr><td>{}</td></tr></table>",
    "<table><tr><td><a>{}</a></td></tr></table>",
    "<table><tr><th>k</th></tr><tr><td><p>{}</p></td></tr></table>",
    "<table><caption>{}</caption><tr><td></table>",
    "<br>{}<br>",
]


def batches(texts, size=2_000):
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, size)):
        yield batch


def lines(shape, texts):
    """Return the lines of a page that has each text in this shape, without marks of lists."""
    body = "".join(shape.format(html.escape(text)) for text in texts)
    page = page_text(f"<html><body><article>{PARAGRAPH}{body}{PARAGRAPH}</article></body></html>", main_content=True)
    return [line.strip(" \t\n").removeprefix("1. ") for line in page.split("\n")]


@pytest.mark.parametrize("shape", INLINE)
def test_each_character_stays_in_its_sentence(shape):
    for batch in batches(SAMPLE):
        found = {line.replace(" ", "") for line in lines(shape, batch)}
        assert [text for text in batch if f"a{text}z" not in found] == []


@pytest.mark.parametrize("shape", BLOCKS)
def test_each_character_stays_in_its_block(shape):
    for batch in batches(SAMPLE):
        assert set(batch) - set(lines(shape, batch)) == set()


def test_each_printable_character_stays_in_a_cell_and_in_bold():
    for batch in batches([*PRINTABLE, *(f"x{c}" for c in TWO_BYTES)]):
        assert set(batch) - set(lines("<table><tr><td><b>{}</b></td></tr></table>", batch)) == set()


@pytest.mark.parametrize(
    "reference", ["&mdash;", "&#8212;", "&#x2014;", "x&sup2;", "5&deg;", "1&nbsp;", "&euro", "&#25105;"]
)
def test_a_reference_is_a_character(reference):
    body = f"<table><tr><td>a</td><td>{reference}</td><td>z</td></tr></table><p>b<b>{reference}</b>z</p>"
    page = page_text(f"<html><body><article>{PARAGRAPH}{body}</article></body></html>", main_content=True)
    character = html.unescape(reference)
    assert f"a\t\t{character}\t\tz" in page
    assert f"b{character}z" in page


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<table><tr><td><a>1979</a>–<a>1983</a></td></tr></table>", "1979–1983"),
        ("<p>我<b>爱</b>你们大家。<b>北</b><b>京</b>很大。</p>", "我爱你们大家。北京很大。"),
        ("<p>“<i>Hamlet</i>” is a play, if <i>x</i> ≤ <i>y</i>.</p>", "“Hamlet” is a play, if x ≤ y."),
        ("<p>Price: 10 <b>€</b> each, if <i>x</i> − <i>y</i> holds.</p>", "Price: 10 € each, if x − y holds."),
        ("<table><tr><td><span>n<sup>º</sup></span></td></tr></table>", "nº"),
        ("<table><tr><th>k</th></tr><tr><td><b><i>x</i>²</b><br></td></tr></table>", "k\nx²"),
        ("<p><math><mi>α</mi><mo>−</mo><msup><mi>β</mi><mn>2</mn></msup></math></p>", "$α−β^{2}$"),
        ("<p>See</p><pre><span>→</span>\n</pre>", "See\n\n→"),
        ("<h2>A heading<a href='#a'>¶</a></h2>", "A heading"),
        ("<p><i>\ue001</i><i>&#xe001;</i>A text behind icons</p>", "A text behind icons"),
        ("<p><ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>です</p>", "漢字です"),
        ("<p>a\ufdd0b</p>", "ab"),
        ("<p>a\x85b &#133; c&#129;d</p>", "a\nb … cd"),
    ],
)
def test_a_text_with_short_pieces_is_whole(body, expected):
    page = page_text(f"<html><body><article>{PARAGRAPH}{body}</article></body></html>", main_content=True)
    assert page.split("\n\n", 1)[1].strip() == expected


def test_the_whole_text_of_a_page_has_them_too():
    assert plain_text("é") == "é"
    assert plain_text("<p>5°</p><p>–</p>") == "5°\n\n–"
    assert page_text("<p>5°<p><b>–</b>", main_content=False) == "5°\n\n–"


def test_no_control_character_comes_out():
    controls = "".join(f"<p>a&#{code};b{chr(code)}c</p>" for code in range(0x80, 0xA0))
    page = page_text(f"<html><body>{controls}</body></html>", main_content=False)
    assert not [c for c in page if unicodedata.category(c) == "Cc" and c not in "\n\t"]
