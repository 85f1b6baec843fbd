"""Instructions: the sentence model and the seed that IFEval's checks of written text need, without the network."""

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from runtime.evaluation.task import Task

NLTK_FOLDER = "llama_index/core/_static/nltk_cache"
MEMBERS = f"{NLTK_FOLDER}/tokenizers/punkt_tab/english/"
"""The model that splits English into sentences and words, in the pinned package."""


class SentenceModelError(ValueError):
    """A missing sentence model, or a package without one."""


def checks_instructions(task: Task) -> bool:
    """Return whether a task is IFEval, which splits text into sentences and detects its language."""
    return any("ifeval" in definition.yaml.split("/") for definition in task.definitions)


@contextlib.contextmanager
def sentence_model(package: str | None, folder: Path) -> Iterator[None]:
    """Give the library nltk the model of a package, and langdetect a fixed seed.

    Args:
        package: the wheel.
        folder: where to unpack it.

    Raises:
        SentenceModelError: there is no package, or it has no such model.
    """
    if package is None:
        raise SentenceModelError(
            "sentence_model is not set, and IFEval splits text into sentences with it; set it to the download of the "
            "package llama-index-core."
        )
    _unpack(package, folder)
    import langdetect
    import nltk

    # Without a seed, the detected language of a short text varies from call to call.
    seed, langdetect.DetectorFactory.seed = langdetect.DetectorFactory.seed, 0
    nltk.data.path.insert(0, str(folder / NLTK_FOLDER))
    try:
        yield
    finally:
        langdetect.DetectorFactory.seed = seed
        nltk.data.path.remove(str(folder / NLTK_FOLDER))
        nltk.data.clear_cache()


def _unpack(package: str, folder: Path) -> None:
    import fsspec  # too heavy for a plan, which imports this module

    with fsspec.open(package, "rb") as file, zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.startswith(MEMBERS)]
        if not names:
            raise SentenceModelError(f"{package}: has no {MEMBERS}; restore the package that the recipe pins.")
        archive.extractall(folder, names)
