"""HTML to text by Resiliparse: blocks stay lines, lists keep their marks, code keeps its layout.

Before Resiliparse reads the tree, this module repairs what Resiliparse loses: formulae become TeX (`formulae`), code is
set aside (`code_blocks`), line numbers, heading marks and the readings of ruby go, a row of a data table becomes one
line, bars of links go, lists of prose stay (`lists`), and so do dates in sentences and short texts (`tree`).
"""

import re
from collections import Counter
from typing import Any

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLParserException, HTMLTree

from runtime.text.extraction.charset import C1_CONTROLS, decode_page
from runtime.text.extraction.code_blocks import put_back, set_aside
from runtime.text.extraction.extracted import EXCERPT_BYTES, Extracted, Text, Unreadable, metadata
from runtime.text.extraction.formats import Pages
from runtime.text.extraction.formulae import write_as_tex
from runtime.text.extraction.lists import mark_numbers, protect_lists_of_prose, show_numbers
from runtime.text.extraction.tree import as_span, select, text_node, text_of, with_marks, without_marks

NO_CHARSET, TOO_DEEP = "no charset fits", "nested too deep"
TOO_MANY_ATTRIBUTES, UNPARSABLE = "too many attributes", "cannot be parsed"
_NO_PROSE = "rt, rp, rtc, td.linenos, td.gutter, .lineno, .linenodiv, .line-numbers-rows, a.headerlink, .mw-editsection"
# Their texts are "logo", "5 of 5 stars" and "your browser cannot play this"; those of formulae are in the tree as TeX.
_PICTURES = "img, area, svg, object, embed, audio, video, canvas"
# Resiliparse leaves out every `time`, also those within a sentence or a table.
_DATES_OF_PROSE = ", ".join(f"{tag} time" for tag in ("p", "li", "td", "th", "dt", "dd", "blockquote", "figcaption"))
_HEADING_LINKS = "h1 a, h2 a, h3 a, h4 a, h5 a, h6 a"
_HEADING_MARKS = ("#", "¶", "§", "🔗")
_BAR = re.compile(r"(?=.*[|·•»/])[\s|·•»›>/\[\]-]*", re.S)
_MIN_LINKS_OF_BAR = 3
_BAR_TAGS = ("td", "p", "div", "center", "span")
_MAX_CELL_CHARACTERS = 300
# Resiliparse compares each attribute of a tag with those before it: 60,000 of them take a minute.
_MAX_ATTRIBUTES = 1_000
_TAG = re.compile(r"<[a-zA-Z]")
_NO_MARKUP = re.compile(r"<(script|style|textarea|title)\b.*?</\1|<!--.*?-->", re.I | re.S)
_ATTRIBUTE_VALUE = re.compile(r"=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'>]+)")
# Browsers build no page deeper than 512. Resiliparse's time grows with the square: a megabyte of `<div>` takes an hour.
_MAX_DEPTH = 1_000
_TOO_DEEP = ">".join(["html", *["*"] * _MAX_DEPTH])
_DETAIL_TOO_DEEP = f"more than {_MAX_DEPTH:,} elements in each other"


