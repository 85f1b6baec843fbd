"""Loader: the batch of any step, as a pure function of where the data stand.

Under a mixing policy that learns, of the losses of finished updates too, up to a fixed number of steps back
(runtime/data/mixing); so it reads ahead all the same.

Source i at its c-th sequence reads window `order(c mod n)` of epoch `c // n`, where n is how many whole
windows its cache holds and the order is keyed by (seed, identity of the source, epoch). Nothing depends on
names, on the order of sources, on which other sources there are, or on who asked before.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.allocation import Allocation, allocate, allocate_within, drawn, integer_weights, shuffled_slots
from runtime.data.cache import TokenCache
from runtime.data.mixing.feedback import BySource, Feedback
from runtime.data.mixing.fixed import Static
from runtime.data.mixing.mixer import MixerState, next_shares
from runtime.data.mixing.policy import Policy, Sources
from runtime.data.mixture import MixtureSchedule
from runtime.data.permutation import key_of, permuted
from runtime.data.prefetch import Prefetch
from runtime.data.shares import apportioned


class LoaderError(ValueError):
    """A loader that cannot give what its mixture asks for; the message names the source and the cure."""


@dataclass(frozen=True)
class DataPosition:
    """Where the data stand: all that a batch depends on besides the step; goes into a checkpoint as JSON."""

    consumed: dict[str, int] = field(default_factory=dict)
    """Sequences drawn so far, by the identity of the source."""
    carry: dict[str, int] = field(default_factory=dict)
    """What each source is owed beyond that, by identity; see runtime/data/allocation.py."""
    sequence_length: int | None = None
    """Length of the sequences counted in `consumed`; None before the first batch."""
    shares: dict[str, int] = field(default_factory=dict)
    """What the last batch was drawn by, by identity; for the log, the next batch does not depend on it."""
    mixer: MixerState | None = None
    """State of a mixing policy that learns."""

    def to_json(self) -> dict:
        """As JSON data; `from_json` is its inverse."""
        mixer = None if self.mixer is None else self.mixer.to_json()
        return {**vars(self), "mixer": mixer}

    @classmethod
    def from_json(cls, document: Mapping) -> "DataPosition":
        """From what `to_json` gave."""
        state = document["mixer"]
        return cls(**{**document, "mixer": None if state is None else MixerState.from_json(state)})


class Batch(NamedTuple):
    """Rows are sequences; those of one source are spread over the batch."""

    tokens: Int32[np.ndarray, "batch sequence"]
    segment_ids: Int32[np.ndarray, "batch sequence"]
    """0, 1, … by document within the row; EOS belongs to the document that it closes."""
    source_index: Int32[np.ndarray, "batch"]
    """Index into `Loader.sources`; of two names of one source, the first."""


class BatchPlan(NamedTuple):
    """Where each row of a batch is read from."""

    source_index: Int32[np.ndarray, "batch"]
    """Index into `Loader.sources`."""
    starts: Int64[np.ndarray, "batch"]
    """Position of the row's first token in its source's cache."""
    data_epochs: Int64[np.ndarray, "batch"]
    """How often the source had been read through before."""


class Loader:
    """Draws batches from token caches by a mixture. Thread-safe: it holds no position."""

    def __init__(
        self,
        caches: Mapping[str, TokenCache],
        identities: Mapping[str, str],
        mixture: MixtureSchedule,
        sequence_length: int,
        seed: int,
        *,
        policy: Policy = Static(),  # noqa: B008 -- frozen
        replay: Callable[[int], Mapping[str, int]] | None = None,
    ) -> None:
        """Sources are named as in the mixture; two names of one identity are one source, whose weights add up.

        Args:
            caches: Token cache of each source; those that the mixture never names are allowed.
            identities: Full digest of the step that made each cache: what its order is keyed by.
            mixture: Weights by name and step.
            sequence_length: Tokens a row.
            seed: Another seed, another order.
            policy: What makes shares of the weights, and of the losses seen so far.
            replay: Sequences by identity that the update after so many finished ones takes, from the log of a run:
                drawn instead of the mixture, so that any mesh sees the data that the run saw.
        """
        self.sources = tuple(sorted(caches))
        """Names by `source_index`."""
        _refuse(caches, identities, mixture, sequence_length)
        self._caches = [caches[name] for name in self.sources]
        self._identities = [identities[name] for name in self.sources]
        self.index_of: dict[str, int] = {}
        """`source_index` of each identity."""
        for index, identity in enumerate(self._identities):
            self.index_of.setdefault(identity, index)
        self._windows = [cache.num_tokens // sequence_length for cache in self._caches]
        self.policy = policy
        self.names = {self._identities[index]: self.sources[index] for index in self.index_of.values()}
        """Name of each identity; of two names of one source, the first."""
        self._num_sequences = {identity: self._windows[index] for identity, index in self.index_of.items()}
        self._max_epochs = _max_epochs(policy, identities, mixture)
        self._replay = replay
        self.lag_steps = 0 if replay else policy.lag_steps
        """A batch depends on the losses up to so many steps before it; 0: on none."""
        self._identity_of = dict(identities)
        self._mixture = mixture
        self._sequence_length = sequence_length
        self._seed = seed

    def batch(
        self,
        position: DataPosition,
        step: int,
        global_batch_size: int,
        *,
        rows: slice = slice(None),
        feedback: Callable[[int], BySource] | None = None,
    ) -> tuple[Batch, DataPosition]:
        """The batch of the update that follows `step` finished ones, and the position after it.

        `rows` picks what this host reads; the position is that of the whole batch whatever it picks. A policy that
        learns asks `feedback` for the losses of earlier updates, each once and in order.
        """
        plan, after = self.plan(position, step, global_batch_size, feedback=feedback)
        return self._read(plan.source_index[rows], plan.starts[rows]), after

    def plan(
        self,
        position: DataPosition,
        step: int,
        global_batch_size: int,
        *,
        feedback: Callable[[int], BySource] | None = None,
    ) -> tuple[BatchPlan, DataPosition]:
        """Which window each row is, without reading any."""
        if position.sequence_length not in (None, self._sequence_length):
            raise LoaderError(
                f"position.sequence_length: recorded: {position.sequence_length}; now: {self._sequence_length}. The "
                "position counts sequences of the old length, so it would point at other text. Keep the length, or "
                'start the data afresh with restore="weights_and_optimizer".'
            )
        segment = self._mixture.segment_at(step)
        weights: dict[str, float] = {}
        for name, weight in sorted(segment.weights.items()):
            identity = self._identity_of[name]
            weights[identity] = weights.get(identity, 0.0) + weight
        sources = Sources(integer_weights(weights), self._num_sequences, position.consumed, self._max_epochs)
        if self._replay is None:
            shares, mixer = next_shares(
                self.policy, position.mixer, step=step, sources=sources, feedback=feedback or _no_feedback
            )
            counts, carry = self._allotted(shares, position, step, global_batch_size, sources)
        else:
            counts, carry, mixer = self._replayed(step, global_batch_size), position.carry, None
            shares = apportioned(counts)
        slots = shuffled_slots(counts, seed=self._seed, step=step)
        source_index = np.array([self.index_of[identity] for identity in slots], np.int32)
        # The k-th row of a source takes the source's k-th next sequence.
        drawn = np.zeros(len(slots), np.int64)
        for identity, count in counts.items():
            first = position.consumed.get(identity, 0)
            drawn[source_index == self.index_of[identity]] = np.arange(first, first + count)
        starts, data_epochs = self._starts(source_index, drawn)
        consumed = dict(position.consumed)
        for identity, count in counts.items():
            consumed[identity] = consumed.get(identity, 0) + count
        after = DataPosition(consumed, carry, self._sequence_length, shares, mixer)
        return BatchPlan(source_index, starts, data_epochs), after

    def prefetched(
        self,
        position: DataPosition,
        steps: range,
        global_batch_size: int,
        depth: int,
        *,
        rows: slice = slice(None),
        feedback: Feedback | None = None,
    ) -> "Prefetch[tuple[int, Batch, DataPosition]]":
        """`(step, batch, position after it)` for each of `steps`, read ahead by a thread; close it when done.

        At most `depth` batches wait to be taken. Use it as a context manager, or call `close`.
        """

        def produce() -> Iterator[tuple[int, Batch, DataPosition]]:
            here = position
            for step in steps:
                batch, here = self.batch(here, step, global_batch_size, rows=rows, feedback=feedback)
                yield step, batch, here

        # Who waits for losses that nobody will publish must be let go before the thread is waited for.
        return Prefetch(produce(), depth, unblock=feedback.close if feedback is not None else lambda: None)

    def consumed_by_name(self, position: DataPosition) -> dict[str, int]:
        """Sequences drawn so far by name, for logs and plots; zero for a source that was never drawn."""
        return {
            name: position.consumed.get(identity, 0)
            for name, identity in zip(self.sources, self._identities, strict=True)
        }

    def exhausted(self, position: DataPosition) -> set[str]:
        """Names of the sources that have given all that the policy lets them."""
        limits = Sources({}, self._num_sequences, position.consumed, self._max_epochs).limits()
        return {self.names[identity] for identity, left in limits.items() if not left}

    def _allotted(
        self, shares: Mapping[str, int], position: DataPosition, step: int, global_batch_size: int, sources: Sources
    ) -> Allocation:
        size = self.policy.sequences_per_draw
        if not size:
            limits = sources.limits()
            return (
                allocate_within(shares, position.carry, global_batch_size, limits)
                if limits
                else allocate(shares, position.carry, global_batch_size)
            )
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
        unknown = sorted(set(counts) - set(self.index_of))
        if sum(counts.values()) != global_batch_size or unknown:
            raise LoaderError(
                f"replay: the log has {sum(counts.values())} sequences for the update after step {step}, of which "
                f"{sum(counts[name] for name in unknown)} are of no source here; this one takes {global_batch_size}. "
                "Replay a run with the batch size and the sources of its log, over its steps."
            )
        return counts

    def _starts(
        self, source_index: Int32[np.ndarray, "batch"], drawn: Int64[np.ndarray, "batch"]
    ) -> tuple[Int64[np.ndarray, "batch"], Int64[np.ndarray, "batch"]]:
        sizes = np.array(self._windows, np.int64)[source_index]
        data_epochs, indices = drawn // np.maximum(sizes, 1), drawn % np.maximum(sizes, 1)
        keys, shifts = np.zeros(len(drawn), np.uint64), np.zeros(len(drawn), np.int64)
        for index, data_epoch in {*zip(source_index.tolist(), data_epochs.tolist(), strict=True)}:
            where = (source_index == index) & (data_epochs == data_epoch)
            keys[where] = key_of("order", self._seed, self._identities[index], data_epoch)
            shifts[where] = self._shift(index, data_epoch)
        windows = permuted(indices, sizes=sizes, keys=keys)
        return windows * self._sequence_length + shifts, data_epochs

    def _shift(self, index: int, data_epoch: int) -> int:
        """Tokens before the first window: what is left over is cut off in front or behind, another part each epoch."""
        spare = self._caches[index].num_tokens - self._windows[index] * self._sequence_length
        return key_of("shift", self._seed, self._identities[index], data_epoch) % (spare + 1)

    def _read(self, source_index: Int32[np.ndarray, "rows"], starts: Int64[np.ndarray, "rows"]) -> Batch:
        tokens = np.empty((len(starts), self._sequence_length), np.int32)
        segment_ids = np.empty_like(tokens)
        for index in np.unique(source_index).tolist():
            where = source_index == index
            windows = self._caches[index].read_windows(starts[where], self._sequence_length)
            tokens[where] = windows
            segment_ids[where] = segments(windows, self._caches[index].eos_token_id)
        return Batch(tokens, segment_ids, source_index)


def segments(tokens: np.ndarray, eos_token_id: int) -> Int32[np.ndarray, "batch sequence"]:
    """Number of the document that each token is of, counted from 0 in each row.

    EOS closes every document and occurs nowhere else (the cache's writer refuses it), so the boundaries are
    in the tokens themselves and no offsets need to be read.
    """
    ends = tokens == eos_token_id
    return np.cumsum(ends, axis=-1, dtype=np.int32) - ends.astype(np.int32)


def _no_feedback(step: int) -> BySource:
    raise LoaderError(f"mixing: the policy learns, and nobody told it the losses of step {step}; pass `feedback`.")


def _max_epochs(policy: Policy, identities: Mapping[str, str], mixture: MixtureSchedule) -> dict[str, float]:
    limits: dict[str, float] = getattr(policy, "max_epochs", {})
    for name in limits:
        if name not in mixture.sources:
            raise LoaderError(f"mixing.max_epochs[{name!r}]: the mixture has only {list(mixture.sources)}.")
    return {identities[name]: epochs for name, epochs in limits.items()}


def _refuse(
    caches: Mapping[str, TokenCache], identities: Mapping[str, str], mixture: MixtureSchedule, sequence_length: int
) -> None:
    missing = [name for name in mixture.sources if name not in caches]
    if missing:
        raise LoaderError(f"mixture: no token cache for {missing}; the caches are {sorted(caches)}.")
    if set(identities) != set(caches):
        raise LoaderError(f"identities: of {sorted(identities)}; the caches are {sorted(caches)}. Pass one of each.")
    lengths: dict[str, int] = {}
    for name, identity in sorted(identities.items()):
        if lengths.setdefault(identity, caches[name].num_tokens) != caches[name].num_tokens:
            raise LoaderError(
                f"identities[{name!r}] is {identity[:12]}…, which another source has too, but their caches differ; "
                "pass the digest of the step that made each cache."
            )
    for name in mixture.sources:
        if caches[name].num_tokens < sequence_length:
            raise LoaderError(
                f"caches[{name!r}] holds {caches[name].num_tokens} tokens, less than one sequence of "
                f"{sequence_length}; leave it out of the mixture or join it with another source."
            )
    formats = {(cache.vocab_size, cache.eos_token_id, cache.format.tokenizer_digest) for cache in caches.values()}
    if len(formats) > 1:
        raise LoaderError(
            "caches: made by different tokenizers: "
            + "; ".join(f"{name}: {caches[name].format.tokenizer_digest[:12]}…" for name in sorted(caches))
            + ". One model reads one vocabulary; tokenize all sources with the same tokenizer."
        )
