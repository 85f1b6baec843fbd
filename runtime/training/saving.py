"""Saving: when a run is saved, and which of its checkpoints are kept.

Temporary checkpoints serve a run that is killed: saved by time and by steps in the work folder. The newest few are
kept, and some that enough good steps follow. Milestones are permanent: saved by step in the output, and published.
"""

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from runtime.tracking.events import EventLog
from runtime.tracking.metrics import MetricsRow
from runtime.training import run_state
from runtime.training.checkpoint import Save
from runtime.training.observer import Observer
from runtime.training.run_state import RunState
from runtime.training.temporary import SupersededError, TemporaryCheckpoints

logger = logging.getLogger(__name__)

GOOD_STEPS = 50
"""Consecutive good steps that make the checkpoint before them good: a divergence shows within fewer."""
SLOW_SAVE = "slow_save"
"""The event of a save that may not fit."""
SAVES_IN_A_NOTICE = 2
"""The notice may come just after a save began: the stop waits for that save and makes another."""
WARN_AGAIN_FACTOR = 2.0
"""Warn again when a save takes this many times longer than the last one warned about."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavingPlan:
    """The places and times of saves. Steps are absolute, so that a resumed run saves at the same ones."""

    temporary: TemporaryCheckpoints
    checkpoint_every_steps: int
    checkpoint_every_seconds: float
    """Seconds since the last save began; whichever comes first. Infinity saves by steps alone."""
    keep_good_every_steps: int
    """Least distance of two good checkpoints."""
    output_folder: str
    publish_every_steps: int
    """0 publishes only the last step."""
    facts: dict[str, Any]
    """Metadata of every checkpoint; see `run_state.save`."""
    wanted_steps: frozenset[int] = frozenset()
    """Further milestones, from which other phases start."""
    notice_seconds: float | None = None
    """Time between the notice of the scheduler and its kill; None means unknown."""

    def is_milestone(self, step: int, until_step: int) -> bool:
        is_due = bool(self.publish_every_steps and step % self.publish_every_steps == 0)
        return step == until_step or is_due or step in self.wanted_steps


class _PendingSave(NamedTuple):
    """A save that is not known to be complete."""

    save: Save
    run: RunState
    milestone: str | None
    """The folder in the output; None for a temporary checkpoint."""
    waited_seconds: float
    """Time spent on the end of the save before it."""
    on_complete: Callable[[str], None]


class Saver:
    """Saves one state at a time.

    Temporary checkpoints are listed and deleted in the thread of a save, since a bucket may hold many names.
    Milestones are published in the loop's own thread, and what they replace is deleted after that.
    """

    def __init__(
        self,
        plan: SavingPlan,
        events: EventLog,
        observer: Observer,
        *,
        begin_step: int,
        doubted_step: int = 0,
    ) -> None:
        """Continue from `begin_step`; `doubted_step` is the newest step that was skipped or in doubt."""
        self._plan, self._events, self._observer = plan, events, observer
        self._pending: _PendingSave | None = None
        self._preemption = Preemption(plan.notice_seconds, events, observer.on_warning)
        self._last_began = time.monotonic()
        found = plan.temporary.found if jax.process_index() == 0 else []  # the first host marks and deletes
        good = (each.step for each in found if each.is_good and each.step <= begin_step)
        # Ignore good checkpoints past `begin_step`: they may be damaged, which may be why this run starts before them.
        self._last_good = max(good, default=None)
        open_ones = [each.step for each in found if each.is_complete and not each.is_good]
        followed = sorted({step for step in open_ones if doubted_step <= step <= begin_step})
        self._candidates = [step for step in followed if self._is_far_enough(step)]
        """Temporary checkpoints followed by good steps only, far enough past the last good checkpoint.

        The oldest one is kept until it is good; the newest few alone would always be too young.
        """
        self._newest_step = 0
        self.last_step: int | None = None
        """Step of the newest save, complete or not."""
        self.last_path = ""

    def publish(self, run: RunState) -> None:
        """Publish a state that an earlier attempt saved, with the same files that it would have published."""
        self.begin(run, is_milestone=True)
        self.finish()

    def is_due(self) -> bool:
        """Return whether this host's clock asks for a temporary checkpoint."""
        return time.monotonic() - self._last_began >= self._plan.checkpoint_every_seconds

    def is_due_at(self, step: int) -> bool:
        """Return whether a temporary checkpoint is due by steps, and the clock has not saved one just before."""
        distance = self._plan.checkpoint_every_steps
        return step % distance == 0 and (self.last_step is None or step - self.last_step > distance // 2)

    def begin(
        self,
        run: RunState,
        *,
        is_milestone: bool = False,
        on_complete: Callable[[str], None] = lambda path: None,
    ) -> None:
        """Start to save a milestone or a temporary checkpoint, after waiting for the save before it.

        `on_complete` receives the path once the loop finds the save complete.
        """
        asked = time.monotonic()
        self.finish()
        waited_seconds = time.monotonic() - asked
        temporary, facts = self._plan.temporary, self._plan.facts
        run = run._replace(metrics=run.metrics.copy(), source_losses=run.source_losses.copy())
        milestone = f"step-{run.step}" if is_milestone else None
        # The first host asks for all: without its manifest the others' files are invisible.
        check_lease = temporary.check_not_superseded if jax.process_index() == 0 else lambda: None
        if milestone is None:
            if self._is_far_enough(run.step):
                self._candidates.append(run.step)
            save = run_state.save(
                temporary.folder_of(run.step),
                run,
                facts=facts,
                segments=temporary.segments,
                lease_epoch=temporary.lease_epoch,
                described=False,  # no other program reads it, and each of its many small files is synced
                before=check_lease,
                after=functools.partial(self._prune, run.step, candidates=tuple(self._candidates)),
            )
        else:
            # No lease epoch here: committed bytes must not depend on the number of interruptions.
            folder = f"{self._plan.output_folder}/{milestone}"
            save = run_state.save(folder, run, facts=facts, segments=temporary.segments, before=check_lease)
        self._pending = _PendingSave(save, run, milestone, waited_seconds, on_complete)
        self.last_step, self.last_path, self._last_began = run.step, save.path, time.monotonic()

    def note(self, row: MetricsRow, *, is_in_doubt: bool = False) -> None:
        """Note a finished step, which may make checkpoints good, or rule them out where it is skipped or in doubt."""
        if row.is_skipped or is_in_doubt:
            self._candidates.clear()
        self._newest_step = row.step
        self._mark_due()

    def _mark_due(self) -> None:
        if self._pending is not None and not self._pending.save.done():
            return  # its thread may delete the folder; `finish` calls this again
        while self._candidates and self._newest_step - self._candidates[0] >= GOOD_STEPS:
            step = self._candidates.pop(0)
            good_steps = self._newest_step - step
            mark = functools.partial(self._plan.temporary.mark_good, step, good_steps=good_steps)
            # Where a mark fails, on a full disk, say, the next checkpoint gets one.
            if self._on_first_host(mark, f"the checkpoint of step {step} could not be marked as good"):
                self._events.write("good_checkpoint", step=step, good_steps=good_steps)
                self._last_good = step
                self._candidates = [later for later in self._candidates if self._is_far_enough(later)]

    def _is_far_enough(self, step: int) -> bool:
        return self._last_good is None or step - self._last_good >= self._plan.keep_good_every_steps

    def _prune(self, step: int, **kept: Any) -> None:
        """Delete what is no longer needed; after a failure it takes space until the next save."""
        prune = functools.partial(self._plan.temporary.prune, step, **kept)
        self._on_first_host(prune, f"old checkpoints could not be deleted at step {step}")

    def _on_first_host(self, action: Callable[[], object], failure: str) -> object:
        """Return the result of an action on the first host; log why it fails, unless the lease is lost."""
        if jax.process_index() > 0:  # a checkpoint of the others looks half-written until its manifest is there
            return None
        try:
            return action()
        except SupersededError:
            raise
        except Exception as error:
            logger.warning("%s: %s", failure, error)
            return None

    def poll(self) -> None:
        """Finish a save that is written."""
        if self._pending is not None and self._pending.save.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the pending save, if there is one, and report it."""
        if (pending := self._pending) is None:
            return
        self._pending = None
        save, run = pending.save, pending.run
        save.wait()
        self._events.write(
            "checkpoint" if pending.milestone is None else "milestone",
            step=run.step,
            consumed_tokens=run.consumed_tokens,
            path=save.path,
            waited_seconds=round(pending.waited_seconds, 4),
            blocked_seconds=round(save.snapshot_seconds, 4),
            write_seconds=round(save.write_seconds, 4),
            size_in_bytes=save.size_in_bytes,
        )
        if jax.process_index() == 0:  # it writes the manifest, after the files of all hosts
            seconds = save.snapshot_seconds + save.write_seconds
            self._preemption.note_save(run.step, seconds=seconds, size_in_bytes=save.size_in_bytes)
        self._mark_due()  # steps that ended while the save was being written
        if pending.milestone is not None:
            self._observer.on_milestone(run, pending.milestone)
            # The run can resume from the milestone; only good checkpoints and candidates stay.
            self._prune(run.step, keep=0, candidates=tuple(self._candidates))
        pending.on_complete(save.path)

    def finish_after(self, error: Exception, **facts: Any) -> None:
        """Log `error` of the training and finish the pending save, whose state is good; log what fails here."""
        for action in (functools.partial(self._events.write, "error", message=str(error), **facts), self.finish):
            try:
                action()
            except Exception as another:
                logger.warning("after %s, ending the run failed too: %s", type(error).__name__, another)

    def end(self, run: RunState) -> None:
        """Finish after the last milestone, and delete candidates, which no step can make good any more."""
        self.finish()
        self._prune(run.step, keep=0)
        self._on_first_host(self._plan.temporary.drop_segments, f"old tables could not be deleted at step {run.step}")


class Preemption:
    """A warning when a save may not fit into the notice that a scheduler gives before it kills."""

    def __init__(self, notice_seconds: float | None, events: EventLog, warn: Callable[[str], None]) -> None:
        """`notice_seconds` None means unknown, and no save is warned about; `warn` takes the text for the user."""
        if notice_seconds is not None and not notice_seconds > 0:
            raise ValueError(f"notice_seconds is {notice_seconds}; pass what the scheduler gives, or None.")
        self._notice_seconds, self._events, self._warn = notice_seconds, events, warn
        self._warned_seconds = 0.0

    def note_save(self, step: int, *, seconds: float, size_in_bytes: int) -> None:
        """Note a save that took `seconds` from the copy of the state to its last byte."""
        notice = self._notice_seconds
        if notice is None or seconds <= max(notice / SAVES_IN_A_NOTICE, WARN_AGAIN_FACTOR * self._warned_seconds):
            return
        self._warned_seconds = seconds
        needed = 60 * math.ceil(SAVES_IN_A_NOTICE * seconds / 60)
        self._events.write(
            SLOW_SAVE, step=step, save_seconds=round(seconds, 3), notice_seconds=notice, needed_seconds=needed
        )
        self._warn(
            f"step {step:,}: saving {size_in_bytes / 1e9:.3g} GB took {seconds:.3g} s, and the scheduler kills "
            f"{notice:g} s after its notice. A stop needs time for two saves; otherwise the training steps after the "
            f"last save are lost. Ask the scheduler for {needed} s (Slurm: --signal=B:USR2@{needed}) and pass "
            f"--notice {needed}, or make saving faster with more hosts or faster storage"
        )
