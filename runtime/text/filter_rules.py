"""Filter rules: which texts a source keeps, as plain values. Defaults are the thresholds of the cited papers.

The rules of a source apply in order, and the first that a document fails names the reason of its drop. An edit among
them removes lines from the text that is kept and that later rules judge. Characters are Unicode code points. Words are
separated by Unicode's white space; in scripts without spaces their number is estimated (`runtime.text.unspaced`), and
an n-gram has as many letters as n words. Line ends of all systems are alike, and empty lines and paragraphs do not
count. `runtime.text.filters` evaluates them.
"""

import dataclasses
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Length:
    """Limits of length: too short to learn from, or too long to be one text."""

    min_words: int
    max_words: int | None = None


@dataclasses.dataclass(frozen=True)
class GopherQuality:
    """Document-wise quality of Gopher's MassiveWeb (arXiv:2112.11446, appendix A.1.1)."""

    min_words: int = 50
    max_words: int = 100_000
    min_mean_word_length: float = 3.0
    max_mean_word_length: float = 10.0
    max_symbols_per_word: float = 0.1
    """Hash signs; ellipses have the same limit."""
    max_bullet_lines: float = 0.9
    max_ellipsis_lines: float = 0.3
    min_alphabetic_words: float = 0.8
    min_stop_words: int = 2
    """How many of `stop_words` occur."""
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")


@dataclasses.dataclass(frozen=True)
class GopherRepetition:
    """Repetition within a document (arXiv:2112.11446, appendix A.1.1, table A1).

    The paper does not say whether the first occurrence of a duplicate counts; here, as in DataTrove, only later ones
    do. A character covered by several duplicate n-grams counts once.
    """

    max_duplicate_lines: float = 0.30
    max_duplicate_paragraphs: float = 0.30
    max_duplicate_line_characters: float = 0.20
    max_duplicate_paragraph_characters: float = 0.20
    max_top_ngram_characters: tuple[tuple[int, float], ...] = ((2, 0.20), (3, 0.18), (4, 0.16))
    """(n, the share of characters in all occurrences of the most frequent n-gram)."""
    max_duplicate_ngram_characters: tuple[tuple[int, float], ...] = tuple(
        enumerate((0.15, 0.14, 0.13, 0.12, 0.11, 0.10), 5)
    )


@dataclasses.dataclass(frozen=True)
class C4Lines:
    """The line rules of C4 (arXiv:1910.10683, section 2.2, and its code for the last three fields): an edit.

    A text without a line left is dropped.
    """

    terminal_punctuation: tuple[str, ...] = (*".?!\"'", *"”’»」』）", *"。！？｡।॥؟۔။។៕።։")
    """A line without one of these endings goes, and so does one that ends in three dots. The first five are C4's, and
    the others typographic marks and those of other scripts. Empty allows all endings:
    FineWeb left this rule out, because it drops 30 % of the tokens (arXiv:2406.17557, section 3.5)."""
    min_words: int = 3
    """Words of a line, citation marks excluded."""
    forbidden: tuple[str, ...] = (
        "javascript",
        "terms of use",
        "privacy policy",
        "cookie policy",
        "uses cookies",
        "use of cookies",
        "use cookies",
    )
    """A line with one of these texts goes; case does not count."""
    max_word_characters: int = 1_000
    remove_citations: bool = True
    """Citation marks are [1], [edit] and [citation needed]."""


@dataclasses.dataclass(frozen=True)
class C4Document:
    """The document rules of C4 (arXiv:1910.10683, section 2.2), for use after `C4Lines`."""

    min_sentences: int = 5
    """A sentence ends in a terminal punctuation mark, which a quotation mark may follow."""
    forbidden: tuple[str, ...] = ("lorem ipsum", "{")
    """A curly bracket is a sign of code; case does not count."""


@dataclasses.dataclass(frozen=True)
class BadWords:
    """C4's last rule (arXiv:1910.10683, section 2.2): a text with one of these words goes.

    C4 used the "List of Dirty, Naughty, Obscene or Otherwise Bad Words"; the recipe chooses the list.
    """

    words: tuple[str, ...]
    """Words or phrases without a letter or digit beside them; case does not count."""

    def __post_init__(self) -> None:
        if not self.words:
            raise ValueError("BadWords.words is empty, so the rule would keep everything. Name the words.")


@dataclasses.dataclass(frozen=True)
class Language:
    """The language of most of the text, by fastText's model of 176 languages.

    FineWeb keeps English at 0.65 (arXiv:2406.17557, section 3.3), C4 at 0.99 by another model.
    """

    languages: tuple[str, ...] = ("en",)
    """ISO 639 codes."""
    min_probability: float = 0.65


