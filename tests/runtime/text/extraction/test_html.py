"""HTML pages: the text keeps code, lists and formulae, and loses what is beside the content."""

import subprocess
import sys
import time

import pytest

from runtime.text.extraction.extracted import Text, Unreadable
from runtime.text.extraction.formats import HtmlPages
from runtime.text.extraction.guard import TOO_MUCH_MEMORY
from runtime.text.extraction.html import page_text, read_pages

OPENING = "<p>The toys of the valley have been made of wood for longer than anyone there can remember.</p>"


def text_of(body):
    page = f"<html><body><nav><ul><li><a href='/'>Home</a></li></ul></nav><main>{OPENING}{body}</main></body></html>"
    text = page_text(page, main_content=True)
    opening, _, rest = text.partition("remember.")
    assert opening.startswith("The toys")
    return rest.strip("\n")


def test_code_keeps_its_indentation_and_empty_lines_and_loses_the_numbers_of_its_lines():
    code = "def wind(toy):\n    if toy &lt; 1:\n\n        return 0\n\treturn toy"
    table = f"<table><tr><td class='linenos'><pre>1\n2</pre></td><td><pre><code>{code}</code></pre></td></tr></table>"
    expected = "def wind(toy):\n    if toy < 1:\n\n        return 0\n\treturn toy"
    assert text_of(f"<pre>{code}</pre>") == expected
    assert text_of(table) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("<pre>a = 1<br>  b = 2<br/>\n\tc</pre>", "a = 1\n  b = 2\n\n\tc"),
        (
            "<pre><code><span class='line'><b>if</b> x:</span><span class='line'>    y</span></code></pre>",
            "if x:\n    y",
        ),
        ("<pre><code><span class='line'>if x:</span>\n<span class='line'>    y</span>\n</code></pre>", "if x:\n    y"),
        (
            "<table><tr><td class='blob-num'></td><td class='blob-code'>def f():</td></tr>"
            "<tr><td class='blob-num'></td><td class='blob-code'>    return 1</td></tr></table>",
            "def f():\n    return 1",
        ),
        ("<ul><li>Run:<pre>all:\n  make</pre></li></ul>", "  • Run:\n\n    all:\n      make"),
        (
            "<table><tr><td>Wind the toy:<table><tr><td class='blob-code'>def f():</td></tr></table></td></tr></table>",
            "Wind the toy:\n\ndef f():",
        ),
        ("<pre>a\n<pre>  b</pre></pre>", "a\n  b"),
        (
            "<table><tr><th>A</th><th>B</th></tr>"
            "<tr><td><pre>x = 1</pre></td><td><pre>y = 2\nz</pre></td></tr></table>",
            "A\t\tB\nx = 1\t\ty = 2\nz",
        ),
    ],
)
def test_code_keeps_its_lines_in_every_markup(code, expected):
    assert text_of(code) == expected


@pytest.mark.parametrize("mark", ["\ue000", "&#xe000;", "&#57344;"])
@pytest.mark.parametrize("number", ["0", "7", "9" * 5_000])
def test_no_page_can_forge_a_mark_of_code(mark, number):
    forged = f"{mark}{number}{mark}"
    shown = f"\ue000{number}\ue000"
    assert text_of(f"<p>{forged}</p>") == shown
    assert text_of(f"<p>{forged}</p><pre>x\n  y</pre>") == f"{shown}\n\nx\n  y"
    assert text_of(f"<pre>x {forged}</pre>") == f"x {shown}"


def test_code_of_a_page_that_uses_every_private_character_stays():
    areas = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
    every = "".join(chr(point) for area in areas for point in area)
    assert text_of(f"<p>{every}</p><pre>x = 1</pre>") == f"{every}\n\nx = 1"
    assert text_of(f"<p>{every[:-1]}</p><pre>x = 1\n  y</pre>") == f"{every[:-1]}\n\nx = 1\n  y"


def test_a_long_line_moves_the_code_in_it_by_a_bounded_width():
    wide = "&#x3000;" * 2_000
    found = text_of(f"<p>{wide}</p><ul><li>{wide}<pre>{'x<br>' * 500}</pre></li></ul>")
    assert found.count("x") == 500
    assert len(found) < 500 * 100


