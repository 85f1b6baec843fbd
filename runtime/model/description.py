"""ModelDescription: what a checkpoint must say about its model for others to compute with it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from runtime.model.config import LlamaConfig, Rope, RopeScaling


class DescriptionError(ValueError):
    """Facts that do not describe a model."""


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """Shape, rotary embedding in force, and the sequence length it was trained at."""

    config: LlamaConfig
    rope: Rope
    sequence_length: int

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], source: str) -> "ModelDescription":
        """Reads them among the facts in a checkpoint's metadata, which are the config of the phase that wrote it.

        `source` names the checkpoint in errors.
        """
        if missing := [name for name in ("model", "rope", "sequence_length") if name not in facts]:
            raise DescriptionError(
                f"{source}: the checkpoint's metadata say nothing about {', '.join(missing)}; "
                "it was written by another version. Run the phase again."
            )
        rope = facts["rope"]
        scaling = None if rope["scaling"] is None else RopeScaling(**rope["scaling"])
        return cls(LlamaConfig(**facts["model"]), Rope(rope["rope_theta"], scaling), int(facts["sequence_length"]))
