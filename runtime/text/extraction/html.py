"""HTML to text, by Resiliparse: block structure stays as line breaks, lists keep their marks, code its layout.

Three things that Resiliparse loses are mended in its tree before it reads it: formulae are given as TeX, once, between
dollar signs, instead of once for each way in which a page shows them; numbers beside the lines of code and the marks
behind headings go; and lists of prose are kept, which its rule for the main content takes for navigation.
"""

import gzip
import html
import json
import re
from collections.abc import Iterator
from typing import Any

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from runtime.text.extraction.extracted import Extracted, Text, Unreadable, decoded, metadata

# What shows a formula, outermost first: MediaWiki, KaTeX, MathJax 3 and 2, and MathML that stands alone (LaTeXML).
_FORMULAE = (
    ".mwe-math-element",
    ".katex-display",
    ".katex",
    "mjx-container",
    'script[type^="math/tex"]',
    "math",
    "img.tex, img.latex, img.mwe-math-fallback-image-inline, img.mwe-math-fallback-image-display",
)
_RENDERED_TWICE = ".MathJax, .MathJax_Display, .MathJax_Preview, .MathJax_CHTML, .MathJax_SVG"
_NO_PROSE = "td.linenos, td.gutter, .lineno, .linenodiv, .line-numbers-rows, a.headerlink, .mw-editsection"
_DISPLAY = re.compile(r"\bdisplay\b|katex-display|fallback-image-display|mode=display")
_STYLE = re.compile(r"^\{\\(?:display|text)style\s*(.*)\}$", re.S)
_MAX_LINKED = 0.5
# Deeper than Resiliparse looks for navigation; an element of no meaning of its own changes nothing else.
_WRAPPERS = 6


def read_pages(data: bytes, *, main_content: bool) -> Extracted:
    page = decoded(data)
    if isinstance(page, Unreadable):
        yield page
        return
    yield Text("", page_text(page, main_content=main_content))


def plain_text(markup: str) -> str:
    """All the text of a piece of HTML without formulae."""
    return extract_plain_text(markup, preserve_formatting=True).strip()


def page_text(page: str, *, main_content: bool) -> str:
    """The text of a page that people wrote for people.

    Args:
        page: The page as it came.
        main_content: Leave navigation, side bars and footers out.
    """
    tree: Any = HTMLTree.parse(page)  # its stubs allow None wherever a node may be asked for
    if tree.body is None:
        return ""
    for element in _all(tree, _NO_PROSE):
        element.decompose()
    _write_formulae_as_tex(tree)
    if main_content:
        _protect_lists_of_prose(tree)
    return extract_plain_text(tree, preserve_formatting=True, main_content=main_content).strip()


def read_service_models(data: bytes) -> Extracted:
    """A page for each operation, with its request and response, and for each structure that is neither."""
    try:
        model = json.loads(gzip.decompress(data))
    except (OSError, EOFError, ValueError) as error:
        yield Unreadable("", "not a gzipped JSON service model", str(error), "")
        return
    service = model.get("metadata", {}).get("serviceFullName", "")
    for anchor, page in _pages(model):
        text = plain_text(page)
        if text:
            yield Text(anchor, text, metadata(service=service))


def _write_formulae_as_tex(tree: Any) -> None:
    for selector in _FORMULAE:
        for element in _all(tree, selector):
            tex = _tex(element)
            if tex:
                mark = "$$" if _is_display(element) else "$"
                element.replace_with(tree.create_text_node(f"{mark}{tex}{mark}"))
    for element in _all(tree, _RENDERED_TWICE):
        element.decompose()


def _tex(element: Any) -> str:
    """The TeX that stands behind a formula; "" where the page does not tell it."""
    source = element.query_selector('annotation[encoding="application/x-tex"]')
    if source is not None:
        found = source.text
    elif element.tag == "script":
        found = element.text
    else:
        told = element if element.tag in ("math", "img") else element.query_selector("math[alttext], img[alt]")
        found = "" if told is None else told.getattr("alttext") or told.getattr("alt") or ""
    found = " ".join(found.split())
    style = _STYLE.match(found)
    return style.group(1).strip() if style else found


def _is_display(element: Any) -> bool:
    inner = element if element.tag == "math" else element.query_selector("math")
    told = [element.getattr(name) or "" for name in ("class", "display", "type")]
    told += [] if inner is None else [inner.getattr("display") or ""]
    return any(_DISPLAY.search(value) or value == "block" for value in told)


def _protect_lists_of_prose(tree: Any) -> None:
    for element in _all(tree, "ul:not(ul ul, ol ul, nav ul, header ul, footer ul, aside ul)"):
        linked = sum(len(link.text) for link in element.query_selector_all("a").values())
        if linked <= _MAX_LINKED * len(element.text):
            wrapper = outer = tree.create_element("div")
            for _ in range(_WRAPPERS - 1):
                wrapper = wrapper.append_child(tree.create_element("div"))
            element.replace_with(outer)
            wrapper.append_child(element)


def _all(tree: Any, selector: str) -> list[Any]:
    # One by one the collection would be searched anew for each of its elements: minutes for a page of many links.
    return tree.document.query_selector_all(selector).values()


def _pages(model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    shapes = model["shapes"]
    title = model.get("metadata", {}).get("serviceFullName", "")
    if model.get("documentation"):
        yield "service", _page(title, model["documentation"])
    shown = set()
    for name, operation in model["operations"].items():
        sections = [operation.get("documentation", "")]
        for heading, key in (("Request", "input"), ("Response", "output")):
            shape = operation.get(key, {}).get("shape")
            if shape:
                shown.add(shape)
                sections.append(_members(heading, shapes[shape]))
        yield f"operation/{name}", _page(name, *sections)
    for name, shape in shapes.items():
        if shape.get("documentation") and name not in shown:
            yield f"shape/{name}", _page(name, shape["documentation"], _members("Contents", shape))


def _page(title: str, *sections: str) -> str:
    heading = html.escape(title)
    return f"<html><head><title>{heading}</title></head><body><h1>{heading}</h1>{''.join(sections)}</body></html>"


def _members(heading: str, shape: dict[str, Any]) -> str:
    documented = [
        (name, member["documentation"])
        for name, member in shape.get("members", {}).items()
        if member.get("documentation")
    ]
    if not documented:
        return ""
    entries = "".join(f"<dt>{html.escape(name)}</dt><dd>{text}</dd>" for name, text in documented)
    return f"<h2>{heading}</h2><dl>{entries}</dl>"
