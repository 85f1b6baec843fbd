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
    """The shares of step s depend on the losses up to step s - lag_steps; 0 for a policy that never learns."""
    sequences_per_draw: ClassVar[int] = 0
    """Sequences that one random draw gives a source; 0 where sequences are allotted and not drawn."""

    def begin(self) -> Memory:
        """Return the memory before the first turn."""
        return {}

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        """Return the shares of turn `turn` (from 1), the update that follows `step` finished ones."""
        return dict(sources.prior)

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        """Return the memory after one more turn; `memory` itself does not change."""
        return memory


MixingPolicy = Static | OdmPaper | OdmReleased | LossDrop
