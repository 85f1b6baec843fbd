"""Architectures: the classes that a phase's `model` may have. A new architecture adds its config and format here.

A checkpoint describes its model well enough for others to compute with it (`ModelDescription`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from runtime.model.config import ModelConfig, Rope, RopeScaling
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


class DescriptionError(ValueError):
    """Facts that do not describe a model."""


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """Shape, rotary embedding in force, and the sequence length of training."""

    config: ModelConfig
    rope: Rope
    sequence_length: int

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], source: str) -> "ModelDescription":
        """Return the description in the facts of a checkpoint's metadata: the config of the phase that wrote it.

        `source` names the checkpoint in errors.
        """
        if missing := [name for name in ("model", "rope", "sequence_length") if name not in facts]:
            raise DescriptionError(
                f"{source}: the checkpoint's metadata have no {', '.join(missing)}; another version wrote it. Run the "
                "phase again."
            )
        rope = facts["rope"]
        scaling = None if rope["scaling"] is None else RopeScaling(**rope["scaling"])
        try:
            fields = {**facts["model"], "initialization": Initialization(**facts["model"]["initialization"])}
            config = CONFIGS[fields["architecture"]](**fields)
        except (KeyError, TypeError) as error:
            raise DescriptionError(
                f"{source}: the checkpoint's model has other fields than this version's ({error}); another version "
                "wrote it. Run the phase again."
            ) from error
        return cls(config, Rope(rope["rope_theta"], scaling), int(facts["sequence_length"]))


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
