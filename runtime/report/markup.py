"""Markup: texts of documents and models made fit for a page, as plain text, as JSON data, or cut into marked pieces."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

# Characters that HTML forbids, lone surrogates, and the controls that reverse the direction of the text around
# them: a sample with U+202E would turn the line it stands on.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
MOST_CHARACTERS = 20_000
"""Characters of a text that a page shows."""


def printable(text: str) -> str:
    """Return `text` with each character that must not reach a page replaced by U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))


def printable_data(value: Any) -> Any:
    """Return JSON data whose texts are printable."""
    if isinstance(value, dict):
        return {key: printable_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_data(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def marked(text: str, spans: Sequence[tuple[int, int, str]]) -> list[tuple[str, str]]:
    """Return pieces of a text with the labels of the spans that cover each; spans count UTF-8 bytes."""
    data = text.encode()
    edges = sorted({0, len(data), *(edge for start, end, _ in spans for edge in (start, end))})
    pieces, left = [], MOST_CHARACTERS
    for begin, after in itertools.pairwise(edges):
        piece = data[begin:after].decode(errors="replace")
        labels = [label for start, end, label in spans if start <= begin and after <= end]
        pieces.append((piece[:left], "; ".join(labels)))
        left -= len(piece)
        if left < 0:
            pieces.append((" […]", ""))
            break
    return pieces or [("", "")]
