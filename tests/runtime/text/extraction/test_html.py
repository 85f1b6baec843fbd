"""Pins down: the text of a page keeps its code, its lists and its formulae, and loses what is beside the content."""

import pytest

from runtime.text.extraction.html import page_text

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
        ("<math><mi>y</mi><mo>=</mo><mn>3</mn></math>", "y=3"),
    ],
)
def test_a_formula_stands_once_as_its_tex(formula, expected):
    assert text_of(f"<p>Here {formula} there.</p>") == f"Here {expected} there."


def test_many_links_among_prose_are_kept():
    # Looked up one by one in the tree, as they would be in a loop over it, they would take minutes.
    items = (f"<li>{OPENING} See <a href='{place}'>page {place}</a>.</li>" for place in range(3_000))
    assert text_of(f"<ul>{''.join(items)}</ul>").count("See page") == 3_000
