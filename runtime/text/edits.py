"""Edits: rules that remove lines from a text before the rules after them judge it."""

import re
from collections.abc import Iterator

from runtime.text import unspaced
from runtime.text.filter_rules import C4Lines

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")


def c4_lines(text: str, rule: C4Lines) -> str:
    """Return the lines that C4 keeps, without their citation marks; "" if it keeps none."""
    return "\n".join(_kept(text, rule))


def _ends_as_sentence(line: str, marks: tuple[str, ...]) -> bool:
    return (line.endswith(marks) and not line.endswith("...")) or ord(line[-1:] or " ") in unspaced.SPACE_ENDS_CLAUSE


def _kept(text: str, rule: C4Lines) -> Iterator[str]:
    has_unspaced = unspaced.is_unspaced(text)
    for raw in text.splitlines():
        is_unspaced = has_unspaced and not raw.isascii()
        words = unspaced.spaced(raw) if is_unspaced else raw
        if max(map(len, words.split()), default=0) > rule.max_word_characters:
            continue
        line = raw.strip()
        if rule.remove_citations:
            line = _CITATION.sub("", line).strip()
        # As in C4's code: a citation mark is no word.
        num_words = unspaced.num_words(line) if is_unspaced else len(line.split())
        if num_words < rule.min_words:
            continue
        if rule.terminal_punctuation and not _ends_as_sentence(line, rule.terminal_punctuation):
            continue
        lower = line.lower()
        if not any(text in lower for text in rule.forbidden):
            yield line
