"""Exp3 (Auer et al. 2002) with a rate that falls: cumulative, importance-weighted rewards, no regret in the long run.

The reward is the loss, as in Online Data Mixing, so it is no better advised; but what it is told, it learns.
"""

import dataclasses
import math
from typing import Literal

from runtime.data.mixing.numbers import by_rewards
from runtime.data.mixing.policy import Memory, Sources, Turn
from runtime.data.mixing.refusals import check_learning
from runtime.data.shares import WHOLE


@dataclasses.dataclass(frozen=True)
class Exp3:
    """The rate and the floor are E_t of Online Data Mixing; the exponential is taken after subtracting the largest."""

    reward_scale: float = 10.0
    """A loss is divided by this: rewards lie in [0, 1]. 10 is that of the released code."""
    warmup_steps: int = 0
    """Updates by the mixture as it is written; the rewards are updated in them."""
    sequences_per_draw: int = 1
    lag_steps: int = 8
    """1 is the textbook; a larger one lets batches be read ahead."""
    kind: Literal["exp3"] = "exp3"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.reward_scale) and self.reward_scale > 0):
            raise ValueError(
                f"Exp3.reward_scale is {self.reward_scale}; losses are divided by it, so it is finite and above zero: "
                "about the largest loss."
            )
        check_learning("Exp3", self.warmup_steps, self.sequences_per_draw, self.lag_steps)

    def begin(self) -> Memory:
        return {"rewards": {}}

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        if turn <= self.warmup_steps:
            return dict(sources.prior)
        return by_rewards(memory["rewards"], sources.prior, turn - self.warmup_steps)

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        rewards = dict(memory["rewards"])
        drawn = sum(seen.num_sequences for seen in turn.seen.values())
        for name, seen, mean_loss in turn.mean_losses():
            reward, share = mean_loss / self.reward_scale, turn.shares[name] / WHOLE
            rewards[name] = rewards.get(name, 0.0) + seen.num_sequences / drawn * reward / share
        return {"rewards": rewards}
