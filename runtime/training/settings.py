"""Settings: what the training loop goes by itself, and nobody tells it step by step."""

import dataclasses
from collections.abc import Callable

from runtime.optim.skip_rule import SkipRule
from runtime.training.monitors import FirstLoss, never


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Of a phase, whose config has the same names (steps/phase_config.py)."""

    until_step: int
    """Finished updates since the start of the run at which the loop ends."""
    sequence_length: int
    """Tokens."""
    global_batch_size: int
    """Sequences an update, over all devices."""
    skip_rule: SkipRule | None = None
    """None where the state holds no history."""
    digest_every_steps: int = 0
    """Distance of the digests of the parameters in the event log, which gets one at the last step too; 0: none."""
    norms_every_steps: int = 0
    """Distance of the norms by part in the event log, which gets those of the last step too; 0: none."""
    begins_anew_at: Callable[[int], bool] = never
    """Whether the level of losses and norms is meant to change with the update that follows so many finished ones."""
    first_loss: FirstLoss | None = None
    """Of a run from scratch, what the monitors hold its first update against."""

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.sequence_length

    def is_digested(self, step: int) -> bool:
        return self._is_due(self.digest_every_steps, step)

    def are_norms_told(self, step: int) -> bool:
        return self._is_due(self.norms_every_steps, step)

    def _is_due(self, every_steps: int, step: int) -> bool:
        return bool(every_steps) and (step % every_steps == 0 or step == self.until_step)
