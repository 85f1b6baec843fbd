"""Formulae of a page as TeX between dollar signs, each once, whatever forms the page shows it in.

The TeX comes from the page: an annotation, a script, the text of an image. Without any, MathML's structure is written
as TeX, and powers in the text keep their sign.
"""

import re
from typing import Any

from runtime.text.extraction.code_blocks import All
from runtime.text.extraction.mathml import is_structured, tex_of
from runtime.text.extraction.short_texts import text_node, text_of

# What shows a formula, outermost first: MediaWiki, KaTeX, MathJax 3 and 2, and MathML that stands alone (LaTeXML).
_FORMULAE = (
    ".mwe-math-element",
    ".katex-display",
    ".katex",
    "mjx-container",
    'script[type^="math/tex"]',
    "math",
    "img.mwe-math-fallback-image-inline, img.mwe-math-fallback-image-display",
)
_IMAGES = 'img.tex, img.latex, img.math, img[src*="latex.codecogs.com"], img[src*="/latex.php"]'
_SIGNS = ("math", "katex", "mjx")
"""Parts of the names in `_FORMULAE` and `_RENDERED_TWICE`: each name has one of them, and most pages have none."""
_RENDERED_TWICE = ".MathJax, .MathJax_Display, .MathJax_Preview, .MathJax_CHTML, .MathJax_SVG"
_DISPLAY = re.compile(r"\bdisplay\b|katex-display|fallback-image-display|mode=display")
_STYLE = re.compile(r"^\{\\(?:display|text)style\s*(.*)\}$", re.S)
_POWER = re.compile(r"[-+−]?(?:\d{1,3}|\d?[ijkmnptxy])")
_BASE = re.compile(r"(?:\d|\)|(?:^|[^A-Za-z])(?:[A-Za-z]|[kcmn]m|mi|ft|in))$")


def write_as_tex(tree: Any, page: str, select: All) -> None:
    """Replace every formula of a page by its TeX."""
    lowered = page.lower()
    has_formulae = any(sign in lowered for sign in _SIGNS)
    for selector in (*(_FORMULAE if has_formulae else ()), _IMAGES):
        # A formula in another goes with it: each level of a deep nest would be read again.
        outermost = selector if "," in selector else f"{selector}:not({selector} {selector})"
        for element in select(tree, outermost):
            tex = _tex(element)
            if tex:
                mark = "$$" if _is_display(element) else "$"
                element.replace_with(text_node(tree, f"{mark}{tex}{mark}"))
    if has_formulae:
        for element in select(tree, _RENDERED_TWICE):
            element.decompose()
    for power in select(tree, "sup:not(:has(*))"):
        before = power.prev
        if (
            before is not None
            and before.tag == "#text"
            and _POWER.fullmatch(text_of(power))
            and _BASE.search(text_of(before))
        ):
            power.replace_with(text_node(tree, f"^{power.text}"))


def _tex(element: Any) -> str:
    """Return the TeX of a formula; "" if the page has none."""
    source = element.query_selector('annotation[encoding="application/x-tex"]')
    if source is not None:
        found = text_of(source)
    elif element.tag == "script":
        found = text_of(element)
    else:
        named = element if element.tag in ("math", "img") else element.query_selector("math[alttext], img[alt]")
        found = "" if named is None else named.getattr("alttext") or named.getattr("alt") or ""
    if not found.strip():
        inner = element if element.tag == "math" else element.query_selector("math")
        return tex_of(inner) if inner is not None and is_structured(inner) else ""
    found = " ".join(found.split())
    style = _STYLE.match(found)
    return style.group(1).strip() if style else found


def _is_display(element: Any) -> bool:
    inner = element if element.tag == "math" else element.query_selector("math")
    values = [element.getattr(name) or "" for name in ("class", "display", "type")]
    values += [] if inner is None else [inner.getattr("display") or ""]
    return any(_DISPLAY.search(value) or value == "block" for value in values)