def test_a_row_of_a_table_of_data_is_one_line():
    table = (
        "<table><caption>Toys</caption><tr><th>Toy</th><th>Sold<br>in</th><th>Price</th></tr>"
        "<tr><td><p>Ship</p><p>of wood</p></td><td><ul><li>May</li><li>June</li></ul></td><td>5</td></tr></table>"
    )
    assert text_of(table) == "Toys\nToy\t\tSold in\t\tPrice\nShip of wood\t\tMay June\t\t5"


def test_links_for_further_reading_are_kept():
    titles = ("The winding of toys by children", "Wood of the valley (1911)")
    links = "<ul>" + "".join(f"<li><a href='#'>{title}</a></li>" for title in titles) + "</ul>"
    assert text_of(links) == "  • The winding of toys by children\n  • Wood of the valley (1911)"
    assert text_of(f"<div class='box'><h2>More</h2>{links}</div>") == "More"


def test_bars_of_links_are_navigation_and_links_in_a_sentence_are_not():
    links = [f"<a href='{name}'>{name}</a>" for name in ("Home", "News", "Shop")]
    table = f"<table><tr><td>{' | '.join(links)}</td></tr><tr><td>Toys of {', '.join(links)}</td></tr></table>"
    assert text_of(table) == "Toys of Home, News, Shop"
    assert text_of(f"<p>{links[0]} | {links[1]}</p>") == "Home | News"


def test_marks_of_headings_and_names_of_pictures_go():
    page = (
        "<h2>Winding<a class='anchor' href='#w'>#</a><a href='#w'>¶</a></h2><p>A key. <img alt='logo' src='l.png'></p>"
    )
    assert text_of(page) == "Winding\n\nA key."


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("<table><tr><th>Key</th><th>Turns</th></tr><tr><td>big</td><td>9</td></tr></table>", "Key\t\tTurns\nbig\t\t9"),
        ("<blockquote><p>Wind it.</p><cite>A maker</cite></blockquote>", "Wind it.\n\nA maker"),
        ("<pre><code>def wind():\n    turn(9)</code></pre>", "def wind():\n    turn(9)"),
        ("<a href='k.png'><img src='k.png' alt='logo'></a>", ""),
        ("<svg><title>icon</title><text>9</text></svg><video>Your browser plays no films.</video>", ""),
    ],
)
@pytest.mark.parametrize("main_content", [True, False])
def test_tables_quotations_code_and_captions_of_figures_stay(figure, expected, main_content):
    page = f"<p>Before it.</p><figure>{figure}<figcaption>Fig. 1: a key.</figcaption></figure><p>Behind it.</p>"
    found = page_text(page, main_content=main_content)
    assert [line for line in found.split("\n") if line] == [
        "Before it.", *filter(None, expected.split("\n")), "Fig. 1: a key.", "Behind it.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("powers", "expected"),
    [
        ("10<sup>-6</sup> m<sup>2</sup>, 3 km<sup>2</sup>, (a + b)<sup>n</sup>", "10^-6 m^2, 3 km^2, (a + b)^n"),
        ("the 1<sup>st</sup> toy<sup>1</sup> of 9<sup><a href='#n'>[2]</a></sup>", "the 1st toy1 of 9[2]"),
    ],
)
def test_powers_keep_their_sign_and_footnotes_get_none(powers, expected):
    assert text_of(f"<p>So {powers}.</p>") == f"So {expected}."


def test_lists_of_prose_are_kept_and_lists_of_links_are_navigation():
    prose = (
        "<ul><li>wind it</li><li><p>let it <a href='x'>go</a></p><ul><li>slowly</li></ul></li></ul><ol><li>a</li></ol>"
    )
    found = text_of(prose)
    assert [line.strip() for line in found.split("\n") if line.strip()] == [
        "• wind it", "• let it go", "• slowly", "1. a",
    ]  # fmt: skip
    links = "<ul>" + "".join(f"<li><a href='{place}'>Page {place}</a></li>" for place in range(9)) + "</ul>"
    assert text_of(links) == ""


