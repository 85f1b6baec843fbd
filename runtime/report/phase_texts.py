"""Texts that phases write after the same prompts, side by side."""

import dataclasses
from collections.abc import Sequence

from runtime.optim.ema import HOT
from runtime.report.document import document
from runtime.report.markup import Markup, element

_CAPTION = "The prompt is bold; “…” ends a text at its longest length. What a text claims may be wrong."


@dataclasses.dataclass(frozen=True)
class PhaseText:
    """The text that a phase writes after a prompt."""

    phase: str
    weights: str
    prompt: str
    text: str
    is_whole: bool
    """Whether the model ended the text."""


def page(title: str, texts: Sequence[PhaseText]) -> str:
    """Return the whole page."""
    return document(title, "Texts of the phases that are done.", *side_by_side(texts), scripts=())


def side_by_side(texts: Sequence[PhaseText]) -> list[Markup]:
    """Return for each prompt the texts of the phases; nothing without texts."""
    rows = [
        element("div", *(_card(text) for text in texts if text.prompt == prompt), class_="texts")
        for prompt in dict.fromkeys(text.prompt for text in texts)
    ]
    return [element("p", _CAPTION), *rows] if rows else []


def _card(text: PhaseText) -> Markup:
    name = text.phase if text.weights == HOT else f"{text.phase}, {text.weights} weights"
    written = element("bdi", element("b", text.prompt), text.text, "" if text.is_whole else " …")
    return element("div", element("div", name), element("pre", written), class_="sample")
