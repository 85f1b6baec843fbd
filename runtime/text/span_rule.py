"""Parameters of the removal of repeated spans, as a plain value; `runtime.text.spans` applies them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RepeatedSpans:
    """Limits of the removal of repeated spans."""

    min_words: int = 9
    """Words of the whole span."""
    min_sentences_left: int = 3
    """A document that lost sentences and has fewer left is dropped."""

    def __post_init__(self) -> None:
        for field in ("min_words", "min_sentences_left"):
            if getattr(self, field) < 1:
                raise ValueError(f"RepeatedSpans.{field} is {getattr(self, field)}. Set it to 1 or more.")