TEX = "x^2 + \\frac{1}{2}"
MATHML = f"<semantics><mi>x</mi><annotation encoding='application/x-tex'>{TEX}</annotation></semantics>"


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (f"<math>{MATHML}</math>", f"${TEX}$"),
        (f"<math alttext='{TEX}' display='block'><mi>x</mi></math>", f"$${TEX}$$"),
        (
            "<span class='mwe-math-element'><span style='display: none'><math><semantics><mi>x</mi><annotation "
            f"encoding='application/x-tex'>{{\\displaystyle {TEX}}}</annotation></semantics></math></span>"
            f"<img class='mwe-math-fallback-image-inline' alt='{{\\displaystyle {TEX}}}'></span>",
            f"${TEX}$",
        ),
        (
            f"<span class='katex-display'><span class='katex'><span class='katex-mathml'><math>{MATHML}</math></span>"
            "<span class='katex-html' aria-hidden='true'>x2+21</span></span></span>",
            f"$${TEX}$$",
        ),
        (
            "<span class='MathJax_Preview'>x2</span><span class='MathJax'>x2</span>"
            f"<script type='math/tex'>{TEX}</script>",
            f"${TEX}$",
        ),
        (f"<script type='math/tex; mode=display'>{TEX}</script>", f"$${TEX}$$"),
        (
            f"<mjx-container class='MathJax' jax='SVG' display='true'><mjx-assistive-mml><math display='block'>{MATHML}"
            "</math></mjx-assistive-mml></mjx-container>",
            f"$${TEX}$$",
        ),
        (f"<img class='tex' alt='{TEX}'>", f"${TEX}$"),
        (f"\\({TEX}\\)", f"\\({TEX}\\)"),
        ("<img src='https://latex.codecogs.com/gif.latex?x' alt='x^2'>", "$x^2$"),
        ("<math><mi>y</mi><mo>=</mo><mn>3</mn></math>", "y=3"),
        (
            "<math><mfrac><mrow><mi>a</mi><mo>+</mo><mn>1</mn></mrow><mi>b</mi></mfrac><msup><mi>x</mi><mn>2</mn></msup>"
            "<msub><mrow><mi>x</mi><mi>y</mi></mrow><mn>1</mn></msub></math>",
            r"$\frac{a+1}{b}x^{2}{xy}_{1}$",
        ),
        (
            "<math display='block'><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi>"
            "</munderover><msqrt><mi>i</mi></msqrt><mroot><mi>i</mi><mn>3</mn></mroot>"
            "<mfenced open='{'><mi>i</mi><mi>j</mi></mfenced></math>",
            r"$$∑_{i=1}^{n}\sqrt{i}\sqrt[3]{i}\{i,j)$$",
        ),
        (
            "<math><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>0</mn></mtd></mtr><mtr><mtd><mtext>if so</mtext></mtd>"
            "<mtd><mn>1</mn></mtd></mtr></mtable></math>",
            r"$\begin{matrix}1 & 0 \\ \text{if so} & 1\end{matrix}$",
        ),
    ],
)
def test_a_formula_appears_once_as_tex(formula, expected):
    assert text_of(f"<p>Here {formula} there.</p>") == f"Here {expected} there."


@pytest.mark.parametrize("tag", ["mfrac", "mroot", "msqrt", "msup", "munderover", "mfenced", "mtr", "mtable"])
@pytest.mark.parametrize("parts", ["", "7", "<mn>7</mn>", "<mn>7</mn><mn>8</mn>", "<mn>7</mn>" * 4])
def test_a_formula_may_lack_parts_or_have_too_many(tag, parts):
    found = text_of(f"<p>so <math><{tag}>{parts}</{tag}></math> it is</p>")
    assert found.startswith("so") and found.endswith("it is")
    assert "7" in found or not parts


