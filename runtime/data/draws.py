"""Draws: how many sequences each source gives to a batch, and where the data stand after it; no row is looked for."""

from collections.abc import Callable, Iterator, Mapping

from runtime.data.activity import Activity
from runtime.data.allocation import Allocation, allocate, allocate_within, drawn, integer_weights
from runtime.data.batch import DataPosition
from runtime.data.mixing.feedback import BySource, noted
from runtime.data.mixing.mixer import MixerState, next_shares, standing_shares
from runtime.data.mixing.policy import Policy, Sources
from runtime.data.mixture import MixtureSchedule
from runtime.data.order import SourceOrder
from runtime.data.packing import Packing
from runtime.data.shares import apportioned
from runtime.data.sources import LoaderError


class Draws:
    """By the mixture, its policy, and the log where one is replayed; sources are named by their identities."""

    def __init__(
        self,
        orders: Mapping[str, SourceOrder],
        identities: Mapping[str, str],
        mixture: MixtureSchedule,
        sequence_length: int,
        seed: int,
        *,
        packing: Packing,
        policy: Policy,
        max_epochs: Mapping[str, float],
        replay: Callable[[int], Mapping[str, int]] | None,
    ) -> None:
        """`orders` and `max_epochs` by identity, `identities` by the names of the mixture; the others as a loader's."""
        self._orders, self._identity_of, self._mixture = orders, dict(identities), mixture
        self._sequence_length, self._seed, self._packing = sequence_length, seed, packing
        self._policy, self._max_epochs, self._replay = policy, max_epochs, replay
        self.lag_steps = 0 if replay else policy.lag_steps
        """A batch depends on the losses up to so many steps before it; 0: on none."""

    def of_batch(
        self,
        position: DataPosition,
        step: int,
        global_batch_size: int,
        feedback: Callable[[int], BySource] | None,
        activity: Activity,
    ) -> tuple[dict[str, int], DataPosition]:
        """Sequences of each source in the batch after `step` updates, and the position after it, with old bookmarks."""
        sources = self._sources_at(step, position, activity)
        if self._replay is None:
            shares, mixer = next_shares(
                self._policy,
                position.mixer,
                step=step,
                sources=sources,
                feedback=noted(feedback or _no_feedback, activity),
            )
            counts, carry = self._drawn(shares, position, step, global_batch_size, sources)
        else:
            counts, carry, mixer = self._replayed(step, global_batch_size), position.carry, None
            shares = apportioned(counts)
        return counts, self._after(position, counts, carry, shares, mixer)

    def left_out(
        self, position: DataPosition, step: int, global_batch_size: int, num_batches: int, activity: Activity
    ) -> DataPosition:
        """The position after batches that nobody takes, with old bookmarks; see `Loader.left_out`."""
        if self._replay is not None:
            raise LoaderError("replay: a log says which sequences were drawn, and none can be left out beside it.")
        here = position
        for _ in range(num_batches):
            sources = self._sources_at(step, here, activity)
            shares = standing_shares(self._policy, position.mixer, step=step, sources=sources)
            counts, carry = _allotted(shares, here.carry, global_batch_size, sources)
            here = self._after(here, counts, carry, shares, position.mixer if self.lag_steps else None)
        return here

    def exhausted(self, position: DataPosition) -> set[str]:
        """Identities of the sources that have given all that the policy lets them."""
        sizes = _NumSequences(self._orders, Activity())
        limits = Sources({}, sizes, position.consumed, self._max_epochs).limits()
        return {identity for identity, left in limits.items() if not left}

    def _sources_at(self, step: int, position: DataPosition, activity: Activity) -> Sources:
        """What the policy may know of the sources of the update that follows `step` finished ones."""
        weights: dict[str, float] = {}
        for name, weight in sorted(self._mixture.segment_at(step).weights.items()):
            identity = self._identity_of[name]
            weights[identity] = weights.get(identity, 0.0) + weight
        sizes = _NumSequences(self._orders, activity)
        return Sources(integer_weights(weights), sizes, position.consumed, self._max_epochs)

    def _after(
        self,
        position: DataPosition,
        counts: Mapping[str, int],
        carry: dict[str, int],
        shares: dict[str, int],
        mixer: MixerState | None,
    ) -> DataPosition:
        """The position once a batch of `counts` was drawn; its bookmarks are those before it."""
        consumed = dict(position.consumed)
        for identity, count in counts.items():
            consumed[identity] = consumed.get(identity, 0) + count
        return DataPosition(
            consumed=consumed,
            carry=carry,
            sequence_length=self._sequence_length,
            packing=self._packing,
            bookmarks=position.bookmarks,
            shares=shares,
            mixer=mixer,
        )

    def _drawn(
        self, shares: Mapping[str, int], position: DataPosition, step: int, global_batch_size: int, sources: Sources
    ) -> Allocation:
        size = self._policy.sequences_per_draw
        if not size:
            return _allotted(shares, position.carry, global_batch_size, sources)
        if global_batch_size % size:
            raise LoaderError(
                f"mixing.sequences_per_draw is {size}, which a global batch of {global_batch_size} sequences is no "
                "multiple of; take a divisor of it."
            )
        counts = drawn(shares, seed=self._seed, step=step, num_draws=global_batch_size // size)
        return Allocation({identity: count * size for identity, count in counts.items()}, position.carry)

    def _replayed(self, step: int, global_batch_size: int) -> dict[str, int]:
        assert self._replay is not None
        counts = dict(self._replay(step))
        unknown = sorted(set(counts) - set(self._orders))
        if sum(counts.values()) != global_batch_size or unknown:
            raise LoaderError(
                f"replay: the log has {sum(counts.values())} sequences for the update after step {step}, of which "
                f"{sum(counts[name] for name in unknown)} are of no source here; this one takes {global_batch_size}. "
                "Replay a run with the batch size and the sources of its log, over its steps."
            )
        return counts


def _allotted(
    shares: Mapping[str, int], carry: Mapping[str, int], global_batch_size: int, sources: Sources
) -> Allocation:
    limits = sources.limits()
    if not limits:
        return allocate(shares, carry, global_batch_size)
    return allocate_within(shares, carry, global_batch_size, limits)


class _NumSequences(Mapping[str, int]):
    """Sequences in the cache of each source, by identity; asking for one that is being built waits for its end."""

    def __init__(self, orders: Mapping[str, SourceOrder], activity: Activity) -> None:
        self._orders, self._activity = orders, activity

    def __getitem__(self, identity: str) -> int:
        return self._orders[identity].num_sequences(self._activity)

    def __iter__(self) -> Iterator[str]:
        return iter(self._orders)

    def __len__(self) -> int:
        return len(self._orders)


def _no_feedback(step: int) -> BySource:
    raise LoaderError(f"mixing: the policy learns, and nobody told it the losses of step {step}; pass `feedback`.")
