"""Settings of the training loop, the same for all steps of a phase."""

import dataclasses
from collections.abc import Callable

from runtime.optim.skip_rule import SkipRule
from runtime.training.figure_checks import FirstLoss
from runtime.training.monitors import never


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Settings of one phase; its config has the same names (steps/phase_config.py)."""

    until_step: int
    """Finished steps since the start of the run at which the loop ends."""
    sequence_length: int
    """Tokens."""
    global_batch_size: int
    """Sequences per step, over all devices."""
    skip_rule: SkipRule | None = None
    """None where the state has no history."""
    digest_every_steps: int = 0
    """Distance of digests of the parameters in the event log, besides one at the last step; 0 logs none."""
    norms_every_steps: int = 0
    """Distance of norms of each part in the event log, besides those of the last step; 0 logs none."""
    monitors_reset_at: Callable[[int], bool] = never
    """Whether losses and norms are meant to change level with the step after so many finished ones."""
    first_loss: FirstLoss | None = None
    """The expected first loss, for a run from scratch."""

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.sequence_length

    def logs_digest_at(self, step: int) -> bool:
        return self._is_due(self.digest_every_steps, step)

    def logs_norms_at(self, step: int) -> bool:
        return self._is_due(self.norms_every_steps, step)

    def _is_due(self, every_steps: int, step: int) -> bool:
        return bool(every_steps) and (step % every_steps == 0 or step == self.until_step)