def test_pages_of_many_elements_are_read():
    # Looked up one by one in the tree, as they would be in a loop over it, they would take minutes; cells too.
    rows = "".join(f"<tr><td>a<br>{place}</td></tr>" for place in range(3_000))
    assert text_of(f"<table><tr><th>toy</th></tr>{rows}</table>").count("\na ") == 3_000
    items = (f"<li>{OPENING} See <a href='{place}'>page {place}</a>.</li>" for place in range(3_000))
    assert text_of(f"<ul>{''.join(items)}</ul>").count("See page") == 3_000
    assert text_of("<div>" + "<p>wind it</p>" * 6_000 + "</div>").count("wind it") == 6_000
    listed = "<ul><li><a href='#'>The winding of toys</a></li></ul>"
    assert text_of(OPENING + listed * 500).count("winding") == 500
    assert text_of("<div>" + listed * 500 + "</div>") == ""
    assert text_of("&nbsp;" * 100_000 + "<pre>x</pre>").endswith("x")
    assert text_of("<pre>x" * 900) == "x" * 900
    power = "<msup><mi>x</mi><mn>2</mn></msup>"
    assert text_of(f"<p>So <math>{power}{'<mi>y</mi>' * 2_000}</math>.</p>") == f"So $x^{{2}}{'y' * 2_000}$."


def test_a_page_may_be_nested_deeper_than_in_browsers_up_to_a_limit():
    def read(depth):
        page = b"<html><body>" + b"<div>" * depth + b"a toy"
        (found,) = read_pages(page, HtmlPages(main_content=False, max_replaced_share=0))
        return found

    assert isinstance(found := read(990), Text)
    assert found.text == "a toy"
    assert (read(1_000).reason, read(1_000).detail) == ("nested too deep", "more than 1,000 elements in each other")


@pytest.mark.parametrize("attributes", ["a{}", 'a{}="1"', "data-a{}='x y'"])
def test_a_tag_with_too_many_attributes_is_counted(attributes):
    tag = " ".join(attributes.format(number) for number in range(60_000))
    (found,) = read_pages(f"<p>x</p><div {tag}>y</div>".encode(), HtmlPages(main_content=True, max_replaced_share=0))
    assert isinstance(found, Unreadable)
    assert found.reason == "too many attributes"


@pytest.mark.parametrize(
    "body",
    [
        f"<script>if (a<b) {{ {'x = y; ' * 5_000} }}</script>",
        f"<!-- a<b {'x = y; ' * 5_000} -->",
        f'<img src="data:image/png;base64,{"A" * 100_000}" alt="{"a word " * 5_000}">',
        f"<div {' '.join(f'a{number}' for number in range(900))}></div>",
        "a text of words " * 5_000,
    ],
)
def test_a_long_tag_or_script_is_no_tag_with_too_many_attributes(body):
    assert text_of(f"{body}<p>The toy is wound.</p>").endswith("The toy is wound.")


def read_page_of(data):
    return read_pages(data, HtmlPages(main_content=True, max_replaced_share=0))


def test_formulae_in_each_other_are_not_read_again_at_each_level():
    start = time.process_time()
    (found,) = read_page_of(b"<math>" * 15_000)
    assert found.reason == "nested too deep"
    assert time.process_time() - start < 5  # 20 s if each level is read


def test_a_page_that_takes_too_much_memory_is_counted():
    program = (
        "from runtime.text.extraction.formats import HtmlPages\n"
        "from runtime.text.extraction.html import read_pages\n"
        "from runtime.text.extraction.guard import Limited\n"
        "from runtime.text.extraction.limits import Limits\n"
        "tags = ''.join(f'<b a{number}>' for number in range(400))\n"
        "bomb = f\"<p>{tags}</p>{'<p>x</p>' * 12_000}\".encode()\n"
        "read = lambda data: read_pages(data, HtmlPages(main_content=True, max_replaced_share=0))\n"
        "(found,) = Limited(Limits(max_document_memory=64 << 20))(read, bomb, anchor='', name='bomb', data=bomb)\n"
        "print(type(found).__name__, found.reason)"
    )
    # In a process of its own: the heap of a long test run has room that the limit does not see.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("Unreadable cannot be parsed", f"Unreadable {TOO_MUCH_MEMORY}")
