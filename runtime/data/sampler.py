"""Sampler: the source of each row of a batch, and the data position after it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.allocation import Allocation, allocate, drawn, shuffled_slots
from runtime.data.mixing.mixer import BySource, MixerState, next_shares, standing_shares
from runtime.data.mixing.policies import MixingPolicy
from runtime.data.mixing.policy import Sources
from runtime.data.mixture import MixtureSchedule, apportioned
from runtime.data.order import DataOrder, LoaderError
from runtime.data.prefetch import during


@dataclasses.dataclass(frozen=True)
class DataPosition:
    """All that the next batch depends on besides the step; stored in checkpoints as JSON."""

    consumed: dict[str, int] = dataclasses.field(default_factory=dict)
    """Sequences drawn so far, by the identity of the source."""
    carry: dict[str, int] = dataclasses.field(default_factory=dict)
    """Sequences owed to each source beyond `consumed`, by identity; see allocation.py."""
    sequence_length: int | None = None
    """Length of the sequences counted in `consumed`; None before the first batch."""
    shares: dict[str, int] = dataclasses.field(default_factory=dict)
    """Shares that the last batch was drawn by, by identity; only for the log."""
    mixer: MixerState | None = None
    """State of a mixing policy that learns."""

    def to_json(self) -> dict:
        return {**vars(self), "mixer": None if self.mixer is None else self.mixer.to_json()}

    @classmethod
    def from_json(cls, document: Mapping) -> "DataPosition":
        state = document["mixer"]
        return cls(**{**document, "mixer": None if state is None else MixerState.from_json(state)})


class SourceSampler:
    """Draws by source, from the mixture and its policy, without places of rows. Identities name the sources."""

    def __init__(
        self, order: DataOrder, identities: Mapping[str, str], mixture: MixtureSchedule, *, policy: MixingPolicy
    ) -> None:
        """Raise LoaderError if the policy limits the epochs of a source that the mixture does not have."""
        self._order, self._identities, self._mixture, self._policy = order, dict(identities), mixture, policy
        max_epochs: dict[str, float] = getattr(policy, "max_epochs", {})
        if unknown := sorted(set(max_epochs) - set(mixture.sources)):
            raise LoaderError(
                f"mixing.max_epochs[{unknown[0]!r}]: the mixture has no such source; name one of "
                f"{list(mixture.sources)}."
            )
        self._max_epochs = {identities[name]: epochs for name, epochs in max_epochs.items()}

    def rows(
        self, position: DataPosition, steps: range, global_batch_size: int, feedback: Callable[[int], BySource] | None
    ) -> tuple[Int32[np.ndarray, "rows"], Int64[np.ndarray, "rows"], list[DataPosition]]:
        """Return the source of each row and the number of its draw, batch after batch, and the position after each."""
        counts, positions, here = [], [], position
        for step in steps:
            of_batch, here = self._draw(here, step, global_batch_size, feedback)
            counts.append(of_batch)
            positions.append(here)
        return *self.rows_of(counts, position.consumed, steps.start), positions

    def rows_of(
        self, counts: Sequence[Mapping[str, int]], consumed: Mapping[str, int], first_step: int
    ) -> tuple[Int32[np.ndarray, "rows"], Int64[np.ndarray, "rows"]]:
        """Return the source of each row and the number of its draw.

        `counts` are the sequences of each source in each batch, and `consumed` those drawn before the first batch, by
        identity; `first_step` counts the finished training steps before it.
        """
        slots = shuffled_slots(counts, seed=self._order.seed, first_step=first_step)
        source_index = np.array([self._order.index_of[identity] for identity in slots], np.int32)
        draws = np.empty(len(source_index), np.int64)
        for identity, index in self._order.index_of.items():
            # The k-th row of a source takes the source's k-th next sequence.
            first = consumed.get(identity, 0)
            is_of_source = source_index == index
            draws[is_of_source] = np.arange(first, first + np.count_nonzero(is_of_source))
        return source_index, draws

    def _draw(
        self, position: DataPosition, step: int, global_batch_size: int, feedback: Callable[[int], BySource] | None
    ) -> tuple[dict[str, int], DataPosition]:
        """Return the sequences of each source in the batch after `step` updates, and the position after it."""

        def losses(earlier: int) -> BySource:
            if feedback is None:
                raise LoaderError(
                    f"mixing: {self._policy.kind} learns from the losses of step {earlier}; pass `feedback`."
                )
            with during("losses of earlier updates"):
                return feedback(earlier)

        sources = self._sources_at(step, position)
        shares, mixer = next_shares(self._policy, position.mixer, step=step, sources=sources, feedback=losses)
        if not (size := self._policy.sequences_per_draw):
            allocation = allocate(shares, position.carry, global_batch_size, sources.limits)
            return allocation.counts, self._after(position, allocation, shares, mixer)
        if global_batch_size % size:
            raise LoaderError(
                f"mixing.sequences_per_draw is {size}, which does not divide the global batch of {global_batch_size} "
                "sequences; use a divisor."
            )
        draws = drawn(shares, seed=self._order.seed, step=step, num_draws=global_batch_size // size)
        counts = {identity: count * size for identity, count in draws.items()}
        return counts, self._after(position, Allocation(counts, position.carry), shares, mixer)

    def skip(self, position: DataPosition, step: int, global_batch_size: int, num_batches: int) -> DataPosition:
        """Return the position after skipped batches; see `Loader.skip_batches`."""
        here = position
        for _ in range(num_batches):
            sources = self._sources_at(step, here)
            shares = standing_shares(self._policy, position.mixer, step=step, sources=sources)
            allocation = allocate(shares, here.carry, global_batch_size, sources.limits)
            here = self._after(here, allocation, shares, position.mixer if self._policy.lag_steps else None)
        return here

    def exhausted(self, position: DataPosition) -> set[str]:
        """Return the identities of the sources that have given all that the policy allows."""
        return {identity for identity, left in self._limits(position).items() if not left}

    def _sources_at(self, step: int, position: DataPosition) -> Sources:
        weights: dict[str, float] = {}
        for name, weight in sorted(self._mixture.segment_at(step).weights.items()):
            identity = self._identities[name]
            weights[identity] = weights.get(identity, 0.0) + weight
        return Sources(apportioned(weights), self._limits(position))

    def _limits(self, position: DataPosition) -> dict[str, int]:
        limits = {}
        for identity, epochs in self._max_epochs.items():
            allowed = int(epochs * self._order.num_sequences(identity))
            limits[identity] = max(0, allowed - position.consumed.get(identity, 0))
        return limits

    def _after(
        self, position: DataPosition, allocation: Allocation, shares: dict[str, int], mixer: MixerState | None
    ) -> DataPosition:
        consumed = dict(position.consumed)
        for identity, count in allocation.counts.items():
            consumed[identity] = consumed.get(identity, 0) + count
        return DataPosition(consumed, allocation.carry, self._order.sequence_length, shares, mixer)
