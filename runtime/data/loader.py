"""Loader: the batch of any step, as a pure function of the data position.

A mixing policy that learns also depends on the losses of finished updates, up to a fixed number of steps back
(runtime/data/mixing), so the loader reads ahead all the same. order.py says which row each draw is.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import Int64

from runtime.data.allocation import shuffled_slots
from runtime.data.batch import DataPosition, LoadedBatch, RowLocations, Rows
from runtime.data.concatenated import segments
from runtime.data.mixing.feedback import BySource, Feedback
from runtime.data.mixing.policy import Policy
from runtime.data.mixing.static import Static
from runtime.data.mixture import MixtureSchedule
from runtime.data.order import DataOrder
from runtime.data.packing import Packing
from runtime.data.prefetch import Prefetch
from runtime.data.sampler import Replay, SourceSampler
from runtime.data.slots import Bookmark
from runtime.data.sources import check_sources, max_epochs_by_identity
from runtime.data.token_source import LoaderError, TokenSource

ROWS_READ_TOGETHER = 64
"""Rows that are drawn and read at once when reading ahead: a few rows cost hardly less than many."""

logger = logging.getLogger(__name__)

__all__ = ["DataPosition", "LoadedBatch", "Loader", "LoaderError", "RowLocations", "Rows", "segments"]


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
        packing: Packing = "concatenate",
        policy: Policy = Static(),  # noqa: B008 -- frozen
        replay: Replay | None = None,
    ) -> None:
        """Check the sources. Two names of one identity are one source, whose weights add up.

        Args:
            caches: Token cache of each source, finished or growing, by its name in the mixture; more are allowed.
            identities: Full digest of the step that made each cache; keys of the order.
            mixture: Weights by name and step.
            sequence_length: Tokens of a row.
            seed: Key of the order.
            packing: What a row is made of.
            policy: Makes shares of the weights, and of the losses seen so far.
            replay: Counts from the log of an earlier run, drawn instead of the mixture.
        """
        check_sources(caches, identities, mixture, sequence_length)
        self._order = DataOrder(caches, identities, seed=seed, sequence_length=sequence_length, packing=packing)
        self.sources = self._order.names
        """Names by `source_index`."""
        self.index_of = self._order.index_of
        """`source_index` of each identity."""
        self.names = {identity: self.sources[index] for identity, index in self.index_of.items()}
        """Name of each identity; the first where a source has two."""
        limits = max_epochs_by_identity(policy, identities, mixture)
        self._sampler = SourceSampler(self._order, identities, mixture, policy=policy, max_epochs=limits, replay=replay)
        self.lag_steps = self._sampler.lag_steps
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
        steps = range(step, step + 1)
        return self.batches(position, steps, global_batch_size, rows=rows, feedback=feedback)[0]

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
        counts, positions, here = [], [], position
        for step in steps:
            of_batch, here = self._sampler.draw(here, step, global_batch_size, feedback)
            counts.append(of_batch)
            positions.append(here)
        slots = shuffled_slots(counts, seed=self._order.seed, first_step=steps.start)
        source_index = np.array([self.index_of[identity] for identity in slots], np.int32)
        draws = self._draws_of(source_index, position, here)
        located = self._order.locate(source_index, draws, position.bookmarks)
        bookmarks = dict(position.bookmarks)
        for number, of_batch in enumerate(counts):
            bookmarks |= self._bookmarks(of_batch, positions[number].consumed)
            positions[number] = dataclasses.replace(positions[number], bookmarks=dict(bookmarks))
        return located, positions

    def skip_batches(
        self,
        position: DataPosition,
        step: int,
        global_batch_size: int,
        num_batches: int,
    ) -> DataPosition:
        """Return the position after skipping batches, each drawn as the batch of `step`; read nothing.

        Skipped batches count for carry, epochs and limits of epochs. A policy that learns does not learn from them: its
        shares stay those of `step`, and where it draws at random, sequences are allotted by its shares instead.

        Raises:
            LoaderError: the loader replays the log of an earlier run.
        """
        self._check_position(position)
        after = self._sampler.skip(position, step, global_batch_size, num_batches)
        skipped = {identity: count - position.consumed.get(identity, 0) for identity, count in after.consumed.items()}
        bookmarks = self._bookmarks(skipped, after.consumed, known=position.bookmarks)
        return dataclasses.replace(after, bookmarks=position.bookmarks | bookmarks)

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
        # Alone where a later step may wait for losses or for unbuilt blocks that an earlier one does not need.
        if self.lag_steps or not self._order.is_whole:
            return 1
        return max(1, ROWS_READ_TOGETHER // global_batch_size)

    def _draws_of(
        self, source_index: Int64[np.ndarray, "n"], before: DataPosition, after: DataPosition
    ) -> Int64[np.ndarray, "n"]:
        """Return the number of each row's draw: the k-th row of a source takes the source's k-th next sequence."""
        draws = np.empty(len(source_index), np.int64)
        for identity, index in self.index_of.items():
            first, last = (position.consumed.get(identity, 0) for position in (before, after))
            if last > first:
                draws[source_index == index] = np.arange(first, last)
        return draws

    def _bookmarks(
        self,
        counts: Mapping[str, int],
        consumed: Mapping[str, int],
        *,
        known: Mapping[str, Bookmark] = MappingProxyType({}),
    ) -> dict[str, Bookmark]:
        found = {}
        for identity, count in counts.items():
            if count and (bookmark := self._order.bookmark(identity, consumed[identity] - 1, known.get(identity))):
                found[identity] = bookmark
        return found

    def _check_position(self, position: DataPosition) -> None:
        for name, now, what in (
            ("sequence_length", self._order.sequence_length, "sequences of another length"),
            ("packing", self._order.packing, "rows of another packing"),
        ):
            recorded = getattr(position, name)
            if recorded != now and (recorded is not None or position.consumed):
                raise LoaderError(
                    f"position.{name}: recorded: {recorded}; now: {now}. The position counts {what}, so it would point "
                    f"at other text. Keep the {name.replace('_', ' ')}, or restart the data with "
                    'restore="weights_and_optimizer".'
                )