@dataclasses.dataclass(frozen=True)
class QualityScore:
    """The score of a classifier trained on labelled documents, like DCLM's (arXiv:2406.11794, section 4.4).

    The filter step names the classifier. Exactly one of the fields is given.
    """

    min_score: float | None = None
    """Between 0 and 1: the probability of the positive class in training."""
    keep_fraction: float | None = None
    """The fraction of all incoming documents that are kept, whatever rules come before; DCLM keeps 0.1."""

    def __post_init__(self) -> None:
        if (self.min_score is None) == (self.keep_fraction is None):
            raise ValueError(f"{self}: give exactly one of min_score and keep_fraction.")
        for name, share in (("min_score", self.min_score), ("keep_fraction", self.keep_fraction)):
            if share is not None and not 0 < share <= 1:
                raise ValueError(f"QualityScore.{name} is {share}. Set it above 0, up to 1.")


@dataclasses.dataclass(frozen=True)
class FineWebQuality:
    """The three rules that FineWeb added (arXiv:2406.17557, section 3.6)."""

    min_lines_with_terminal_punctuation: float = 0.12
    max_duplicate_line_characters: float = 0.1
    max_short_lines: float = 0.67
    short_line_characters: int = 30
    max_newlines_per_word: float | None = None
    """Lists of a few words a line. FineWeb2 sets it by language (arXiv:2506.20920)."""


@dataclasses.dataclass(frozen=True)
class RepeatedPeriod:
    """Endless repetition of one n-gram, which OLMo 2 found behind loss spikes (arXiv:2501.00656, section 3.1).

    OLMo 2 counts tokens. This rule counts words, because no tokenizer exists yet, and characters without white space,
    for texts without words (ababab, rulers).
    """

    max_period: int = 13
    """Words."""
    max_repeats: int = 32
    """A run of this many is dropped; for characters, if such runs make up the text."""
    max_period_characters: int = 64
    max_periodic_share: float = 0.5
    """The share of all characters in runs of one period."""

    def __post_init__(self) -> None:
        if self.max_repeats < 2:
            raise ValueError(f"RepeatedPeriod.max_repeats is {self.max_repeats}. Set it to 2 or more.")


@dataclasses.dataclass(frozen=True)
class SingleCharacter:
    """A character that makes up most of the text, white space excluded: rulers, backslashes, boxes, padding."""

    max_share: float = 0.5


@dataclasses.dataclass(frozen=True)
class CodeLayout:
    """Minified, generated or data files among source code (Codex, arXiv:2107.03374, section 3.1).

    The share of letters and digits and the markers are StarCoder's (arXiv:2305.06161).
    """

    max_line_characters: int = 1_000
    max_mean_line_characters: float = 100.0
    min_alphanumeric: float = 0.25
    """The share of letters and digits in all characters."""
    generated_markers: tuple[str, ...] = ("generated by", "autogenerated", "auto-generated", "do not edit")
    """Texts in the first five lines; case does not count."""


_GopherRule = Length | GopherQuality | GopherRepetition
_C4Rule = C4Lines | C4Document | BadWords
Rule = _GopherRule | _C4Rule | Language | QualityScore | FineWebQuality | RepeatedPeriod | SingleCharacter | CodeLayout


class _Thresholds(NamedTuple):
    duplicate_lines: float
    top_ngrams: tuple[float, ...]
    """Shares for 2, 3 and 4 words."""
    duplicate_ngrams: tuple[float, ...]
    """Shares for 5 to 10 words."""
    lines_with_terminal_punctuation: float
    newlines_per_word: float
    mean_word_length: tuple[float, float]
    alphabetic_words: float
    stop_words: str


_FINEWEB2 = {
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


def fineweb2_rules(language: str) -> tuple[Rule, ...]:
    """Return FineWeb2's rules for Hindi, Japanese, Khmer, Thai or Chinese; put `Language` before them.

    FineWeb2 counts words of a tokenizer for each language (arXiv:2506.20920, section 3.4); these rules estimate their
    number (`runtime.text.unspaced`), so that verdicts close to a threshold differ. Raise ValueError if FineWeb2's
    thresholds for the language are not in the table.
    """
    if language not in _FINEWEB2:
        raise ValueError(
            f"fineweb2_rules: no thresholds for {language!r}. Use one of {', '.join(_FINEWEB2)}, or give "
            "GopherRepetition, FineWebQuality and GopherQuality the numbers of FineWeb2's configuration for it."
        )
    found = _FINEWEB2[language]
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
