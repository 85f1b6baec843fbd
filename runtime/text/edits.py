"""Edits: rules that remove lines from a text before the rules after them judge it."""

import re
from collections.abc import Iterator

from runtime.text.filter_rules import C4Lines

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")


def c4_lines(text: str, rule: C4Lines) -> str:
    """Return the lines that C4 keeps, without their citation marks; "" if it keeps none."""
    return "\n".join(_kept(text, rule))


def changed_lines(before: str, after: str) -> list[str]:
    """Return the lines that were removed or changed."""
    left = set(after.splitlines())
    stripped = (line.strip() for line in before.splitlines())
    return [line for line in stripped if line and line not in left]


def _kept(text: str, rule: C4Lines) -> Iterator[str]:
    for raw in text.splitlines():
        if max(map(len, raw.split()), default=0) > rule.max_word_characters:
            continue
        line = raw.strip()
        if rule.remove_citations:
            line = _CITATION.sub("", line).strip()
        if len(line.split()) < rule.min_words:  # as in C4's code: a citation mark is no word
            continue
        if rule.terminal_punctuation and (not line.endswith(rule.terminal_punctuation) or line.endswith("...")):
            continue
        lower = line.lower()
        if not any(text in lower for text in rule.forbidden):
            yield line
