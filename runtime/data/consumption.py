"""Consumption: what a run takes from each source, before anything trains or afterwards; plain numbers without JAX.

Before, exact where the loader is exact: shares are fractions of whole sequences, and a run of a million steps costs
as little to sum up as one of ten. Under a mixing policy that learns nobody knows the shares in advance; there the
figures are those of the mixture as it is written. Afterwards the log of draws knows: `tallied` sums that up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from runtime.data.mixing.fixed import Proportional, Static, Stratified
from runtime.data.mixing.policies import MixingPolicy
from runtime.data.mixture import MixtureSchedule, MixtureSegment


@dataclass(frozen=True, kw_only=True)
class Leg:
    """Steps `start_step` to `until_step` of a run, at one batch size and one length under one schedule."""

    name: str
    start_step: int
    until_step: int
    global_batch_size: int
    sequence_length: int
    mixture: MixtureSchedule
    mixing: MixingPolicy = field(default_factory=Static)
    skip_batches: int = 0
    """Left out of its data as it begins, by the mixture of its first step: read by nobody, and gone all the same."""

    def __post_init__(self) -> None:
        if not 0 <= self.start_step <= self.until_step or self.global_batch_size < 1:
            raise ValueError(
                f"Leg({self.name!r}): steps {self.start_step} to {self.until_step} of {self.global_batch_size} "
                "sequences; a leg runs forwards and draws at least one sequence a step."
            )


class Drawn(NamedTuple):
    """Sequences that one leg takes from each source that it can draw from, 0 of some."""

    leg: str
    sequences: Mapping[str, Fraction | int]
    sequence_length: int


@dataclass(frozen=True)
class SourceUse:
    """What one leg takes from one source."""

    leg: str
    source: str
    num_tokens: int
    """Rounded to the nearest; the loader is never further from it than its carry."""
    epochs: float
    """Of the source, by the end of the leg, since the start of the run; infinite without a whole sequence."""


@dataclass(frozen=True)
class NoCache:
    """A source that the mixture draws from and nothing provides."""

    source: str

    def __str__(self) -> str:
        return f"mixture: {self.source!r} has a weight but no token cache; add the source or leave it out."


@dataclass(frozen=True)
class TooSmall:
    """A source that does not hold a single sequence."""

    source: str
    num_tokens: int
    sequence_length: int

    def __str__(self) -> str:
        return (
            f"mixture: {self.source!r} holds {self.num_tokens} tokens, less than one sequence of "
            f"{self.sequence_length}; join it with another source or leave it out."
        )


@dataclass(frozen=True)
class NeverDrawn:
    """A source whose whole share of the run is less than half a sequence."""

    source: str
    num_sequences: float

    def __str__(self) -> str:
        owed = f"is owed {self.num_sequences:.3g} sequences in the whole run, so it is never drawn"
        said = owed if self.num_sequences else "was never drawn, in the whole run"
        return f"mixture: {self.source!r} {said}; raise its weight or leave it out."


@dataclass(frozen=True)
class OverEpoch:
    """A source that is read through more often than the recipe allows."""

    source: str
    epochs: float
    max_epochs: float
    leg: str
    """The leg in which the limit is passed."""

    def __str__(self) -> str:
        return (
            f"mixture: {self.source!r} is read {self.epochs:.2f} times in all (limit {self.max_epochs:g}, passed in "
            f"{self.leg}); lower its weight, or raise the limit if the repetition is meant."
        )


MANY_EPOCHS = 4.0
"""Reading a text four times is nearly as good as new text, more is less (arXiv:2305.16264)."""

Finding = NoCache | TooSmall | NeverDrawn | OverEpoch


@dataclass(frozen=True)
class Consumption:
    """Use by leg and source, and what is wrong with it."""

    uses: tuple[SourceUse, ...]
    findings: tuple[Finding, ...]


def consumption(
    legs: Sequence[Leg],
    *,
    num_tokens: Mapping[str, int],
    max_epochs: float = MANY_EPOCHS,
    drawn_before: Mapping[str, int] | None = None,
) -> Consumption:
    """Tokens and epochs of each source by leg.

    Args:
        legs: In the order of the run; a leg that starts where the one before ends continues its count.
        num_tokens: Size of each source's training cache, by name.
        max_epochs: Reading a source more often than this is a finding.
        drawn_before: Sequences of the first leg's length that were drawn from each source before it; none if left out.
    """
    return tallied(
        [Drawn(leg.name, _sequences(leg, num_tokens), leg.sequence_length) for leg in legs],
        num_tokens=num_tokens,
        max_epochs=max_epochs,
        drawn_before=drawn_before,
    )


def tallied(
    legs: Sequence[Drawn],
    *,
    num_tokens: Mapping[str, int],
    max_epochs: float = MANY_EPOCHS,
    drawn_before: Mapping[str, int] | None = None,
) -> Consumption:
    """`consumption` of what each leg draws: of each source that it could draw from, what it takes, or 0."""
    before = {source: Fraction(count) for source, count in (drawn_before or {}).items()}
    epochs: dict[str, Fraction | float] = {}
    sequences: dict[str, Fraction] = {}
    too_small: dict[str, TooSmall] = {}
    passed: dict[str, str] = {}
    uses: list[SourceUse] = []
    for leg, drawn, sequence_length in legs:
        for source in sorted(drawn):
            size = num_tokens.get(source, 0)
            whole = size // sequence_length
            if source in num_tokens and not whole:
                too_small.setdefault(source, TooSmall(source, size, sequence_length))
            added = before.pop(source, Fraction(0)) + drawn[source]
            sequences[source] = sequences.get(source, Fraction(0)) + added
            epochs[source] = epochs.get(source, Fraction(0)) + (added / whole if whole else math.inf)
            uses.append(SourceUse(leg, source, round(drawn[source] * sequence_length), float(epochs[source])))
            if epochs[source] > max_epochs:
                passed.setdefault(source, leg)
    findings: list[Finding] = []
    for source in sorted(sequences):
        if source not in num_tokens:
            findings.append(NoCache(source))
        elif source in too_small:
            findings.append(too_small[source])
        elif sequences[source] < Fraction(1, 2):
            findings.append(NeverDrawn(source, float(sequences[source])))
        elif source in passed:
            findings.append(OverEpoch(source, float(epochs[source]), max_epochs, passed[source]))
    return Consumption(tuple(uses), tuple(findings))


def _sequences(leg: Leg, num_tokens: Mapping[str, int]) -> dict[str, Fraction]:
    """Sequences that a leg owes each source, exactly."""
    owed: dict[str, Fraction] = {}
    segments = leg.mixture.segments
    ends = [segment.start_step for segment in segments[1:]] + [leg.until_step]
    first = leg.mixture.segment_at(leg.start_step)
    for segment, end in zip(segments, ends, strict=True):
        steps = max(0, min(end, leg.until_step) - max(segment.start_step, leg.start_step))
        steps += leg.skip_batches if segment is first else 0
        if not steps:
            continue
        weights = _weights(leg.mixing, segment, num_tokens, leg.sequence_length)
        total = sum(weights.values())
        for source, weight in weights.items():
            share = weight / total
            owed[source] = owed.get(source, Fraction(0)) + share * steps * leg.global_batch_size
    return owed


def _weights(
    mixing: MixingPolicy, segment: MixtureSegment, num_tokens: Mapping[str, int], sequence_length: int
) -> dict[str, Fraction]:
    """By source; sources whose sizes are not known share as written even where sizes should decide."""
    match mixing:
        case Stratified():
            return dict.fromkeys(segment.weights, Fraction(1))
        case Proportional() if all(num_tokens.get(name, 0) >= sequence_length for name in segment.weights):
            return {name: Fraction(num_tokens[name] // sequence_length) for name in segment.weights}
    return {name: Fraction(weight) for name, weight in segment.weights.items()}
