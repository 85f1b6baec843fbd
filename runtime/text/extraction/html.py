"""HTML to text by Resiliparse: blocks stay lines, lists keep their marks, code keeps its layout.

Before Resiliparse reads the tree, this module repairs what Resiliparse loses: formulae become TeX (`formulae`), code is
set aside (`code_blocks`), line numbers and heading marks go, a row of a data table becomes one line, bars of links go,
and lists of prose stay, which Resiliparse takes for navigation.
"""

import re
from collections.abc import Sequence
from typing import Any

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from runtime.text.extraction.charset import C1_CONTROLS, decode_page
from runtime.text.extraction.code_blocks import put_back, set_aside
from runtime.text.extraction.extracted import EXCERPT_BYTES, Extracted, Text, Unreadable, metadata
from runtime.text.extraction.formulae import write_as_tex

NO_CHARSET, TOO_DEEP = "no charset fits", "nested too deep"
_NO_PROSE = "td.linenos, td.gutter, .lineno, .linenodiv, .line-numbers-rows, a.headerlink, .mw-editsection"
_HEADING_LINKS = "h1 a, h2 a, h3 a, h4 a, h5 a, h6 a"
_HEADING_MARKS = ("#", "¶", "§", "🔗")
_BAR = re.compile(r"(?=.*[|·•»/])[\s|·•»›>/\[\]-]*", re.S)
_MIN_LINKS_OF_BAR = 3
_MAX_LINKED = 0.5
_MIN_WORDS_PER_LINK = 3
_MIN_PROSE_CHARACTERS = 60
_MAX_CELL_CHARACTERS = 300
# Resiliparse searches fewer parents than this for signs of navigation.
_WRAPPERS = 6
# Browsers build no page deeper than 512. Resiliparse's time grows with the square: a megabyte of `<div>` takes an hour.
_MAX_DEPTH = 1_000
_TOO_DEEP_SELECTOR = ">".join(["html", *["*"] * _MAX_DEPTH])


class PageError(ValueError):
    """A page that cannot be read; `reason` is counted."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read_pages(data: bytes, *, main_content: bool, max_replaced_share: float) -> Extracted:
    """Yield the one page of a file."""
    try:
        text, found = read_page(data, main_content=main_content, max_replaced_share=max_replaced_share)
        yield Text("", text, metadata(**found))
    except PageError as error:
        yield Unreadable("", error.reason, str(error), data[:EXCERPT_BYTES].decode(errors="backslashreplace"))


def read_page(
    data: bytes,
    *,
    main_content: bool,
    max_replaced_share: float,
    server_charset: str | None = None,
    is_cut: bool = False,
) -> tuple[str, dict[str, str]]:
    """Return the text of a page, and what is known of its charset as metadata.

    Raises:
        PageError: no charset fits, or the page is nested too deep.
    """
    page = decode_page(data, server_charset=server_charset, is_cut=is_cut, max_replaced_share=max_replaced_share)
    if page is None:
        raise PageError(NO_CHARSET, f"{len(data):,} bytes, the server declares {server_charset or 'none'}")
    found = {"charset": page.charset, "charset_from": page.source}
    if page.num_replaced:
        found["replaced"] = str(page.num_replaced)
    return page_text(page.text, main_content=main_content), found


def plain_text(markup: str) -> str:
    """Return all the text of a piece of HTML without formulae."""
    return extract_plain_text(markup, preserve_formatting=True).strip()


def page_text(page: str, *, main_content: bool) -> str:
    """Return the text of a page; `main_content` leaves navigation, side bars and footers out.

    Raises:
        PageError: the page is nested too deep.
    """
    tree: Any = HTMLTree.parse(page)  # its stubs allow None for every node
    if tree.body is None:
        return ""
    _check_depth(tree, outside="math")
    for element in _all(tree, _NO_PROSE):
        element.decompose()
    for mark in _all(tree, _HEADING_LINKS):
        if mark.text.strip() in _HEADING_MARKS:
            mark.decompose()
    write_as_tex(tree, _all)
    _check_depth(tree)
    code = set_aside(tree, _all)
    _join_cells(tree)
    if main_content:
        _remove_bars_of_links(tree)
        _protect_lists_of_prose(tree)
    # The texts of pictures are "logo" and "5 of 5 stars"; those of formulae are in the tree as TeX.
    text = extract_plain_text(tree, preserve_formatting=True, main_content=main_content, alt_texts=False)
    return without_controls(put_back(text, code)).strip()


def without_controls(text: str) -> str:
    """Return the text without control characters of the upper half, which no reader sees; U+0085 is a line break."""
    return text if text.isascii() else C1_CONTROLS.sub("", text.replace("\x85", "\n"))


def _check_depth(tree: Any, *, outside: str | None = None) -> None:
    for element in _all(tree, _TOO_DEEP_SELECTOR):
        if outside is None or element.closest(outside) is None:
            raise PageError(TOO_DEEP, f"more than {_MAX_DEPTH:,} elements in each other")


def _join_cells(tree: Any) -> None:
    """Make each cell of a data table one line, so that a row stays a row; tables for layout have no headings."""
    for table in _all(tree, "table:has(th):not(:has(table))"):
        for cell in table.query_selector_all("td, th").values():
            if 0 < len(cell.text) <= _MAX_CELL_CHARACTERS and cell.query_selector("p, div, br, ul, ol") is not None:
                for line_break in cell.query_selector_all("br").values():
                    line_break.replace_with(tree.create_text_node(" "))
                for block in cell.query_selector_all("p, div, li").values():
                    block.append_child(tree.create_text_node(" "))
                cell.replace_children(tree.create_text_node(" ".join(cell.text.split())))


def _remove_bars_of_links(tree: Any) -> None:
    """Remove runs of three links or more with marks between them: the menus of pages laid out by tables."""
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
            for link, text in zip(links, texts, strict=True):  # as links they would count as navigation
                link.replace_with(tree.create_text_node(text))
            is_linked = False
        if not is_linked:
            wrapper = outer = tree.create_element("div")
            for _ in range(_WRAPPERS - 1):
                wrapper = wrapper.append_child(tree.create_element("div"))
            element.replace_with(outer)
            wrapper.append_child(element)


def _are_titles(links: Sequence[str]) -> bool:
    """Return whether links look like titles, as in a list of further reading."""
    return sum(len(link.split()) for link in links) >= _MIN_WORDS_PER_LINK * len(links)


def _all(tree: Any, selector: str) -> list[Any]:
    # Iterating the collection searches it again for each element: minutes for a page of many links.
    return tree.document.query_selector_all(selector).values()
