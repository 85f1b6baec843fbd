"""Policy: what turns the losses seen so far into the shares of the next batch; pure, and exact on every machine.

Sources are named by their identities. Shares are whole numbers that sum to `WHOLE`. Arithmetic is that of IEEE
doubles (+, -, *, /, square root) and of `numbers.exp`, so equal losses give equal shares wherever they are computed.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

Memory = dict[str, Any]
"""What a policy remembers: JSON data, so that it goes into a checkpoint as it is."""


class Sources(NamedTuple):
    """What a policy may know of the sources that a step can draw from."""

    prior: Mapping[str, int]
    """Their shares in the mixture that the recipe writes, of `WHOLE`."""
    num_sequences: Mapping[str, int]
    """Whole sequences in the cache of each."""
    consumed: Mapping[str, int]
    """Sequences drawn since the start of the run; a source that was never drawn may be missing."""
    max_epochs: Mapping[str, float]
    """How often a source may be read through; without an entry, as often as it likes."""

    def limits(self) -> dict[str, int]:
        """Sequences that each source with an entry in `max_epochs` may still give."""
        allowed = {name: math.floor(epochs * self.num_sequences[name]) for name, epochs in self.max_epochs.items()}
        return {name: max(0, count - self.consumed.get(name, 0)) for name, count in allowed.items()}


class Seen(NamedTuple):
    """What one update showed of one source."""

    num_sequences: int
    num_targets: int
    """Positions that were predicted."""
    loss_sum: float
    """Cross-entropy over those positions, nats."""
    log_normalizer_sum: float
    """Log-normalisers over those positions; not a number of an update that was made before it was recorded."""


class Turn(NamedTuple):
    """One update, after it was made."""

    number: int
    """Counted from 1 since the policy began."""
    shares: Mapping[str, int]
    """What its sequences were drawn by."""
    seen: Mapping[str, Seen]

    def mean_losses(self) -> Iterator[tuple[str, Seen, float]]:
        """Of each source that was drawn: what was seen of it and its mean loss; one that is not finite teaches none."""
        for name, seen in self.seen.items():
            if seen.num_targets and math.isfinite(seen.loss_sum):
                yield name, seen, seen.loss_sum / seen.num_targets


class Policy(Protocol):
    """A named way to choose shares. Values are frozen; what changes is the memory that they are handed."""

    @property
    def kind(self) -> str:
        """Its name in a config."""
        ...

    @property
    def lag_steps(self) -> int:
        """The shares of step s follow from the losses up to step s - lag_steps; 0 for a policy that never learns."""
        ...

    @property
    def sequences_per_draw(self) -> int:
        """How many sequences one random draw gives a source; 0 where sequences are allotted and not drawn."""
        ...

    def begin(self) -> Memory:
        """Before the first turn."""
        ...

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        """Shares of turn `turn`, counted from 1, which is the update that follows `step` finished ones."""
        ...

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        """The memory after one more turn; `memory` itself is left as it is."""
        ...
