"""Torch and transformers, imported where a test first uses them: they take seconds, and few files need them.

Each worker of the suite imports every test file, and runs a third of them.
"""

import importlib
from typing import Any


class DeferredModule:
    """A module that is imported at its first use, without its private names.

    Args:
        name: of the module, in full.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks every object that it collects from for some
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


torch = DeferredModule("torch")
transformers = DeferredModule("transformers")
