"""Loss drop: our own policy. A source is worth what its loss has lately fallen, never how high it is.

Reward of source i: how much its loss falls for a token of it, times its share p_i in the mixture as written. That is
the slope, in tokens spent on i, of the loss averaged by the written mixture (what one source teaches about another
left aside), so following it lowers that average fastest. The slope is taken between the medians of the older and
the newer half of the last `window_updates` updates that showed the source: one spike moves no median. A drop that its
own noise explains counts as none.

Rewards are clipped to their 5th and 95th percentile over the sources, standardised to z, and

    share_i proportional to p_i * exp(clip(temperature * z_i)),

where the clip keeps every share within a factor `max_ratio` of p_i. Sequences are allotted with carried remainders
and not drawn at random: the long-run counts are exact under shares that change all the time.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from runtime.data.mixing.numbers import exp, log
from runtime.data.mixing.policy import Memory, Sources, Turn
from runtime.data.mixing.refusals import check_learning, refuse_not_positive
from runtime.data.shares import WHOLE, apportioned

LEAST_UPDATES = 8
"""A source seen in fewer updates keeps its written share: two medians of four say little."""
# Standard error of a median of n values with median absolute deviation d: 1.2533 * 1.4826 * d / sqrt(n).
MEDIAN_ERROR = 1.2533 * 1.4826


@dataclasses.dataclass(frozen=True)
class LossDrop:
    """Shares by how fast each source is being learned, near the mixture that the recipe writes."""

    warmup_steps: int = 100
    """Updates by the mixture as it is written, in which the losses are watched."""
    window_updates: int = 64
    """Updates over which a drop is measured: fewer follow faster, more see through noise."""
    temperature: float = 0.5
    """How far one standard deviation of the rewards moves a share, as a logarithm."""
    max_ratio: float = 4.0
    """No share is ever more than so many times the written one, nor less than its so-manieth part."""
    max_epochs: dict[str, float] = dataclasses.field(default_factory=dict)
    """By name of the source in the mixture: it is never read more often, and its share then goes to the others."""
    lag_steps: int = 8
    """A smaller one learns sooner, but below 8 the device waits for batches."""
    kind: Literal["loss_drop"] = "loss_drop"

    sequences_per_draw: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_learning("LossDrop", self.warmup_steps, 1, self.lag_steps)
        if self.window_updates < LEAST_UPDATES:
            raise ValueError(f"LossDrop.window_updates is {self.window_updates}; a drop takes {LEAST_UPDATES} to see.")
        refuse_not_positive("LossDrop", "temperature", self.temperature, 'for the mixture as written take "static".')
        if not (math.isfinite(self.max_ratio) and self.max_ratio >= 1):
            raise ValueError(f"LossDrop.max_ratio is {self.max_ratio}; it is a factor, so at least 1.")
        for source, epochs in self.max_epochs.items():
            refuse_not_positive(
                "LossDrop", f"max_epochs[{source!r}]", epochs, "leave the source out of the mixture instead."
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
        limits = sources.limits()
        prior = {name: share for name, share in sources.prior.items() if limits.get(name, 1)}
        if not prior:
            raise ValueError(
                f"step {step}: every source of the mixture has been read as often as LossDrop.max_epochs allows; "
                "raise a limit, add a source, or stop the phase earlier."
            )
        if turn <= self.warmup_steps:
            return apportioned(prior)
        rewards = {
            name: prior[name] / WHOLE * drop_per_token(memory["seen"][name])
            for name in sorted(prior)
            if len(memory["seen"].get(name, ())) >= LEAST_UPDATES
        }
        scores = standardized(rewards)
        limit = log_of(self.max_ratio) / 2
        factors = {
            name: exp(min(max(self.temperature * scores.get(name, 0.0), -limit), limit)) for name in sorted(prior)
        }
        return apportioned({name: prior[name] * factors[name] for name in sorted(prior)})


def drop_per_token(window: Sequence[Sequence[float]]) -> float:
    """How much the loss falls a token, of (tokens so far, loss) pairs; 0 where it rises or only its noise is seen."""
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
    """Rewards clipped to their 5th and 95th percentile, less their mean, over their standard deviation."""
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


def log_of(ratio: float) -> float:
    """Natural logarithm of a factor, from those of whole numbers, so the same on every machine."""
    above, below = ratio.as_integer_ratio()
    return log(above) - log(below)


def _percentile(ordered: Sequence[float], fraction: float) -> float:
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
