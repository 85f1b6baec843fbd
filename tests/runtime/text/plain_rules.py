"""The values of the standard rule sets in plain Python over one text, from the papers: slow and easy to check."""

import re
from collections import Counter

from runtime.text.filter_rules import C4Lines, GopherQuality
from runtime.text.filters import BULLETS, TERMINAL_PUNCTUATION
from runtime.text.measures import CLOSING_MARKS, MAX_CLOSING_MARKS, SENTENCE_ENDS

SPACE = " \t\n\r\x0b\x0c\xa0\u3000"


def words_of(text):
    for mark in SPACE:
        text = text.replace(mark, " ")
    return [word for word in text.split(" ") if word]


def lines_of(text):
    return [line.strip(SPACE) for line in text.split("\n") if line.strip(SPACE)]


def allowed_lines(text: str, rule: C4Lines) -> list[str]:
    """Return the lines without a forbidden text, their citation marks removed."""
    lines = [line.strip() for line in text.splitlines()]
    if rule.remove_citations:
        lines = [re.sub(r"\[([0-9]*|edit|citation needed)\]", "", line).strip() for line in lines]
    return [line for line in lines if not any(part in line.lower() for part in rule.forbidden)]


def paragraphs_of(text):
    blocks, lines = [], []
    for line in [*text.split("\n"), ""]:
        if line:
            lines.append(line)
        elif lines:
            blocks.append("\n".join(lines))
            lines = []
    return [block.strip(SPACE) for block in blocks if block.strip(SPACE)]


def share(part, whole):
    return part / max(whole, 1)


def is_letter(character):
    return (character.isascii() and character.isalpha()) or not character.isascii()


def duplicates(pieces, text):
    """Return the shares of pieces, and of characters, that repeat an earlier piece."""
    seen, repeats = set(), []
    for piece in pieces:
        if piece in seen:
            repeats.append(piece)
        seen.add(piece)
    return share(len(repeats), len(pieces)), share(sum(map(len, repeats)), len(text))


def spans_of(text):
    """Return words with the position of their first character."""
    found, begin = [], None
    for place, character in enumerate(text + " "):
        if character in SPACE:
            if begin is not None:
                found.append((begin, text[begin:place]))
            begin = None
        elif begin is None:
            begin = place
    return found


def grams(text, length):
    spans = spans_of(text)
    return [spans[at : at + length] for at in range(len(spans) - length + 1)]


def name(gram):
    return tuple(word for _, word in gram)


def extent(gram):
    return gram[-1][0] + len(gram[-1][1]) - gram[0][0]


def top_ngram(text, length):
    """Return the share of characters in all occurrences of the most frequent n-gram; of several the longest."""
    counts = Counter(map(name, grams(text, length)))
    first = {}
    for gram in grams(text, length):
        first.setdefault(name(gram), extent(gram))
    most = max(counts.values(), default=0)
    if most < 2:
        return 0.0
    return share(most * max(first[key] for key, count in counts.items() if count == most), len(text))


def duplicate_ngrams(text, length):
    """Return the share of characters of words in n-grams that occurred before, each counted once."""
    seen, covered = set(), set()
    for at, gram in enumerate(grams(text, length)):
        if name(gram) in seen:
            covered.update(range(at, at + length))
        seen.add(name(gram))
    words = words_of(text)
    return share(sum(len(words[at]) for at in covered), len(text))


def ends_sentence(word):
    for _ in range(MAX_CLOSING_MARKS):
        if len(word) > 1 and word[-1] in CLOSING_MARKS:
            word = word[:-1]
    return word[-1] in SENTENCE_ENDS


def figures(text):
    """Return every value by its reason in `findings`, where one reason has one value."""
    words, lines = words_of(text), lines_of(text)
    pieces, characters = duplicates(lines, text)
    paragraph_pieces, paragraph_characters = duplicates(paragraphs_of(text), text)
    found = {
        "Gopher: hash signs": share(text.count("#"), len(words)),
        "Gopher: ellipses": share(text.count("...") + text.count("…"), len(words)),
        "Gopher: lines with bullets": share(sum(line.startswith(tuple(BULLETS)) for line in lines), len(lines)),
        "Gopher: lines ending in an ellipsis": share(sum(line.endswith(("...", "…")) for line in lines), len(lines)),
        "Gopher: words with a letter": share(sum(any(map(is_letter, word)) for word in words), len(words)),
        "Gopher: stop words": len(set(GopherQuality().stop_words) & set(words)),
        "Gopher: duplicate lines": pieces,
        "Gopher: characters in duplicate lines": characters,
        "Gopher: duplicate paragraphs": paragraph_pieces,
        "Gopher: characters in duplicate paragraphs": paragraph_characters,
        "C4: too few sentences": sum(map(ends_sentence, words)),
        "FineWeb: lines with terminal punctuation": share(
            sum(line.endswith(tuple(TERMINAL_PUNCTUATION)) for line in lines), len(lines)
        ),
        "FineWeb: characters in duplicate lines": characters,
        "FineWeb: short lines": share(sum(len(line) < 30 for line in lines), len(lines)),
    }
    found |= {f"Gopher: most frequent {length}-gram": top_ngram(text, length) for length in (2, 3, 4)}
    found |= {f"Gopher: duplicate {length}-grams": duplicate_ngrams(text, length) for length in range(5, 11)}
    return found
