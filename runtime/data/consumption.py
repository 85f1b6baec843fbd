"""Consumption: what a run takes from each source, before anything trains or afterwards; plain numbers without JAX.

Before, exact where the loader is exact: shares are fractions of whole sequences, and a run of a million steps costs
as little to sum up as one of ten. Under a mixing policy that learns nobody knows the shares in advance; there the
figures are those of the mixture as it is written. Afterwards the log of draws knows: `tallied` sums that up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from runtime.data.mixing.fixed import Proportional, Static, Stratified
from runtime.data.mixing.policies import MixingPolicy
from runtime.data.mixture import MixtureSchedule, MixtureSegment


@dataclass(frozen=True, kw_only=True)
class Leg:
    """Steps `start_step` to `until_step` of a run, at one batch size under one schedule."""

    name: str
    start_step: int
    until_step: int
    global_batch_size: int
    mixture: MixtureSchedule
    mixing: MixingPolicy = field(default_factory=Static)

    def __post_init__(self) -> None:
        if not 0 <= self.start_step <= self.until_step or self.global_batch_size < 1:
            raise ValueError(
                f"Leg({self.name!r}): steps {self.start_step} to {self.until_step} of {self.global_batch_size} "
                "sequences; a leg runs forwards and draws at least one sequence a step."
            )


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
    sequence_length: int,
    max_epochs: float = MANY_EPOCHS,
    drawn_before: Mapping[str, int] | None = None,
) -> Consumption:
    """Tokens and epochs of each source by leg.

    Args:
        legs: In the order of the run; a leg that starts where the one before ends continues its count.
        num_tokens: Size of each source's training cache, by name.
        sequence_length: Tokens a sequence.
        max_epochs: Reading a source more often than this is a finding.
        drawn_before: Sequences that were drawn from each source before the first leg; none if left out.
    """
    return tallied(
        [(leg.name, _sequences(leg, num_tokens, sequence_length)) for leg in legs],
        num_tokens=num_tokens,
        sequence_length=sequence_length,
        max_epochs=max_epochs,
        drawn_before=drawn_before,
    )


def tallied(
    legs: Sequence[tuple[str, Mapping[str, Fraction | int]]],
    *,
    num_tokens: Mapping[str, int],
    sequence_length: int,
    max_epochs: float = MANY_EPOCHS,
    drawn_before: Mapping[str, int] | None = None,
) -> Consumption:
    """`consumption` of legs by name and sequences: of each source that a leg could draw from, what it took, or 0."""
    drawn = {source: Fraction(count) for source, count in (drawn_before or {}).items()}
    named: set[str] = set()
    passed: dict[str, str] = {}
    uses: list[SourceUse] = []
    for name, sequences in legs:
        for source in sorted(sequences):
            named.add(source)
            drawn[source] = drawn.get(source, Fraction(0)) + sequences[source]
            epochs = _epochs(drawn[source], num_tokens.get(source, 0), sequence_length)
            uses.append(SourceUse(name, source, round(sequences[source] * sequence_length), epochs))
            if epochs > max_epochs:
                passed.setdefault(source, name)
    findings: list[Finding] = []
    for source, sequences_drawn in sorted((source, drawn[source]) for source in named):
        if source not in num_tokens:
            findings.append(NoCache(source))
        elif num_tokens[source] < sequence_length:
            findings.append(TooSmall(source, num_tokens[source], sequence_length))
        elif sequences_drawn < Fraction(1, 2):
            findings.append(NeverDrawn(source, float(sequences_drawn)))
        elif source in passed:
            epochs = _epochs(sequences_drawn, num_tokens[source], sequence_length)
            findings.append(OverEpoch(source, epochs, max_epochs, passed[source]))
    return Consumption(tuple(uses), tuple(findings))


def _sequences(leg: Leg, num_tokens: Mapping[str, int], sequence_length: int) -> dict[str, Fraction]:
    """Sequences that a leg owes each source, exactly."""
    owed: dict[str, Fraction] = {}
    segments = leg.mixture.segments
    ends = [segment.start_step for segment in segments[1:]] + [leg.until_step]
    for segment, end in zip(segments, ends, strict=True):
        steps = min(end, leg.until_step) - max(segment.start_step, leg.start_step)
        if steps <= 0:
            continue
        weights = _weights(leg.mixing, segment, num_tokens, sequence_length)
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


def _epochs(sequences: Fraction, num_tokens: int, sequence_length: int) -> float:
    whole = num_tokens // sequence_length
    return float(sequences / whole) if whole else math.inf
