"""ModelDescription: what a checkpoint says about its model, enough for others to compute with it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from runtime.model.architectures import config_from_fields
from runtime.model.config import ModelConfig, Rope, RopeScaling


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
            config = config_from_fields(facts["model"])
        except (KeyError, TypeError) as error:
            raise DescriptionError(
                f"{source}: the checkpoint's model has other fields than this version's ({error}); another version "
                "wrote it. Run the phase again."
            ) from error
        return cls(config, Rope(rope["rope_theta"], scaling), int(facts["sequence_length"]))
