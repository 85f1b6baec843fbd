"""Mixing policy: a pure function from the losses of finished updates to the shares of the next batch.

Sources are named by their identities; shares are integers that sum to `WHOLE`. Policies compute with IEEE doubles (+,
-, *, /, square root) and with `exp` and `log`, so every host of a run gets the same shares. `policies.Static` is the
simplest policy and says what the members of each mean.
"""

import decimal
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Memory = dict[str, Any]
"""State of a policy; JSON data, stored in checkpoints as it is."""


class Sources(NamedTuple):
    """Sources that a step can draw from."""

    prior: Mapping[str, int]
    """Shares of the written mixture, of `WHOLE`."""
    limits: Mapping[str, int]
    """Sequences that a source may still give; no limit without an entry."""


class Seen(NamedTuple):
    """Sums over the rows of one source in one update."""

    num_sequences: int
    num_targets: int
    """Predicted positions."""
    loss_sum: float
    """Cross-entropy over those positions, nats."""
    log_normalizer_sum: float
    """Log-normalisers over those positions; NaN where an older run did not record them."""


class Turn(NamedTuple):
    """A finished training step, as a policy learns from it."""

    number: int
    """Counts from 1 since the policy began."""
    shares: Mapping[str, int]
    """The shares that its sequences were drawn by."""
    seen: Mapping[str, Seen]

    def mean_losses(self) -> Iterator[tuple[str, Seen, float]]:
        """Yield each drawn source with its sums and its mean loss; skip losses that are not finite."""
        for name, seen in self.seen.items():
            if seen.num_targets and math.isfinite(seen.loss_sum):
                yield name, seen, seen.loss_sum / seen.num_targets


def check_learning(policy: Any) -> None:
    """Raise ValueError for settings that no learning policy can follow."""
    owner = type(policy).__name__
    if policy.warmup_steps < 0:
        raise ValueError(f"{owner}.warmup_steps is {policy.warmup_steps}; use 0 to learn from the first update on.")
    if policy.lag_steps < 1:
        raise ValueError(
            f"{owner}.lag_steps is {policy.lag_steps}; the losses of a step are known after it: use 1 or more."
        )


def exp(value: float) -> float:
    """Return e ** value with the same bits on every machine; `math.exp` differs between C libraries."""
    return float(_decimals().exp(decimal.Decimal(value)))


@functools.cache
def log(value: float) -> float:
    """Return the natural logarithm with the same bits on every machine."""
    return float(_decimals().ln(decimal.Decimal(value)))


def _decimals() -> decimal.Context:
    # No traps: the exponential of a large loss is infinite.
    return decimal.Context(prec=30, traps=[])
