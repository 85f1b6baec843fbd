"""HTML to text, by Resiliparse: block structure stays as line breaks, lists keep their marks, code its layout.

What Resiliparse loses is mended in its tree before it reads it: formulae are given as TeX (`formulae`), code as it
stands (`code_blocks`); numbers beside the lines of code and the marks behind headings go; a row of a table of data is
one line; bars of links go, and lists of prose, or of links among prose, stay, which its rule for the main content takes
for navigation.
"""

import re
from collections.abc import Sequence
from typing import Any

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from runtime.text.extraction.charset import decode_page
from runtime.text.extraction.code_blocks import put_back, set_aside
from runtime.text.extraction.extracted import Extracted, Text, Unreadable, metadata
from runtime.text.extraction.formulae import write_as_tex

NO_CHARSET, TOO_DEEP = "no charset fits", "nested too deep"
_EXCERPT_BYTES = 200
_NO_PROSE = "td.linenos, td.gutter, .lineno, .linenodiv, .line-numbers-rows, a.headerlink, .mw-editsection"
_HEADING_LINKS = "h1 a, h2 a, h3 a, h4 a, h5 a, h6 a"
_HEADING_MARKS = ("#", "¶", "§", "🔗")
_BAR = re.compile(r"(?=.*[|·•»/])[\s|·•»›>/\[\]-]*", re.S)
_MIN_LINKS_OF_BAR = 3
_MAX_LINKED = 0.5
_MIN_WORDS_PER_LINK = 3
_MIN_PROSE_CHARACTERS = 60
_MAX_CELL_CHARACTERS = 300
# Deeper than Resiliparse looks for navigation; an element of no meaning of its own changes nothing else.
_WRAPPERS = 6
# Browsers build no page deeper than 512. Resiliparse takes the square of the depth: a megabyte of `<div>` is an hour.
_MAX_DEPTH = 1_000
_TOO_DEEP_SELECTOR = ">".join(["html", *["*"] * _MAX_DEPTH])


class TooDeepError(ValueError):
    """A page whose elements are nested deeper than anybody would show it."""


def read_pages(data: bytes, *, main_content: bool, max_replaced_share: float) -> Extracted:
    """One page in whatever charset its bytes show or it declares; no server is there to be asked."""
    page = decode_page(data, server_charset=None, max_replaced_share=max_replaced_share)
    if page is None:
        yield Unreadable(
            "", NO_CHARSET, f"{len(data):,} bytes", data[:_EXCERPT_BYTES].decode(errors="backslashreplace")
        )
        return
    told = {"charset": page.charset, "charset_from": page.source}
    told |= {"replaced": str(page.num_replaced)} if page.num_replaced else {}
    try:
        yield Text("", page_text(page.text, main_content=main_content), metadata(**told))
    except TooDeepError as error:
        yield Unreadable("", TOO_DEEP, str(error), page.text[:_EXCERPT_BYTES])


def plain_text(markup: str) -> str:
    """All the text of a piece of HTML without formulae."""
    return extract_plain_text(markup, preserve_formatting=True).strip()


def page_text(page: str, *, main_content: bool) -> str:
    """The text of a page that people wrote for people.

    Args:
        page: The page as it came.
        main_content: Leave navigation, side bars and footers out.

    Raises:
        TooDeepError: more elements stand in each other than any page needs.
    """
    tree: Any = HTMLTree.parse(page)  # its stubs allow None wherever a node may be asked for
    if tree.body is None:
        return ""
    _refuse_too_deep(tree, outside="math")
    for element in _all(tree, _NO_PROSE):
        element.decompose()
    for mark in _all(tree, _HEADING_LINKS):
        if mark.text.strip() in _HEADING_MARKS:
            mark.decompose()
    write_as_tex(tree, _all)
    _refuse_too_deep(tree)
    code = set_aside(tree, _all)
    _join_cells(tree)
    if main_content:
        _remove_bars_of_links(tree)
        _protect_lists_of_prose(tree)
    # Of pictures only the text of formulae is said, which has its place by now: the rest is "logo" and "5 of 5 stars".
    text = extract_plain_text(tree, preserve_formatting=True, main_content=main_content, alt_texts=False)
    return put_back(text, code).strip()


def _refuse_too_deep(tree: Any, *, outside: str | None = None) -> None:
    for element in _all(tree, _TOO_DEEP_SELECTOR):
        if outside is None or element.closest(outside) is None:
            raise TooDeepError(f"more than {_MAX_DEPTH:,} elements in each other")


def _join_cells(tree: Any) -> None:
    """Makes the cells of tables of data one line each, so that a row stays a row; a table of layout has no headings."""
    for table in _all(tree, "table:has(th):not(:has(table))"):
        for cell in table.query_selector_all("td, th").values():
            if 0 < len(cell.text) <= _MAX_CELL_CHARACTERS and cell.query_selector("p, div, br, ul, ol") is not None:
                for line_break in cell.query_selector_all("br").values():
                    line_break.replace_with(tree.create_text_node(" "))
                for block in cell.query_selector_all("p, div, li").values():
                    block.append_child(tree.create_text_node(" "))
                joined = tree.create_text_node(" ".join(cell.text.split()))
                cell.replace_children(joined)


def _remove_bars_of_links(tree: Any) -> None:
    """Takes away what is three links or more and marks between them: the menus of pages that are laid out by tables."""
    for element in _all(tree, "td, p, div, center, span"):
        children = element.child_nodes.values()  # as in `_all`
        if sum(node.tag == "a" for node in children) >= _MIN_LINKS_OF_BAR:
            between = "".join(node.text for node in children if node.tag not in ("a", "#comment"))
            if _BAR.fullmatch(between):
                element.decompose()


def _protect_lists_of_prose(tree: Any) -> None:
    beside_prose = {
        paragraph.parent
        for paragraph in _all(tree, "p")
        if len(paragraph.text) >= _MIN_PROSE_CHARACTERS and paragraph.query_selector("a") is None
    }
    for element in _all(tree, "ul:not(ul ul, ol ul, nav ul, header ul, footer ul, aside ul)"):
        links = element.query_selector_all("a").values()
        texts = [link.text for link in links]
        is_linked = sum(map(len, texts)) > _MAX_LINKED * len(element.text)
        if is_linked and element.parent in beside_prose and _are_titles(texts):
            for link, text in zip(links, texts, strict=True):  # by which it would be navigation again
                link.replace_with(tree.create_text_node(text))
            is_linked = False
        if not is_linked:
            wrapper = outer = tree.create_element("div")
            for _ in range(_WRAPPERS - 1):
                wrapper = wrapper.append_child(tree.create_element("div"))
            element.replace_with(outer)
            wrapper.append_child(element)


def _are_titles(links: Sequence[str]) -> bool:
    """Whether a list of links that stands beside prose belongs to it: further reading, sources."""
    return sum(len(link.split()) for link in links) >= _MIN_WORDS_PER_LINK * len(links)


def _all(tree: Any, selector: str) -> list[Any]:
    # One by one the collection would be searched anew for each of its elements: minutes for a page of many links.
    return tree.document.query_selector_all(selector).values()
