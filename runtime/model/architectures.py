"""Architectures: the classes that a phase's `model` may have. A new architecture adds its config and format here."""

from collections.abc import Mapping
from typing import Any

from runtime.model.config import Rope
from runtime.model.huggingface import InteropError
from runtime.model.initialization import Initialization
from runtime.model.llama import huggingface as llama
from runtime.model.llama.config import LlamaConfig

AnyModelConfig = LlamaConfig
"""Union of the config classes."""
CONFIGS = {"llama": LlamaConfig}
"""Config class by its `architecture`."""
HUGGINGFACE_READERS = dict.fromkeys(llama.MODEL_TYPES, llama.from_config_json)
"""Reader of config.json by its `model_type`."""


def config_from_fields(fields: Mapping[str, Any]) -> AnyModelConfig:
    """Return the config that `dataclasses.asdict` turned into `fields`."""
    initialization = Initialization(**fields["initialization"])
    return CONFIGS[fields["architecture"]](**{**fields, "initialization": initialization})


def config_from_huggingface(document: dict[str, Any], file: str) -> tuple[AnyModelConfig, Rope]:
    """Return the config and rotary embedding of a config.json; `file` is its name in errors.

    Raises:
        InteropError: no architecture here computes what the document describes.
    """
    kind = document.get("model_type")
    if kind not in HUGGINGFACE_READERS:
        known = " and ".join(map(repr, HUGGINGFACE_READERS))
        raise InteropError(f"{file}: model_type is {kind!r}; only {known} can be read.")
    return HUGGINGFACE_READERS[kind](document, file)
