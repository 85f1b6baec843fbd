"""Online Data Mixing as published: Algorithm 1 of arXiv:2312.02406, to the letter.

Mapping of names: K sources, E_t `exploration`, R_i `rewards`, pi_i the shares, G the draws of an update, alpha
`alpha`. What follows from the letter, and the tests hold: the reward is the loss itself, so a source of noise is as
good as one that can be learned; it is corrected for its share twice (updated when drawn, and divided by the share);
and since R is an average while E_t falls, the shares go to uniform.
"""

import dataclasses
from typing import Literal

from runtime.data.mixing.numbers import by_rewards
from runtime.data.mixing.policy import Memory, Sources, Turn
from runtime.data.mixing.refusals import check_learning, refuse_share
from runtime.data.shares import WHOLE


@dataclasses.dataclass(frozen=True)
class OdmPaper:
    """Steps 1 to 5 of the algorithm; the paper gives `alpha` no value."""

    alpha: float
    """Share of a reward that is kept when a new one comes in."""
    warmup_steps: int = 0
    """Updates by the mixture as it is written; the rewards are updated in them. The paper took 1 % of its run."""
    sequences_per_draw: int = 1
    """The paper drew a source for 60 sequences at a time, one micro-batch on each of eight devices."""
    lag_steps: int = 8
    """1 is the letter of the algorithm; a larger one lets batches be read ahead."""
    kind: Literal["odm_paper"] = "odm_paper"

    def __post_init__(self) -> None:
        refuse_share("OdmPaper", "alpha", self.alpha)
        check_learning("OdmPaper", self.warmup_steps, self.sequences_per_draw, self.lag_steps)

    def begin(self) -> Memory:
        return {"rewards": {}}

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        if turn <= self.warmup_steps:
            return dict(sources.prior)
        return by_rewards(memory["rewards"], sources.prior, turn - self.warmup_steps)

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        rewards = dict(memory["rewards"])
        for name, seen, mean_loss in turn.mean_losses():
            draws = seen.num_sequences / self.sequences_per_draw
            loss = draws * mean_loss  # a sum over the draws: three draws count three times
            share = turn.shares[name] / WHOLE
            rewards[name] = self.alpha * rewards.get(name, 0.0) + (1 - self.alpha) * loss / share
        return {"rewards": rewards}
