"""ModelDescription: what a checkpoint must say about its model for others to compute with it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from runtime.model.config import LlamaConfig, Rope, RopeScaling


class DescriptionError(ValueError):
    """Checkpoint metadata that do not describe a model."""


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """Shape, rotary embedding and the sequence length it was trained at; kept in a checkpoint's metadata."""

    config: LlamaConfig
    rope: Rope
    sequence_length: int

    def to_json(self) -> dict[str, Any]:
        """As JSON data; `from_json` is its inverse."""
        return {
            "model": dataclasses.asdict(self.config),
            "rope": dataclasses.asdict(self.rope),
            "sequence_length": self.sequence_length,
        }

    @classmethod
    def from_json(cls, metadata: Mapping[str, Any], source: str) -> "ModelDescription":
        """Reads what `to_json` gave, among other metadata; `source` names the checkpoint in errors."""
        if missing := [name for name in ("model", "rope", "sequence_length") if name not in metadata]:
            raise DescriptionError(
                f"{source}: the checkpoint's metadata say nothing about {', '.join(missing)}; "
                "it was written by another version. Run the phase again."
            )
        rope = metadata["rope"]
        scaling = None if rope["scaling"] is None else RopeScaling(**rope["scaling"])
        return cls(
            LlamaConfig(**metadata["model"]), Rope(rope["rope_theta"], scaling), int(metadata["sequence_length"])
        )
