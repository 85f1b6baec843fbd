"""Online Data Mixing (Albalak et al. 2023, arXiv:2312.02406): as published, and as its authors released it.

Names: K sources, E_t `exploration`, R_i `rewards`, pi_i the shares, G the draws of an update, alpha `alpha`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

from runtime.data.mixing.policy import Memory, Sources, Turn, check_learning, exp, log
from runtime.data.mixture import WHOLE, apportioned


class _Rewarded:
    """A policy whose memory is an average of rewards by source."""

    alpha: float
    sequences_per_draw: int

    def __post_init__(self) -> None:
        check_learning(self)
        owner = type(self).__name__
        if not 0 <= self.alpha < 1:
            raise ValueError(
                f"{owner}.alpha is {self.alpha}; it is the share of an average that is kept: 0 <= alpha < 1."
            )
        if self.sequences_per_draw < 1:
            raise ValueError(f"{owner}.sequences_per_draw is {self.sequences_per_draw}; use 1 or more.")

    def begin(self) -> Memory:
        return {"rewards": {}}


@dataclasses.dataclass(frozen=True)
class OdmPaper(_Rewarded):
    """Algorithm 1 to the letter.

    Three consequences of the letter, under test: the reward is the loss, so noise is worth as much as learnable text;
    it is corrected for the share twice (learned only when drawn, and divided by the share); and since R is an average
    while E_t falls, the shares go to uniform.
    """

    alpha: float
    """Share of a reward that is kept when a new one comes in; the paper gives no value."""
    warmup_steps: int = 0
    """Updates by the written mixture, which do update the rewards. The paper took 1 % of its run."""
    sequences_per_draw: int = 1
    """The paper drew a source for 60 sequences at a time, one micro-batch on each of eight devices."""
    lag_steps: int = 8
    """1 is the letter of the algorithm; a larger lag lets the loader read ahead."""
    kind: Literal["odm_paper"] = "odm_paper"

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        if turn <= self.warmup_steps:
            return dict(sources.prior)
        learning_turn, count = turn - self.warmup_steps, len(sources.prior)
        # Line 3 of the algorithm: the exponent takes E of the turn before, the floor takes E of this turn.
        before, now = exploration(count, learning_turn - 1), exploration(count, learning_turn)
        exponents = {name: before * memory["rewards"].get(name, 0.0) for name in sources.prior}
        largest = max(exponents.values())
        return explored({name: exp(value - largest) for name, value in exponents.items()}, now)

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        rewards = dict(memory["rewards"])
        for name, seen, mean_loss in turn.mean_losses():
            draws = seen.num_sequences / self.sequences_per_draw
            loss = draws * mean_loss  # the algorithm sums over draws: three draws count three times
            share = turn.shares[name] / WHOLE
            rewards[name] = self.alpha * rewards.get(name, 0.0) + (1 - self.alpha) * loss / share
        return {"rewards": rewards}


@dataclasses.dataclass(frozen=True)
class OdmReleased(_Rewarded):
    """The authors' code (`smoothed_mean`), which differs from the paper; kept for comparison.

    The reward is exp(mean loss) without importance weight. The shares are R_i / sum R, a softmax of losses at
    temperature 1, and t counts the updates of the run. Nothing is learned during warm-up, so the first turns after it
    leave every undrawn source at the floor, and one spike of the loss takes over the mixture.
    """

    alpha: float
    """Share of a reward that is kept; 0.9 by default in the released code, 0.5 in its released runs."""
    warmup_steps: int
    """Updates by the written mixture, from which nothing is learned; 2 % of the released runs."""
    sequences_per_draw: int = 1
    lag_steps: int = 8
    """1 is what the code does; a larger lag lets the loader read ahead."""
    kind: Literal["odm_released"] = "odm_released"

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        rewards = {name: memory["rewards"].get(name, 0.0) for name in sources.prior}
        if turn <= self.warmup_steps or not any(rewards.values()):
            return dict(sources.prior)
        return explored(rewards, exploration(len(rewards), step))

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        if turn.number <= self.warmup_steps:
            return memory
        rewards = dict(memory["rewards"])
        for name, _, mean_loss in turn.mean_losses():
            reward = exp(mean_loss)
            if math.isfinite(reward):
                rewards[name] = self.alpha * rewards.get(name, 0.0) + (1 - self.alpha) * reward
        return {"rewards": rewards}


def exploration(num_sources: int, turn: int) -> float:
    """Return E_t: 1/K at first, then sqrt(ln K / (K t))."""
    if turn < 1:
        return 1 / num_sources
    return min(1 / num_sources, math.sqrt(log(num_sources) / (num_sources * turn)))


def explored(weights: Mapping[str, float], floor: float) -> dict[str, int]:
    """Return (1 - K floor) * weights / sum(weights) + floor as shares of `WHOLE`, none below the floor."""
    count = len(weights)
    if floor >= 1 / count:
        return apportioned(dict.fromkeys(weights, 1.0))
    least = min(int(floor * WHOLE), WHOLE // count)
    above = apportioned(weights, WHOLE - count * least)
    return {name: least + share for name, share in above.items()}
