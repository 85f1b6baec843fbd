"""Draws of a phase: sequences from each source, counted by the log of every training step."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pyarrow.compute as pc

from runtime.data.mixture import MixtureSchedule
from runtime.report.contents import MixtureSpan
from runtime.report.readings import read_columns, sources_of


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """Log of draws, one row a training step and source, in order of steps from the start of the run."""

    sources: tuple[str, ...]
    step: np.ndarray
    """Finished training steps, the row's own included."""
    source: np.ndarray
    """Index into `sources`."""
    num_sequences: np.ndarray

    def between(self, first: int, last: int) -> dict[str, int]:
        """Return sequences by source in the training steps after `first` and up to `last`."""
        begin, end = np.searchsorted(self.step, [first, last], side="right")
        rows = slice(int(begin), int(end))
        # float64 counts exactly up to 2**53 sequences.
        taken = np.bincount(self.source[rows], weights=self.num_sequences[rows], minlength=len(self.sources))
        return {self.sources[index]: int(taken[index]) for index in np.unique(self.source[rows])}


def read_draws(path: str) -> Draws:
    """Draws of a `source_losses.parquet`.

    Raises:
        ReadingError: a column is missing.
    """
    table = read_columns(path, ("step", "source", "share", "num_sequences"))
    table = table.filter(pc.or_(pc.greater(table.column("share"), 0), pc.greater(table.column("num_sequences"), 0)))
    index, names = sources_of(table)
    return Draws(tuple(names), table.column("step").to_numpy(), index, table.column("num_sequences").to_numpy())


def drawn_spans(draws: Draws, mixture: MixtureSchedule, first: int, last: int) -> tuple[MixtureSpan, ...]:
    """Return shares of the sequences that were drawn after step `first` and up to `last`, by stretch of the mixture.

    Where they are those that the mixture says, to the whole sequences that an allotment rounds to, they are given
    as it says them; under a policy that chooses others, or draws at random, as they were counted.
    """
    segments = mixture.segments
    ends = [segment.start_step for segment in segments[1:]] + [last]
    made = []
    for segment, end in zip(segments, ends, strict=True):
        begin = max(segment.start_step, first)
        if begin >= min(end, last):
            continue
        counts = draws.between(begin, min(end, last))
        written = segment.shares()
        made.append(MixtureSpan(segment.start_step, written if _as_written(counts, written) else _shares(counts)))
    return tuple(made)


def _as_written(counts: Mapping[str, int], written: Mapping[str, float]) -> bool:
    """Within what `runtime.data.allocation` may be off at either end of a stretch."""
    total = sum(counts.values())
    names = set(counts) | set(written)
    return all(
        abs(counts.get(name, 0) - written.get(name, 0.0) * total) <= 1 + written.get(name, 0.0) * len(names)
        for name in names
    )


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}
