"""Loader: the batch of any step, as a pure function of where the data stand.

Under a mixing policy that learns, of the losses of finished updates too, up to a fixed number of steps back
(runtime/data/mixing); so it reads ahead all the same.

Which row of its source a source gives at its c-th draw is said by order.py. Nothing depends on names, on the order of
sources, on which other sources there are, on how much of a cache is built yet, or on who asked before.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.activity import Activity
from runtime.data.allocation import shuffled_slots
from runtime.data.batch import Batch, BatchPlan, DataPosition, Rows
from runtime.data.draws import Draws
from runtime.data.mixing.feedback import BySource, Feedback
from runtime.data.mixing.fixed import Static
from runtime.data.mixing.policy import Policy
from runtime.data.mixture import MixtureSchedule
from runtime.data.order import Slots, SourceOrder, segments
from runtime.data.packing import EmptySourceError, Packing
from runtime.data.permutation import permuted
from runtime.data.prefetch import Prefetch
from runtime.data.sources import LoaderError, check_sources, max_epochs_by_identity
from runtime.data.token_source import TokenSource
from runtime.data.whole_documents import Bookmark

ROWS_READ_TOGETHER = 64
"""What is drawn and read at once when reading ahead. A large batch is more; of small ones, several are together: what a
few rows cost is hardly less than what many do."""

logger = logging.getLogger(__name__)

__all__ = ["Batch", "BatchPlan", "DataPosition", "Loader", "LoaderError", "Rows", "segments"]


class Loader:
    """Draws batches from token caches by a mixture. Thread-safe: it holds no position."""

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
        replay: Callable[[int], Mapping[str, int]] | None = None,
    ) -> None:
        """Sources are named as in the mixture; two names of one identity are one source, whose weights add up.

        Args:
            caches: Token cache of each source, finished or growing; those that the mixture never names are allowed.
            identities: Full digest of the step that made each cache: what its order is keyed by.
            mixture: Weights by name and step.
            sequence_length: Tokens a row.
            seed: Another seed, another order.
            packing: What a row is made of.
            policy: What makes shares of the weights, and of the losses seen so far.
            replay: Sequences by identity that the update after so many finished ones takes, from the log of a run:
                drawn instead of the mixture, so that any mesh sees the data that the run saw.
        """
        self.sources = tuple(sorted(caches))
        """Names by `source_index`."""
        check_sources(caches, identities, mixture, sequence_length)
        self._identities = [identities[name] for name in self.sources]
        self.index_of: dict[str, int] = {}
        """`source_index` of each identity."""
        for index, identity in enumerate(self._identities):
            self.index_of.setdefault(identity, index)
        self._orders = [
            SourceOrder(
                name, caches[name], identities[name], seed=seed, sequence_length=sequence_length, packing=packing
            )
            for name in self.sources
        ]
        self.names = {self._identities[index]: self.sources[index] for index in self.index_of.values()}
        """Name of each identity; of two names of one source, the first."""
        limits = max_epochs_by_identity(policy, identities, mixture)
        self._draws = Draws(
            {identity: self._orders[index] for identity, index in self.index_of.items()},
            identities,
            mixture,
            sequence_length,
            seed,
            packing=packing,
            policy=policy,
            max_epochs={} if replay else limits,
            replay=replay,
        )
        self.policy = policy
        self.lag_steps = self._draws.lag_steps
        """A batch depends on the losses up to so many steps before it; 0: on none."""
        self._sequence_length = sequence_length
        self._packing: Packing = packing
        self._seed = seed

    def batch(
        self,
        position: DataPosition,
        step: int,
        global_batch_size: int,
        *,
        rows: Rows = slice(None),
        feedback: Callable[[int], BySource] | None = None,
        activity: Activity | None = None,
    ) -> tuple[Batch, DataPosition]:
        """The batch of the update that follows `step` finished ones, and the position after it.

        `rows` picks what this host reads, and nothing else is; the position is that of the whole batch whatever it
        picks. A policy that learns asks `feedback` for the losses of earlier updates, each once and in order.
        `activity` is told what is being done.
        """
        steps = range(step, step + 1)
        return self.batches(position, steps, global_batch_size, rows=rows, feedback=feedback, activity=activity)[0]

    def batches(
        self,
        position: DataPosition,
        steps: range,
        global_batch_size: int,
        *,
        rows: Rows = slice(None),
        feedback: Callable[[int], BySource] | None = None,
        activity: Activity | None = None,
    ) -> list[tuple[Batch, DataPosition]]:
        """What `batch` would give for one of `steps` after the other, drawn and read together."""
        activity = activity or Activity()
        plan, positions = self._plan(position, steps, global_batch_size, feedback, activity)
        by_step = np.arange(len(plan.starts)).reshape(len(steps), global_batch_size)
        tokens, segment_ids = self._read(plan, by_step[:, rows].reshape(-1), activity)
        parts = (np.split(part, len(steps)) for part in (tokens, segment_ids, plan.source_index))
        return [(Batch(*of_step), after) for *of_step, after in zip(*parts, positions, strict=True)]

    def plan(
        self,
        position: DataPosition,
        step: int,
        global_batch_size: int,
        *,
        feedback: Callable[[int], BySource] | None = None,
        activity: Activity | None = None,
    ) -> tuple[BatchPlan, DataPosition]:
        """Which window each row is, without reading any."""
        plan, (after,) = self._plan(
            position, range(step, step + 1), global_batch_size, feedback, activity or Activity()
        )
        return plan, after

    def left_out(
        self,
        position: DataPosition,
        step: int,
        global_batch_size: int,
        num_batches: int,
        *,
        activity: Activity | None = None,
    ) -> DataPosition:
        """The position after so many batches that nobody takes, each drawn as that of `step`, without reading any.

        Carry, epochs and limits of epochs are those of batches that were taken. A policy that learns stands still: the
        shares are those that it has at `step` by what it had learned before, and where it draws by chance, sequences
        are allotted by them instead.

        Raises:
            LoaderError: this replays the log of another run, which says what is drawn and nothing of what is not.
        """
        self._refuse_other_rows(position)
        activity = activity or Activity()
        after = self._draws.left_out(position, step, global_batch_size, num_batches, activity)
        gone = {identity: count - position.consumed.get(identity, 0) for identity, count in after.consumed.items()}
        bookmarks = self._bookmarks(gone, after.consumed, activity, known=position.bookmarks)
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
    ) -> "Prefetch[tuple[int, Batch, DataPosition]]":
        """`(step, batch, position after it)` for each of `steps`, read ahead by a thread; close it when done.

        At most `depth` batches wait to be taken. Use it as a context manager, or call `close`. `while_waiting` is
        called in the reader's thread now and then while it waits.
        """
        activity = Activity()

        def produce() -> Iterator[tuple[int, Batch, DataPosition]]:
            here, ahead = position, steps
            num_alone = 1  # nobody waits for the others before the first is there
            while ahead:
                now = ahead[: 1 if num_alone else self._most_steps_together(global_batch_size)]
                try:
                    made = self.batches(here, now, global_batch_size, rows=rows, feedback=feedback, activity=activity)
                except Exception as error:
                    if len(now) == 1:
                        raise
                    # What goes wrong with one of them is raised when that one's turn comes.
                    logger.warning("steps %d to %d are read one at a time: %r", now[0], now[-1], error)
                    num_alone = len(now)
                    continue
                for step, (batch, after) in zip(now, made, strict=True):
                    yield step, batch, after
                    here = after
                ahead = ahead[len(now) :]
                num_alone = max(num_alone - 1, 0)

        # Who waits for losses that nobody will publish must be let go before the thread is waited for.
        unblock = feedback.close if feedback is not None else lambda: None
        return Prefetch(produce(), depth, unblock=unblock, activity=activity, while_waiting=while_waiting)

    def consumed_by_name(self, position: DataPosition) -> dict[str, int]:
        """Sequences drawn so far by name, for logs and plots; zero for a source that was never drawn."""
        return {
            name: position.consumed.get(identity, 0)
            for name, identity in zip(self.sources, self._identities, strict=True)
        }

    def exhausted(self, position: DataPosition) -> set[str]:
        """Names of the sources that have given all that the policy lets them."""
        return {self.names[identity] for identity in self._draws.exhausted(position)}

    def _most_steps_together(self, global_batch_size: int) -> int:
        # Not where a later step waits for what an earlier one need not wait for: losses, or the end of a cache.
        if self.lag_steps or not all(order.source.is_whole for order in self._orders):
            return 1
        return max(1, ROWS_READ_TOGETHER // global_batch_size)

    def _plan(
        self,
        position: DataPosition,
        steps: range,
        global_batch_size: int,
        feedback: Callable[[int], BySource] | None,
        activity: Activity,
    ) -> tuple[BatchPlan, list[DataPosition]]:
        """The rows of all `steps`, one batch after the other, and the position after each."""
        self._refuse_other_rows(position)
        allotted, positions, here = [], [], position
        for step in steps:
            counts, here = self._draws.of_batch(here, step, global_batch_size, feedback, activity)
            allotted.append(counts)
            positions.append(here)
        slots = shuffled_slots(allotted, seed=self._seed, first_step=steps.start)
        source_index = np.array([self.index_of[identity] for identity in slots], np.int32)
        # The k-th row of a source takes the source's k-th next sequence.
        drawn = np.zeros(len(slots), np.int64)
        for identity in set(slots):
            first, last = (where.consumed.get(identity, 0) for where in (position, here))
            drawn[source_index == self.index_of[identity]] = np.arange(first, last)
        located, places, starts = self._located(source_index, drawn, position.bookmarks, activity)
        bookmarks = dict(position.bookmarks)
        for number, counts in enumerate(allotted):
            bookmarks |= self._bookmarks(counts, positions[number].consumed, activity)
            positions[number] = dataclasses.replace(positions[number], bookmarks=dict(bookmarks))
        return BatchPlan(source_index, located.blocks, places, starts, located.data_epochs), positions

    def _bookmarks(
        self,
        counts: Mapping[str, int],
        consumed: Mapping[str, int],
        activity: Activity,
        *,
        known: Mapping[str, Bookmark] = MappingProxyType({}),
    ) -> dict[str, Bookmark]:
        found = {}
        for identity, count in counts.items():
            order = self._orders[self.index_of[identity]]
            if count and (bookmark := order.bookmark(consumed[identity] - 1, activity, known.get(identity))):
                found[identity] = bookmark
        return found

    def _refuse_other_rows(self, position: DataPosition) -> None:
        """A position counts rows; of which length and packing it must know as soon as it has counted one."""
        for name, now, what in (
            ("sequence_length", self._sequence_length, "sequences of another length"),
            ("packing", self._packing, "rows that were packed otherwise"),
        ):
            recorded = getattr(position, name)
            if recorded != now and (recorded is not None or position.consumed):
                raise LoaderError(
                    f"position.{name}: recorded: {recorded}; now: {now}. The position counts {what}, or does not say "
                    f"which, so it would point at other text. Keep the {name.replace('_', ' ')}, or start the data "
                    'afresh with restore="weights_and_optimizer".'
                )

    def _located(
        self,
        source_index: Int32[np.ndarray, "batch"],
        drawn: Int64[np.ndarray, "batch"],
        bookmarks: Mapping[str, Bookmark],
        activity: Activity,
    ) -> tuple[Slots, Int64[np.ndarray, "batch"], Int64[np.ndarray, "batch"]]:
        """Slots, places in their blocks and positions of the `drawn`-th sequences of their sources."""
        slots = Slots(*(np.empty(len(drawn), dtype) for dtype in (np.int64, np.int64, np.int64, np.uint64, np.int64)))
        where = {index: source_index == index for index in np.unique(source_index).tolist()}
        for index, rows in where.items():
            try:
                found = self._orders[index].slots(drawn[rows], activity, bookmarks.get(self._identities[index]))
            except EmptySourceError as error:
                raise LoaderError(str(error)) from error
            for whole, part in zip(slots, found, strict=True):
                whole[rows] = part
        places = permuted(slots.indices, sizes=slots.sizes, keys=slots.keys)
        starts = np.empty_like(drawn)
        for index, rows in where.items():
            starts[rows] = self._orders[index].starts(Slots(*(part[rows] for part in slots)), places[rows], activity)
        return slots, places, starts

    def _read(
        self, plan: BatchPlan, rows: Int64[np.ndarray, "rows"], activity: Activity
    ) -> tuple[Int32[np.ndarray, "rows sequence"], Int32[np.ndarray, "rows sequence"]]:
        """Tokens and segment ids."""
        source_index, blocks, places, starts = (
            part[rows] for part in (plan.source_index, plan.blocks, plan.places, plan.starts)
        )
        tokens = np.empty((len(starts), self._sequence_length), np.int32)
        segment_ids = np.empty_like(tokens)
        for index in np.unique(source_index).tolist():
            where = source_index == index
            tokens[where], segment_ids[where] = self._orders[index].read(
                blocks[where], places[where], starts[where], activity
            )
        return tokens, segment_ids
