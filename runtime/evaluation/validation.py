"""Validation: bits per byte of held-out text and of tasks' right answers, of all weights, while a phase trains.

Validation reads the state and changes nothing of it, so that a run ends with the same bytes without it. Its results
are in the event log, and the predictions of a few windows beside it; neither is in an output.
"""

import dataclasses
import logging
import time
from collections.abc import Mapping

from runtime.evaluation.bits_per_byte import BitsPerByteError, macro_average
from runtime.evaluation.held_out import HeldOut
from runtime.evaluation.stored_predictions import file_of_step, write_predictions
from runtime.evaluation.token_predictions import Predictor
from runtime.optim.ema import HOT
from runtime.tracking.events import VALIDATION, EventLog
from runtime.training.observer import Observer
from runtime.training.run_state import RunState
from runtime.training.watchdog import Watchdog

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOutValidation:
    """Measures at multiples of `every_steps` since the start of the run, and at both ends of the phase."""

    held_out: HeldOut
    max_tokens_per_domain: int
    """Most tokens of each domain of held-out text."""
    answers: HeldOut | None = None
    """Right answers of tasks; None measures none."""
    num_answers: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Number of answers of each task."""
    every_steps: int
    begin_step: int
    until_step: int
    events: EventLog
    observer: Observer
    predictor: Predictor | None = None
    """The sample whose predictions are kept; None keeps none."""
    predictions_folder: str | None = None
    """Folder of a file for each step; None on a host that writes none."""
    watchdog: Watchdog = dataclasses.field(default_factory=lambda: Watchdog("batch of held-out text"))
    """A separate watchdog, since the first batches compile at any step."""

    def is_due(self, step: int) -> bool:
        """Return whether the state after `step` finished steps is measured."""
        return step % self.every_steps == 0 or step in (self.begin_step, self.until_step)

    def measure(self, run: RunState) -> None:
        """Score the weights of `run` and its averages; all hosts of a gang call it at the same step.

        Raises:
            BitsPerByteError: held-out text has no finite figure; the weights may have diverged.
        """
        began = time.monotonic()
        found = self._scores(self.held_out, run)
        of_answers = {}
        if self.answers is not None:
            of_answers = {"answer_bits_per_byte": self._scores(self.answers, run), "num_answers": self.num_answers}
        means = {which: macro_average(by_domain) for which, by_domain in found.items()}
        self.events.write(
            VALIDATION,
            step=run.step,
            consumed_tokens=run.consumed_tokens,
            bits_per_byte=found,
            mean_bits_per_byte=means,
            tokens_per_domain=self.max_tokens_per_domain,
            **of_answers,
            seconds=round(time.monotonic() - began, 3),
        )
        self.observer.on_validation(run.step, means)
        if self.predictor is not None:
            self._keep_predictions(self.predictor, run)

    def _scores(self, held_out: HeldOut, run: RunState) -> dict[str, dict[str, float]]:
        """Return bits per byte of each domain under each set of weights."""
        found: dict[str, dict[str, float]] = {}
        for which, params in {HOT: run.state.params, **run.state.averages}.items():
            try:
                with self.watchdog.watching():
                    scores = held_out.scores(params, watchdog=self.watchdog)
            except BitsPerByteError as error:
                raise BitsPerByteError(f"step {run.step}, validation of the {which} weights: {error}") from error
            found[which] = {domain: score.bits_per_byte for domain, score in scores.items()}
        return found

    def _keep_predictions(self, predictor: Predictor, run: RunState) -> None:
        found = {}
        for which, params in {HOT: run.state.params, **run.state.averages}.items():
            found[which] = predictor.predict(params)
        if self.predictions_folder is None:
            return
        path = file_of_step(self.predictions_folder, run.step)
        try:
            write_predictions(path, predictor.table(run.step, run.consumed_tokens, found))
        except Exception as error:  # clients of buckets raise what they like, and predictions must not end a run
            logger.warning("the predictions %s could not be written (%s: %s)", path, type(error).__name__, error)
