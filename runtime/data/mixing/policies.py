"""Mixing policies by the `kind` that a config writes; the static one is the mixture as it is written."""

import dataclasses
from typing import ClassVar, Literal

from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm import OdmPaper, OdmReleased
from runtime.data.mixing.policy import Memory, Sources, Turn


@dataclasses.dataclass(frozen=True)
class Static:
    """The shares of the written mixture."""

    kind: Literal["static"] = "static"

    lag_steps: ClassVar[int] = 0
    sequences_per_draw: ClassVar[int] = 0

    def begin(self) -> Memory:
        return {}

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        return dict(sources.prior)

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        return memory


MixingPolicy = Static | OdmPaper | OdmReleased | LossDrop
