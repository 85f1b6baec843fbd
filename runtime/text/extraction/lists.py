"""Lists of a page: the numbers that a browser shows, and lists of prose, which Resiliparse takes for navigation."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from runtime.text.extraction.tree import as_span, select

_MAX_LINKED = 0.5
# Resiliparse leaves out a list of which more than about 0.22 are links.
_MAX_LINKED_OF_RESILIPARSE = 0.2
_MIN_WORDS_PER_LINK = 3
_MIN_PROSE_CHARACTERS = 60
# Resiliparse searches fewer parents than this for signs of navigation.
_WRAPPERS = 6
# Another non-character than that of `tree`.
_MARK = "\ufdd1"
_NUMBERED = re.compile(rf"\d+\.\s*{_MARK}(.*?){_MARK}\s*")
_INTEGER = re.compile(r"\s*([+-]?\d{1,9})")
_ROMAN = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
    (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip


def mark_numbers(tree: Any) -> None:
    """Write the labels of lists that do not count 1, 2, 3 into their items, for `show_numbers`."""
    for ordered in select(tree, "ol[start], ol[reversed], ol[type], ol:has(> li[value])"):
        items = [node for node in ordered.child_nodes.values() if node.tag == "li"]
        for item, label in zip(items, _labels(ordered, items), strict=True):
            if not item.text.strip():
                continue
            mark = tree.create_text_node(f"{_MARK}{label}. {_MARK}")
            first = item.first_child
            item.insert_before(mark, first) if first is not None else item.append_child(mark)


def show_numbers(text: str) -> str:
    """Return a text with the labels of `mark_numbers` in place of Resiliparse's numbers."""
    return _NUMBERED.sub(r"\1", text).replace(_MARK, "") if _MARK in text else text


def _labels(ordered: Any, items: Sequence[Any]) -> Iterator[str]:
    step = -1 if ordered.getattr("reversed") is not None else 1
    number = _integer(ordered.getattr("start"), len(items) if step < 0 else 1)
    for item in items:
        number = _integer(item.getattr("value"), number)
        yield _label(number, item.getattr("type") or ordered.getattr("type") or "1")
        number += step


def _integer(value: str | None, default: int) -> int:
    found = _INTEGER.match(value or "")
    return int(found[1]) if found else default


def _label(number: int, kind: str) -> str:
    """Return a number as browsers show it: letters and Roman digits have no zero, and Roman digits end at 3,999."""
    label = ""
    if kind in ("i", "I") and 0 < number < 4_000:
        for value, digits in _ROMAN:
            label += digits * (number // value)
            number %= value
    elif kind in ("a", "A") and number > 0:
        while number > 0:
            number, letter = divmod(number - 1, 26)
            label = chr(ord("a") + letter) + label
    label = label or str(number)
    return label.upper() if kind.isupper() else label


def protect_lists_of_prose(tree: Any) -> None:
    """Hide from Resiliparse what makes it leave out lists of which at most half are links."""
    beside_prose = {
        paragraph.parent
        for paragraph in select(tree, "p")
        if len(paragraph.text) >= _MIN_PROSE_CHARACTERS and paragraph.query_selector("a") is None
    }
    for element in select(tree, "ul:not(ul ul, nav ul, header ul, footer ul, aside ul)"):
        links = element.query_selector_all("a").values()
        texts = [link.text for link in links]
        linked_share = sum(map(len, texts)) / max(len(element.text), 1)
        # As in a list of further reading.
        are_titles = sum(len(text.split()) for text in texts) >= _MIN_WORDS_PER_LINK * len(texts)
        if linked_share > _MAX_LINKED and not (element.parent in beside_prose and are_titles):
            continue
        if linked_share > _MAX_LINKED_OF_RESILIPARSE:
            for link in links:
                as_span(tree, link)
        wrapper = outer = tree.create_element("div")
        for _ in range(_WRAPPERS - 1):
            wrapper = wrapper.append_child(tree.create_element("div"))
        element.replace_with(outer)
        wrapper.append_child(element)
