"""Formulae of a page as TeX between dollar signs, each once, whatever forms the page shows it in.

The TeX comes from the page: an annotation, a script, the text of an image. Without any, MathML's structure is written
as TeX (characters stay as they are: every current engine reads α), and powers in the text keep their sign.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from runtime.text.extraction.tree import select, text_node, text_of

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

_MAX_DEPTH = 64
"""An element deeper than this gives its text: no author nests so deep, and each level takes room on Python's stack."""
_FENCES = {"{": r"\{", "}": r"\}"}


def write_as_tex(tree: Any, page: str) -> None:
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
        is_behind_text = before is not None and before.tag == "#text"
        if is_behind_text and _POWER.fullmatch(text_of(power)) and _BASE.search(text_of(before)):
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
        # Without structure the characters alone lose nothing.
        is_structured = inner is not None and inner.query_selector(", ".join(_RULES)) is not None
        return " ".join(_element(inner, _MAX_DEPTH).split()) if is_structured else ""
    found = " ".join(found.split())
    style = _STYLE.match(found)
    return style.group(1).strip() if style else found


def _is_display(element: Any) -> bool:
    inner = element if element.tag == "math" else element.query_selector("math")
    values = [element.getattr(name) or "" for name in ("class", "display", "type")]
    values += [] if inner is None else [inner.getattr("display") or ""]
    return any(_DISPLAY.search(value) or value == "block" for value in values)


# MathML


def _element(element: Any, depth: int) -> str:
    """Return the TeX of a `math` element or anything in it."""
    if depth == 0:
        return text_of(element)
    rule = _RULES.get(element.tag)
    children = [node for node in element.child_nodes.values() if node.tag != "#text"]  # see `select`
    if rule is not None:
        # A page may leave out the elements of a fraction or write text in their place.
        return rule([_element(child, depth - 1) for child in children] or [text_of(element).strip()], element)
    if not children:
        text = " ".join(text_of(element).split())
        return rf"\text{{{text_of(element)}}}" if element.tag == "mtext" and text else _FENCES.get(text, text)
    return "".join(
        _element(child, depth - 1) for child in children if child.tag not in ("annotation", "annotation-xml")
    )


def _script(marks: str) -> Callable[[Sequence[str], Any], str]:
    def rule(parts: Sequence[str], element: Any) -> str:
        base, *scripts = parts
        base = base if len(base) == 1 or (base.startswith("\\") and " " not in base) else f"{{{base}}}"
        return base + "".join(f"{mark}{{{script}}}" for mark, script in zip(marks, scripts, strict=False))

    return rule


def _fenced(parts: Sequence[str], element: Any) -> str:
    left, right = (element.getattr(name) for name in ("open", "close"))
    left, right = ("(" if left is None else left), (")" if right is None else right)
    return _FENCES.get(left, left) + ",".join(parts) + _FENCES.get(right, right)


_RULES: dict[str, Callable[[Sequence[str], Any], str]] = {
    "mfrac": lambda parts, element: r"\frac{{{}}}{{{}}}".format(*parts, ""),
    "msqrt": lambda parts, element: rf"\sqrt{{{''.join(parts)}}}",
    "mroot": lambda parts, element: r"\sqrt[{1}]{{{0}}}".format(*parts, ""),
    "msup": _script("^"),
    "mover": _script("^"),
    "msub": _script("_"),
    "munder": _script("_"),
    "msubsup": _script("_^"),
    "munderover": _script("_^"),
    "mfenced": _fenced,
    "mtr": lambda parts, element: " & ".join(parts),
    "mtable": lambda parts, element: r"\begin{matrix}" + r" \\ ".join(parts) + r"\end{matrix}",
}
