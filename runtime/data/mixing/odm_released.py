"""Online Data Mixing as released: what the code of the authors does (`smoothed_mean`), which is not what they wrote.

The reward is exp(mean loss), without importance weight; the shares are R_i / sum R, so a softmax of losses at
temperature 1; t is the number of finished updates of the run. During warm-up nothing is learned, so that the first
turns after it leave every source that was not drawn at the floor, and one spike of the loss takes over the mixture.
"""

import dataclasses
import math
from typing import Literal

from runtime.data.mixing.numbers import exp, exploration, explored
from runtime.data.mixing.policy import Memory, Sources, Turn
from runtime.data.mixing.refusals import check_learning, refuse_share


@dataclasses.dataclass(frozen=True)
class OdmReleased:
    """Kept for comparison."""

    alpha: float
    """Share of a reward that is kept; 0.9 by default in the released code, 0.5 in its released runs."""
    warmup_steps: int
    """Updates by the mixture as it is written, from which nothing is learned; 2 % of the released runs."""
    sequences_per_draw: int = 1
    lag_steps: int = 8
    """1 is what the code does; a larger one lets batches be read ahead."""
    kind: Literal["odm_released"] = "odm_released"

    def __post_init__(self) -> None:
        refuse_share("OdmReleased", "alpha", self.alpha)
        check_learning("OdmReleased", self.warmup_steps, self.sequences_per_draw, self.lag_steps)

    def begin(self) -> Memory:
        return {"rewards": {}}

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        rewards = {name: memory["rewards"].get(name, 0.0) for name in sources.prior}
        if turn <= self.warmup_steps or not any(rewards.values()):
            return dict(sources.prior)
        return explored(rewards, exploration(len(rewards), step))

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        rewards = dict(memory["rewards"])
        if turn.number <= self.warmup_steps:
            return memory
        for name, seen in turn.seen.items():
            if not seen.num_targets:
                continue
            reward = exp(seen.loss_sum / seen.num_targets) if math.isfinite(seen.loss_sum) else math.inf
            if math.isfinite(reward):
                rewards[name] = self.alpha * rewards.get(name, 0.0) + (1 - self.alpha) * reward
        return {"rewards": rewards}
