"""The policies that learn nothing: the mixture as it is written, by size, or all sources alike."""

import dataclasses
from typing import ClassVar, Literal

from runtime.data.mixing.policy import Memory, Sources, Turn
from runtime.data.shares import apportioned


@dataclasses.dataclass(frozen=True)
class _Fixed:
    lag_steps: ClassVar[int] = 0
    sequences_per_draw: ClassVar[int] = 0

    def begin(self) -> Memory:
        return {}

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        return memory


@dataclasses.dataclass(frozen=True)
class Static(_Fixed):
    """The shares that the mixture says."""

    kind: Literal["static"] = "static"

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        return dict(sources.prior)


@dataclasses.dataclass(frozen=True)
class Proportional(_Fixed):
    """Shares by the size of the sources; of the mixture only the list of sources counts."""

    kind: Literal["proportional"] = "proportional"

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        return apportioned({name: float(sources.num_sequences[name]) for name in sources.prior})


@dataclasses.dataclass(frozen=True)
class Stratified(_Fixed):
    """The same share for each source; of the mixture only the list of sources counts."""

    kind: Literal["stratified"] = "stratified"

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        return apportioned(dict.fromkeys(sources.prior, 1.0))
