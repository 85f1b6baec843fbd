"""FineWeb2's filters by language: thresholds of its published configurations (arXiv:2506.20920, section 3.4).

FineWeb2 counts the words of a tokenizer for each language. These rules estimate their number in scripts without spaces
(`runtime.text.unspaced`), so that verdicts close to a threshold differ.
"""

from typing import NamedTuple

from runtime.text.filter_rules import FineWebQuality, GopherQuality, GopherRepetition, Rule


class _Thresholds(NamedTuple):
    duplicate_lines: float
    top_ngrams: tuple[float, ...]
    """Of 2, 3 and 4 words."""
    duplicate_ngrams: tuple[float, ...]
    """Of 5 to 10 words."""
    lines_with_terminal_punctuation: float
    newlines_per_word: float
    mean_word_length: tuple[float, float]
    alphabetic_words: float
    stop_words: str


_BY_LANGUAGE = {
    "hi": _Thresholds(
        0.206, (0.208, 0.198, 0.161), (0.135, 0.125, 0.116, 0.108, 0.099, 0.09), 0.091, 0.316, (2, 21), 0.837,
        "के में है की और से का को एक हैं पर",
    ),
    "ja": _Thresholds(
        0.375, (0.121, 0.129, 0.145), (0.307, 0.283, 0.264, 0.248, 0.234, 0.223), 0.167, 0.162, (1, 5), 0.759,
        "の に を は た て が と で 年 し ・ 月 れ さ",
    ),
    "km": _Thresholds(
        0.92, (0.165, 0.225, 0.242), (0.197, 0.168, 0.148, 0.126, 0.107, 0.094), 0.077, 0.667, (2, 13), 0.905,
        "មាន បាន ដែល ជា និង នៅ របស់ ក្នុង ថា នេះ នៃ ហើយ ទៅ ដោយ",
    ),
    "th": _Thresholds(
        0.349, (0.221, 0.197, 0.162), (0.185, 0.168, 0.152, 0.137, 0.124, 0.111), 0.0, 0.153, (2, 10), 0.9,
        "ใน ที่ และ ของ เป็น มี การ ได้",
    ),
    "zh": _Thresholds(
        0.287, (0.256, 0.201, 0.171), (0.198, 0.182, 0.167, 0.154, 0.14, 0.127), 0.106, 0.178, (1, 5), 0.735,
        "的 年 在 月 是 和 日 了 於 · 為 有 被 人 中 为 他 與 後 也 而 由",
    ),
}  # fmt: skip
LANGUAGES = tuple(_BY_LANGUAGE)


def fineweb2_rules(language: str) -> tuple[Rule, ...]:
    """Return the rules for one of `LANGUAGES`; put `Language` before them.

    Raises:
        ValueError: FineWeb2's thresholds for the language are not in the table.
    """
    if language not in _BY_LANGUAGE:
        raise ValueError(
            f"fineweb2_rules: no thresholds for {language!r}. Use one of {', '.join(LANGUAGES)}, or give "
            "GopherRepetition, FineWebQuality and GopherQuality the numbers of FineWeb2's configuration for it."
        )
    found = _BY_LANGUAGE[language]
    return (
        GopherRepetition(
            max_duplicate_lines=found.duplicate_lines,
            max_duplicate_paragraphs=1.0,
            max_duplicate_line_characters=1.0,
            max_duplicate_paragraph_characters=1.0,
            max_top_ngram_characters=tuple(enumerate(found.top_ngrams, start=2)),
            max_duplicate_ngram_characters=tuple(enumerate(found.duplicate_ngrams, start=5)),
        ),
        FineWebQuality(
            min_lines_with_terminal_punctuation=found.lines_with_terminal_punctuation,
            max_short_lines=1.0,
            max_newlines_per_word=found.newlines_per_word,
        ),
        GopherQuality(
            min_mean_word_length=found.mean_word_length[0],
            max_mean_word_length=found.mean_word_length[1],
            min_alphabetic_words=found.alphabetic_words,
            stop_words=tuple(found.stop_words.split()),
        ),
    )
