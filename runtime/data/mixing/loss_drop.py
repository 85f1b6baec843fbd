"""Loss drop, this project's own policy: a source is worth how fast its loss has lately fallen, never how high it is.

The reward of source i is the fall of its loss per token of it, times its share p_i in the written mixture. It is the
slope, in tokens spent on i, of the loss averaged by the written mixture (ignoring what sources teach about each other),
so following it lowers that average fastest. The slope is taken between the medians of the older and the newer half of
the last `window_updates` updates that showed the source; one spike moves no median. A drop within its own noise is 0.

Rewards are clipped to their 5th and 95th percentile over the sources, standardised to z, and

    share_i proportional to p_i * exp(clip(temperature * z_i)),

where the clip keeps every share within a factor `max_ratio` of p_i. Sequences are allotted with carried remainders, so
long-run counts are exact while shares change.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from runtime.data.mixing.policy import Memory, Sources, Turn, check_learning, exp, log
from runtime.data.mixture import WHOLE, apportioned

LEAST_UPDATES = 8
"""A source seen in fewer updates keeps its written share: two medians of four say little."""
# Standard error of a median of n values with median absolute deviation d: 1.2533 * 1.4826 * d / sqrt(n).
MEDIAN_ERROR = 1.2533 * 1.4826


@dataclasses.dataclass(frozen=True)
class LossDrop:
    """Shares by how fast each source is being learned, near the written mixture."""

    warmup_steps: int = 100
    """Updates by the written mixture, in which losses are only recorded."""
    window_updates: int = 64
    """Updates over which a drop is measured: fewer follow faster, more see through noise."""
    temperature: float = 0.5
    """How far one standard deviation of the rewards moves a share, as a logarithm."""
    max_ratio: float = 4.0
    """No share is above this many times the written one, or below the written one divided by it."""
    max_epochs: dict[str, float] = dataclasses.field(default_factory=dict)
    """How often a source, by its name in the mixture, may be read through; its share then goes to the others."""
    lag_steps: int = 8
    """A smaller lag learns sooner, but below 8 the device waits for batches."""
    kind: Literal["loss_drop"] = "loss_drop"

    sequences_per_draw: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_learning(self)
        if self.window_updates < LEAST_UPDATES:
            raise ValueError(f"LossDrop.window_updates is {self.window_updates}; use at least {LEAST_UPDATES}.")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(
                f"LossDrop.temperature is {self.temperature}; use a finite number above 0, or the policy "
                '{"kind": "static"} for the mixture as written.'
            )
        if not (math.isfinite(self.max_ratio) and self.max_ratio >= 1):
            raise ValueError(f"LossDrop.max_ratio is {self.max_ratio}; it is a factor: use a number of at least 1.")
        for source, epochs in self.max_epochs.items():
            if not (math.isfinite(epochs) and epochs > 0):
                raise ValueError(
                    f"LossDrop.max_epochs[{source!r}] is {epochs}; use a finite number above 0, or leave the source "
                    "out of the mixture."
                )

    def begin(self) -> Memory:
        return {"seen": {}, "tokens": {}}

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        windows, tokens = dict(memory["seen"]), dict(memory["tokens"])
        for name, seen, mean_loss in turn.mean_losses():
            tokens[name] = tokens.get(name, 0) + seen.num_targets
            window = [*windows.get(name, []), [tokens[name], mean_loss]]
            windows[name] = window[-self.window_updates :]
        return {"seen": windows, "tokens": tokens}

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        prior = {name: share for name, share in sorted(sources.prior.items()) if sources.limits.get(name, 1)}
        if not prior:
            raise ValueError(
                f"step {step}: every source of the mixture has been read as often as LossDrop.max_epochs allows; "
                "raise a limit, add a source, or stop the phase earlier."
            )
        if turn <= self.warmup_steps:
            return apportioned(prior)
        rewards = {
            name: share / WHOLE * drop_per_token(memory["seen"][name])
            for name, share in prior.items()
            if len(memory["seen"].get(name, ())) >= LEAST_UPDATES
        }
        scores, limit = standardized(rewards), log(self.max_ratio) / 2
        exponents = {name: self.temperature * scores.get(name, 0.0) for name in prior}
        return apportioned({name: prior[name] * exp(min(max(x, -limit), limit)) for name, x in exponents.items()})


def drop_per_token(window: Sequence[Sequence[float]]) -> float:
    """Return how much the loss falls per token, from (tokens so far, loss) pairs; 0 for a rise or mere noise."""
    half = len(window) // 2
    older, newer = window[:half], window[len(window) - half :]
    before, after = (statistics.median(loss for _, loss in part) for part in (older, newer))
    drop = before - after
    distances = [abs(loss - middle) for part, middle in ((older, before), (newer, after)) for _, loss in part]
    error = MEDIAN_ERROR * statistics.median(distances)
    variance = 2 * error * error / half
    if drop <= 0 or drop * drop <= variance:
        return 0.0
    tokens = statistics.median(at for at, _ in newer) - statistics.median(at for at, _ in older)
    return drop * (1 - variance / (drop * drop)) / tokens


def standardized(rewards: Mapping[str, float]) -> dict[str, float]:
    """Return rewards clipped to their 5th and 95th percentile, minus their mean, over their standard deviation."""
    if len(rewards) < 2:
        return {}
    ordered = sorted(rewards.values())
    low, high = _percentile(ordered, 0.05), _percentile(ordered, 0.95)
    clipped = {name: min(max(reward, low), high) for name, reward in rewards.items()}
    mean = math.fsum(clipped.values()) / len(clipped)
    deviation = math.sqrt(math.fsum((reward - mean) * (reward - mean) for reward in clipped.values()) / len(clipped))
    if deviation == 0:
        return dict.fromkeys(clipped, 0.0)
    return {name: (reward - mean) / deviation for name, reward in clipped.items()}


def _percentile(ordered: Sequence[float], fraction: float) -> float:
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
