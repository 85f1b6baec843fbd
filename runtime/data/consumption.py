"""Consumption: tokens and epochs that a run takes from each source, planned or afterwards; plain numbers without JAX.

Planned figures are exact where the loader is exact: shares are fractions of whole sequences. Under a mixing policy that
learns they are those of the written mixture. Afterwards `tallied` sums up the log of draws.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, NamedTuple

from runtime.data.mixing.policies import MixingPolicy, Static
from runtime.data.mixture import MixtureSchedule


@dataclass(frozen=True, kw_only=True)
class PhaseSpan:
    """The steps of a phase, at one batch size and one sequence length under one schedule."""

    name: str
    start_step: int
    until_step: int
    global_batch_size: int
    sequence_length: int
    mixture: MixtureSchedule
    mixing: MixingPolicy = field(default_factory=Static)
    skip_batches: int = 0
    """Batches skipped at the start, by the mixture of the first step; they count as read."""

    def __post_init__(self) -> None:
        if not 0 <= self.start_step <= self.until_step or self.global_batch_size < 1:
            raise ValueError(
                f"PhaseSpan({self.name!r}): steps {self.start_step} to {self.until_step} of {self.global_batch_size} "
                "sequences; steps must not decrease, and a step takes at least one sequence."
            )


class PhaseDraws(NamedTuple):
    """Sequences that one phase takes from each source that it can draw from; may be 0."""

    phase: str
    sequences: Mapping[str, Fraction | int]
    sequence_length: int


@dataclass(frozen=True)
class SourceUse:
    """Use of one source by one phase."""

    phase: str
    source: str
    num_tokens: int
    """Rounded; the loader is never further from it than its carry."""
    epochs: float
    """Epochs of the source since the start of the run, at the end of the phase; infinite without a whole sequence."""


@dataclass(frozen=True)
class MixtureFinding:
    """A problem of a source of a mixture."""

    kind: Literal["no_cache", "too_small", "never_drawn", "over_epochs"]
    source: str
    problem: str
    phase: str | None = None
    """The phase that passes the limit of epochs."""
    epochs: float | None = None
    """Epochs in the whole run, of a source over the limit."""

    def __str__(self) -> str:
        return f"mixture: {self.source!r} {self.problem}"


MANY_EPOCHS = 4.0
"""Reading a text four times is nearly as good as new text, more is less (arXiv:2305.16264)."""


@dataclass(frozen=True)
class Consumption:
    """Use by phase and source, and its findings."""

    uses: tuple[SourceUse, ...]
    findings: tuple[MixtureFinding, ...]


def consumption(
    spans: Sequence[PhaseSpan],
    *,
    num_tokens: Mapping[str, int],
    max_epochs: float = MANY_EPOCHS,
    drawn_before: Mapping[str, int] | None = None,
) -> Consumption:
    """Return the planned tokens and epochs of each source by phase.

    Args:
        spans: In the order of the run; a phase that starts where the one before ends continues its count.
        num_tokens: Size of each source's training cache, by name.
        max_epochs: Reading a source more often than this is a finding.
        drawn_before: Sequences drawn from each source before the first phase, of its length; none if left out.
    """
    return tallied(
        [PhaseDraws(span.name, _sequences(span), span.sequence_length) for span in spans],
        num_tokens=num_tokens,
        max_epochs=max_epochs,
        drawn_before=drawn_before,
    )


def tallied(
    phases: Sequence[PhaseDraws],
    *,
    num_tokens: Mapping[str, int],
    max_epochs: float = MANY_EPOCHS,
    drawn_before: Mapping[str, int] | None = None,
) -> Consumption:
    """Return the consumption of the draws of each phase; arguments as in `consumption`."""
    before = {source: Fraction(count) for source, count in (drawn_before or {}).items()}
    epochs: dict[str, Fraction | float] = {}
    sequences: dict[str, Fraction] = {}
    too_small: dict[str, int] = {}
    passed: dict[str, str] = {}
    uses: list[SourceUse] = []
    for phase, drawn, sequence_length in phases:
        for source in sorted(drawn):
            size = num_tokens.get(source, 0)
            whole = size // sequence_length
            if source in num_tokens and not whole:
                too_small.setdefault(source, sequence_length)
            added = before.pop(source, Fraction(0)) + drawn[source]
            sequences[source] = sequences.get(source, Fraction(0)) + added
            epochs[source] = epochs.get(source, Fraction(0)) + (added / whole if whole else math.inf)
            uses.append(SourceUse(phase, source, round(drawn[source] * sequence_length), float(epochs[source])))
            if epochs[source] > max_epochs:
                passed.setdefault(source, phase)
    findings = []
    for source in sorted(sequences):
        if source not in num_tokens:
            findings.append(no_cache(source))
        elif source in too_small:
            problem = (
                f"holds {num_tokens[source]} tokens, less than one sequence of {too_small[source]}; join it with "
                "another source or leave it out."
            )
            findings.append(MixtureFinding("too_small", source, problem))
        elif sequences[source] < Fraction(1, 2):
            problem = (
                f"is never drawn: its share of the whole run is {float(sequences[source]):.3g} sequences; raise its "
                "weight or leave it out."
            )
            findings.append(MixtureFinding("never_drawn", source, problem))
        elif source in passed:
            problem = (
                f"is read {float(epochs[source]):.2f} times in all (limit {max_epochs:g}, passed in {passed[source]}); "
                "lower its weight, or raise the limit if the repetition is intended."
            )
            findings.append(MixtureFinding("over_epochs", source, problem, passed[source], float(epochs[source])))
    return Consumption(tuple(uses), tuple(findings))


def no_cache(source: str) -> MixtureFinding:
    """Return the finding about a source of the mixture without a token cache."""
    return MixtureFinding("no_cache", source, "has a weight but no token cache; add the source or leave it out.")


def _sequences(span: PhaseSpan) -> dict[str, Fraction]:
    """Return the exact number of sequences that a phase owes each source."""
    owed: dict[str, Fraction] = {}
    segments = span.mixture.segments
    ends = [segment.start_step for segment in segments[1:]] + [span.until_step]
    first = span.mixture.segment_at(span.start_step)
    for segment, end in zip(segments, ends, strict=True):
        steps = max(0, min(end, span.until_step) - max(segment.start_step, span.start_step))
        steps += span.skip_batches if segment is first else 0
        if not steps:
            continue
        weights = {source: Fraction(weight) for source, weight in segment.weights.items()}
        total = sum(weights.values())
        for source, weight in weights.items():
            owed[source] = owed.get(source, Fraction(0)) + weight / total * steps * span.global_batch_size
    return owed
