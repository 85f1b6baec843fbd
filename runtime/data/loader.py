"""Loader: the batch of any step, as a pure function of the data position.

Under a mixing policy that learns (runtime/data/mixing), a batch also depends on losses, but on none of the last few
steps; so the loader can read ahead. A batch goes through two modules: sampler.py draws a source for each row, and
order.py finds and reads the row of each draw.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.mixing.mixer import BySource, Feedback
from runtime.data.mixing.policies import MixingPolicy, Static
from runtime.data.mixture import MixtureSchedule
from runtime.data.order import DataOrder, LoaderError, RowLocations, TokenSource
from runtime.data.prefetch import Prefetch
from runtime.data.sampler import DataPosition, SourceSampler

ROWS_READ_TOGETHER = 64
"""Rows that are drawn and read at once when reading ahead: a few rows cost hardly less than many."""

Rows = slice | Int64[np.ndarray, "rows"]
"""Rows of a batch that one host reads."""

logger = logging.getLogger(__name__)


class LoadedBatch(NamedTuple):
    """The rows of a batch that one host reads; a row is a sequence, and rows of a source are spread over the batch."""

    tokens: Int32[np.ndarray, "rows sequence"]
    segment_ids: Int32[np.ndarray, "rows sequence"]
    """0, 1, … by document within the row; EOS belongs to the document that it closes."""
    source_index: Int32[np.ndarray, "batch"]
    """Index into `Loader.sources` of every row of the batch, read here or not."""


class Loader:
    """Draws batches from token caches by a mixture. Thread-safe: it has no position of its own."""

    def __init__(
        self,
        caches: Mapping[str, TokenSource],
        identities: Mapping[str, str],
        mixture: MixtureSchedule,
        sequence_length: int,
        seed: int,
        *,
        policy: MixingPolicy = Static(),  # noqa: B008 -- frozen
    ) -> None:
        """Check the sources. Two names of one identity are one source, whose weights add up.

        `caches` has the token cache of each source, finished or growing, by its name in the mixture; more are allowed.
        `identities` are the full digests of the steps that made them: with `seed`, the keys of the order. `policy`
        turns the mixture's weights, and perhaps the losses so far, into shares.
        """
        _check_sources(caches, identities, mixture, sequence_length)
        self._order = DataOrder(caches, identities, seed=seed, sequence_length=sequence_length)
        self.sources = self._order.names
        """Names by `source_index`."""
        self.index_of = self._order.index_of
        """`source_index` of each identity."""
        self.names = {identity: self.sources[index] for identity, index in self.index_of.items()}
        """Name of each identity; the first where a source has two."""
        self._sampler = SourceSampler(self._order, identities, mixture, policy=policy)
        self.lag_steps = policy.lag_steps
        """A batch depends on the losses up to this many steps before it; 0 means on none."""

    def batch(
        self,
        position: DataPosition,
        step: int,
        global_batch_size: int,
        *,
        rows: Rows = slice(None),
        feedback: Callable[[int], BySource] | None = None,
    ) -> tuple[LoadedBatch, DataPosition]:
        """Return the batch of the update that follows `step` finished ones, and the position after it.

        `rows` are the rows that this host reads; the position is that of the whole batch. A policy that learns asks
        `feedback` for the losses of earlier updates, each once and in order.
        """
        return self.batches(position, range(step, step + 1), global_batch_size, rows=rows, feedback=feedback)[0]

    def batches(
        self,
        position: DataPosition,
        steps: range,
        global_batch_size: int,
        *,
        rows: Rows = slice(None),
        feedback: Callable[[int], BySource] | None = None,
    ) -> list[tuple[LoadedBatch, DataPosition]]:
        """Return what `batch` returns for each of `steps`, drawn and read together."""
        found, positions = self.locate(position, steps, global_batch_size, feedback=feedback)
        of_host = np.arange(len(found.starts)).reshape(len(steps), global_batch_size)[:, rows].reshape(-1)
        tokens, segment_ids = self._order.read(RowLocations(*(part[of_host] for part in found)))
        parts = (np.split(part, len(steps)) for part in (tokens, segment_ids, found.source_index))
        return [(LoadedBatch(*batch), after) for *batch, after in zip(*parts, positions, strict=True)]

    def locate(
        self,
        position: DataPosition,
        steps: range,
        global_batch_size: int,
        *,
        feedback: Callable[[int], BySource] | None = None,
    ) -> tuple[RowLocations, list[DataPosition]]:
        """Return where the rows of the batches of `steps` lie, batch after batch, and the position after each."""
        self._check_position(position)
        source_index, draws, positions = self._sampler.rows(position, steps, global_batch_size, feedback)
        return self._order.locate(source_index, draws), positions

    def recorded_batch(
        self, counts: Mapping[str, int], consumed: Mapping[str, int], step: int
    ) -> tuple[RowLocations, LoadedBatch]:
        """Return the batch that follows `step` finished training steps; it needs no losses, whatever the policy.

        `counts` are the recorded sequences of each source in it, and `consumed` those drawn before it, by identity.
        """
        found = self._order.locate(*self._sampler.rows_of([counts], consumed, step))
        return found, LoadedBatch(*self._order.read(found), found.source_index)

    def skip_batches(self, position: DataPosition, step: int, global_batch_size: int, num_batches: int) -> DataPosition:
        """Return the position after skipping batches, each drawn as the batch of `step`; read nothing.

        Skipped batches count for carry, epochs and limits of epochs. A policy that learns does not learn from them: its
        shares stay those of `step`, and where it draws at random, sequences are allotted by its shares instead.
        """
        self._check_position(position)
        return self._sampler.skip(position, step, global_batch_size, num_batches)

    def prefetched(
        self,
        position: DataPosition,
        steps: range,
        global_batch_size: int,
        depth: int,
        *,
        rows: Rows = slice(None),
        feedback: Feedback | None = None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> "Prefetch[tuple[int, LoadedBatch, DataPosition]]":
        """Return an iterator of `(step, batch, position after it)`, read ahead by a thread; close it when done.

        At most `depth` batches are ready and not taken. The reader calls `while_waiting` now and then while it waits.
        """

        def produce() -> Iterator[tuple[int, LoadedBatch, DataPosition]]:
            here, ahead = position, steps
            num_alone = 1  # the first batch is made alone: the reader waits for it
            while ahead:
                now = ahead[: 1 if num_alone else self._steps_together(global_batch_size)]
                try:
                    made = self.batches(here, now, global_batch_size, rows=rows, feedback=feedback)
                except Exception as error:
                    if len(now) == 1:
                        raise
                    # Read one at a time, so that the error is raised at the step that it belongs to.
                    logger.warning("reading steps %d to %d one at a time after %r", now[0], now[-1], error)
                    num_alone = len(now)
                    continue
                for step, (batch, after) in zip(now, made, strict=True):
                    yield step, batch, after
                    here = after
                ahead = ahead[len(now) :]
                num_alone = max(num_alone - 1, 0)

        # Closing must release a thread that waits for losses which will not come.
        unblock = feedback.close if feedback is not None else lambda: None
        return Prefetch(produce(), depth, unblock=unblock, while_waiting=while_waiting)

    def exhausted(self, position: DataPosition) -> set[str]:
        """Return the names of the sources that have given all that the policy allows."""
        return {self.names[identity] for identity in self._sampler.exhausted(position)}

    def _steps_together(self, global_batch_size: int) -> int:
        # One at a time where a later step may wait for losses or unbuilt blocks that an earlier one does not need.
        if self.lag_steps or not self._order.is_whole:
            return 1
        return max(1, ROWS_READ_TOGETHER // global_batch_size)

    def _check_position(self, position: DataPosition) -> None:
        recorded, now = position.sequence_length, self._order.sequence_length
        if recorded != now and (recorded is not None or position.consumed):
            raise LoaderError(
                f"position.sequence_length: recorded: {recorded}; now: {now}. The position counts sequences of another "
                "length, so it would point at other text. Keep the sequence length, or restart the data with "
                'restore="weights_and_optimizer".'
            )


def _check_sources(
    caches: Mapping[str, TokenSource], identities: Mapping[str, str], mixture: MixtureSchedule, sequence_length: int
) -> None:
    """Raise LoaderError for sources that one loader cannot draw from; unbuilt caches are checked as they grow."""
    if missing := [name for name in mixture.sources if name not in caches]:
        raise LoaderError(
            f"mixture: no token cache for {missing}; the caches are {sorted(caches)}. Pass a cache for each source."
        )
    if set(identities) != set(caches):
        raise LoaderError(
            f"identities: for {sorted(identities)}; the caches are {sorted(caches)}. Pass one identity for each cache."
        )
    whole = {name: cache.block_ends for name, cache in caches.items() if cache.is_whole}
    blocks: dict[str, tuple[int, ...]] = {}
    for name, identity in sorted(identities.items()):
        if name in whole and blocks.setdefault(identity, whole[name]) != whole[name]:
            raise LoaderError(
                f"identities[{name!r}] is {identity[:12]}…, the identity of another source with another cache. Pass "
                "the digest of the step that made each cache."
            )
    for name in mixture.sources:
        if name in whole and whole[name][-1] < sequence_length:
            raise LoaderError(
                f"caches[{name!r}] holds {whole[name][-1]} tokens, less than one sequence of {sequence_length}. Leave "
                "it out of the mixture or join it with another source."
            )
    for field in ("tokenizer_digest", "vocab_size", "eos_token_id", "bos_token_id"):
        values = {name: getattr(caches[name].format, field) for name in sorted(caches)}
        if len(set(values.values())) > 1:
            found = "; ".join(f"{name}: {str(value)[:12]}" for name, value in values.items())
            raise LoaderError(
                f"caches: made by different tokenizers, {field} differs: {found}. A model reads one vocabulary; "
                "tokenize all sources with the same tokenizer step."
            )