class PageError(ValueError):
    """A page that cannot be read; `reason` is counted."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read_pages(data: bytes, format_: Pages) -> Extracted:
    try:
        text, found = read_page(data, format_)
        yield Text("", text, metadata(**found))
    except PageError as error:
        yield Unreadable("", error.reason, str(error), data[:EXCERPT_BYTES].decode(errors="backslashreplace"))


def read_page(
    data: bytes, format_: Pages, *, server_charset: str | None = None, is_cut: bool = False
) -> tuple[str, dict[str, str]]:
    """Return the text of a page, and what is known of its charset as metadata.

    Raise PageError if no charset fits, or the page is nested too deep.
    """
    share = format_.max_replaced_share
    page = decode_page(data, server_charset=server_charset, is_cut=is_cut, max_replaced_share=share)
    if page is None:
        raise PageError(NO_CHARSET, f"{len(data):,} bytes, the server declares {server_charset or 'none'}")
    found = {"charset": page.charset, "charset_from": page.source}
    if page.num_replaced:
        found["replaced"] = str(page.num_replaced)
    return page_text(page.text, main_content=format_.main_content), found


def plain_text(markup: str) -> str:
    """Return all the text of a piece of HTML without formulae."""
    return without_marks(extract_plain_text(with_marks(markup), preserve_formatting=True)).strip()


def page_text(page: str, *, main_content: bool) -> str:
    """Return the text of a page; `main_content` leaves navigation, side bars and footers out.

    Raise PageError if the page is nested too deep, has too many attributes in a tag, or cannot be parsed.
    """
    if _has_crowded_tag(page) and _has_crowded_tag(_NO_MARKUP.sub("", page)):
        raise PageError(TOO_MANY_ATTRIBUTES, f"more than {_MAX_ATTRIBUTES:,} in one tag")
    try:
        tree: Any = HTMLTree.parse(with_marks(page))  # its stubs allow None for every node
    except HTMLParserException as error:  # for want of memory, too
        raise PageError(UNPARSABLE, str(error)) from error
    if tree.body is None:
        return ""
    deep = select(tree, _TOO_DEEP)
    if any(element.closest("math") is None for element in deep):
        raise PageError(TOO_DEEP, _DETAIL_TOO_DEEP)
    for element in select(tree, _NO_PROSE):
        element.decompose()
    for mark in select(tree, _HEADING_LINKS):
        if text_of(mark).strip() in _HEADING_MARKS:
            mark.decompose()
    write_as_tex(tree, page)
    if deep and select(tree, _TOO_DEEP):  # formulae become flat
        raise PageError(TOO_DEEP, _DETAIL_TOO_DEEP)
    mark_numbers(tree)
    code = set_aside(tree)
    _join_cells(tree)
    if main_content:
        _remove_bars_of_links(tree)
        protect_lists_of_prose(tree)
        for date in select(tree, _DATES_OF_PROSE):
            as_span(tree, date)
    for picture in select(tree, _PICTURES):
        picture.decompose()
    # Without `alt_texts` Resiliparse leaves out figures, and with them code, tables and quotations.
    text = extract_plain_text(tree, preserve_formatting=True, main_content=main_content, alt_texts=True)
    return without_controls(without_marks(put_back(show_numbers(text), code))).strip()


def without_controls(text: str) -> str:
    """Return the text without control characters of the upper half, which no reader sees; U+0085 is a line break."""
    return text if text.isascii() else C1_CONTROLS.sub("", text.replace("\x85", "\n"))


def _has_crowded_tag(page: str) -> bool:
    """Return whether a tag has too many attributes; `>` within quotes hides those before it."""
    long = [piece for piece in page.split(">") if len(piece) > 2 * _MAX_ATTRIBUTES]
    tags = [piece[tag.start() :] for piece in long if (tag := _TAG.search(piece))]
    return any(len(_ATTRIBUTE_VALUE.sub("", tag).split()) > _MAX_ATTRIBUTES for tag in tags)


def _join_cells(tree: Any) -> None:
    """Make each cell of a data table one line, so that a row stays a row; tables for layout have no headings."""
    for table in select(tree, "table:has(th):not(:has(table))"):
        for cell in table.query_selector_all("td, th").values():
            if 0 < len(cell.text) <= _MAX_CELL_CHARACTERS and cell.query_selector("p, div, br, ul, ol") is not None:
                for line_break in cell.query_selector_all("br").values():
                    line_break.replace_with(tree.create_text_node(" "))
                for block in cell.query_selector_all("p, div, li").values():
                    block.append_child(tree.create_text_node(" "))
                cell.replace_children(text_node(tree, " ".join(cell.text.split())))


def _remove_bars_of_links(tree: Any) -> None:
    """Remove runs of three links or more with marks between them: the menus of pages laid out by tables."""
    parents = Counter(link.parent for link in select(tree, "a"))
    for element, num_links in parents.items():
        if num_links >= _MIN_LINKS_OF_BAR and element.tag in _BAR_TAGS:
            children = element.child_nodes.values()  # as in `select`
            between = "".join(text_of(node) for node in children if node.tag not in ("a", "#comment"))
            if _BAR.fullmatch(between):
                element.decompose()
