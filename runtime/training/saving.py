"""Saving: when a run is saved, and what happens to what was saved before.

Temporary checkpoints are for a run that is killed: by time and by steps, in the work folder, the newest few kept.
Milestones are for good: by step, in the output, published. Of the temporary checkpoints that enough good updates
followed, one in so many steps is certified, and stays, whatever comes after it.
"""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from runtime.tracking.events import EventLog
from runtime.tracking.metrics import MetricsRow
from runtime.training import run_state
from runtime.training.checkpoint import Save
from runtime.training.preemption import Preemption, warn
from runtime.training.run_state import RunState
from runtime.training.temporary import SupersededError, TemporaryCheckpoints

logger = logging.getLogger(__name__)

CERTIFYING_STEPS = 50
"""Good updates in a row after a checkpoint that certify it: what diverges shows itself within fewer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavingPlan:
    """Where and when the run is saved. Steps are absolute, so that a resumed run saves at the same ones."""

    temporary: TemporaryCheckpoints
    checkpoint_every_steps: int
    checkpoint_every_seconds: float
    """Since the last save began, whichever comes first; infinity saves by steps alone."""
    certify_every_steps: int
    """The least distance of two certified ones."""
    output_folder: str
    publish_every_steps: int
    """0: only the last step."""
    facts: dict[str, Any]
    """For the metadata of every checkpoint; see `run_state.save`."""
    wanted_steps: frozenset[int] = frozenset()
    """Steps that others start from: milestones too."""
    notice_seconds: float | None = None
    """What a scheduler gives between its notice and its kill; None is not known."""
    remark: Callable[[str], None] = warn
    """Takes what is to be said to people of the saves."""

    def is_milestone(self, step: int, until_step: int) -> bool:
        is_due = bool(self.publish_every_steps and step % self.publish_every_steps == 0)
        return step == until_step or is_due or step in self.wanted_steps


class _UnderWay(NamedTuple):
    """A save that was begun and is not known to be complete."""

    saving: Save
    run: RunState
    """Its arrays may be used up by the next update; whoever is called back has everything else."""
    milestone: str | None
    """Its folder in the output; None is a temporary checkpoint."""
    waited_seconds: float
    """For the save before it to end."""
    on_complete: Callable[[str], None]


class Saver:
    """At most one save under way.

    The loop waits for no listing and no deletion of temporary checkpoints: their names are many, in a bucket above all.
    Milestones are published, and what they make needless is deleted after that, in the loop's own thread.
    """

    def __init__(
        self,
        plan: SavingPlan,
        events: EventLog,
        on_milestone: Callable[[RunState, str], None],
        *,
        begin_step: int,
        doubted_step: int = 0,
    ) -> None:
        """Of a run that goes on from `begin_step`; `doubted_step` is its newest update left out, or in doubt."""
        self._plan, self._events, self._on_milestone = plan, events, on_milestone
        self._under_way: _UnderWay | None = None
        self._preemption = Preemption(plan.notice_seconds, events, plan.remark)
        self._last_began = time.monotonic()
        found = plan.temporary.found if jax.process_index() == 0 else []  # who marks and deletes
        certified = (each.step for each in found if each.is_certified and each.step <= begin_step)
        self._last_certified = max(certified, default=None)
        """One that lies ahead does not count: it may be torn, and why this run begins before it."""
        open_ones = [each.step for each in found if each.is_complete and not each.is_certified]
        followed = sorted({step for step in open_ones if doubted_step <= step <= begin_step})
        self._uncertified = [step for step in followed if self._is_far_enough(step)]
        """Steps of temporary checkpoints that only good updates have followed so far, and that lie far enough past the
        last certified one: of this attempt, and those of earlier ones that it has gone on behind.

        The oldest that is still there is kept until it is certified: the newest few alone would be too young for ever.
        """
        self._newest_step = 0
        """The newest update that was heard of."""
        self.last_step: int | None = None
        """Step of the newest save that was begun."""
        self.last_path = ""
        """And where it lies."""

    def publish(self, run: RunState) -> None:
        """Makes a state that an earlier attempt saved a milestone, file for file what that would have published."""
        self.begin(run, is_milestone=True)
        self.finish()

    def is_due(self) -> bool:
        """Whether this host's clock asks for a temporary checkpoint."""
        return time.monotonic() - self._last_began >= self._plan.checkpoint_every_seconds

    def is_due_at(self, step: int) -> bool:
        """Whether a temporary checkpoint is due by steps; not where the clock had one saved just before."""
        distance = self._plan.checkpoint_every_steps
        return step % distance == 0 and (self.last_step is None or step - self.last_step > distance // 2)

    def begin(
        self,
        run: RunState,
        *,
        is_milestone: bool = False,
        on_complete: Callable[[str], None] = lambda path: None,
    ) -> None:
        """Starts to save, a milestone or a temporary checkpoint.

        Waits first for the save before it, where that is still being written. `on_complete` is called, by whoever
        comes to find that this one is, with where it lies.
        """
        asked = time.monotonic()
        self.finish()
        waited_seconds = time.monotonic() - asked
        temporary, facts = self._plan.temporary, self._plan.facts
        run = run._replace(metrics=run.metrics.copy(), source_losses=run.source_losses.copy())
        milestone = f"step-{run.step}" if is_milestone else None
        # The first host asks for all: without its manifest nobody sees what the others write.
        superseded = temporary.refuse_if_superseded if jax.process_index() == 0 else lambda: None
        if milestone is None:
            if self._is_far_enough(run.step):
                self._uncertified.append(run.step)
            saving = run_state.save(
                temporary.folder_of(run.step),
                run,
                facts=facts,
                lease_epoch=temporary.lease_epoch,
                described=False,  # nobody else reads it, and each of its many small files is synced
                before=superseded,
                after=functools.partial(self._prune, run.step, candidates=tuple(self._uncertified)),
            )
        else:
            # No lease epoch here: committed bytes must not tell how often the run was interrupted.
            saving = run_state.save(f"{self._plan.output_folder}/{milestone}", run, facts=facts, before=superseded)
        self._under_way = _UnderWay(saving, run, milestone, waited_seconds, on_complete)
        self.last_step, self.last_path, self._last_began = run.step, saving.path, time.monotonic()

    def note(self, row: MetricsRow, *, is_in_doubt: bool = False) -> None:
        """After each update: the checkpoints that this one certifies, or leaves in doubt, as a monitor may too."""
        if row.is_skipped or is_in_doubt:
            self._uncertified.clear()
        self._newest_step = row.step
        self._certify_due()

    def _certify_due(self) -> None:
        if self._under_way is not None and not self._under_way.saving.done():
            return  # its thread may delete what is marked here; whoever waits for it comes back to this
        while self._uncertified and self._newest_step - self._uncertified[0] >= CERTIFYING_STEPS:
            step = self._uncertified.pop(0)
            good_steps = self._newest_step - step
            if jax.process_index() == 0 and self._certify(step, good_steps):
                self._events.write("certified", step=step, good_steps=good_steps)
                self._last_certified = step
                self._uncertified = [later for later in self._uncertified if self._is_far_enough(later)]

    def _is_far_enough(self, step: int) -> bool:
        return self._last_certified is None or step - self._last_certified >= self._plan.certify_every_steps

    def _certify(self, step: int, good_steps: int) -> bool:
        try:
            return self._plan.temporary.certify(step, good_steps=good_steps)
        except SupersededError:
            raise
        except Exception as error:  # a full disk, say: a mark is not worth a run, and the next checkpoint gets one
            logger.warning("the checkpoint of step %d could not be marked as certified: %s", step, error)
            return False

    def _prune(self, step: int, **kept: Any) -> None:
        """What no longer is needed; where that fails it takes room until the next save, and no more."""
        if jax.process_index() > 0:  # what it has yet to complete looks half-written to the others
            return
        try:
            self._plan.temporary.prune(step, **kept)
        except SupersededError:
            raise
        except Exception as error:
            logger.warning("old checkpoints could not be deleted at step %d: %s", step, error)

    def poll(self) -> None:
        """Completes a save that has been written."""
        if self._under_way is not None and self._under_way.saving.done():
            self.finish()

    def finish(self) -> None:
        """Waits for the save under way, if there is one."""
        if (ended := self._under_way) is None:
            return
        self._under_way = None
        saving, run = ended.saving, ended.run
        saving.wait()
        self._events.write(
            "checkpoint" if ended.milestone is None else "milestone",
            step=run.step,
            consumed_tokens=run.consumed_tokens,
            path=saving.path,
            waited_seconds=round(ended.waited_seconds, 4),
            blocked_seconds=round(saving.snapshot_seconds, 4),
            write_seconds=round(saving.write_seconds, 4),
            size_in_bytes=saving.size_in_bytes,
        )
        if jax.process_index() == 0:  # it writes the manifest, behind the files of all
            seconds = saving.snapshot_seconds + saving.write_seconds
            self._preemption.note_save(run.step, seconds=seconds, size_in_bytes=saving.size_in_bytes)
        self._certify_due()  # what later updates had certified while it was being written
        if ended.milestone is not None:
            self._on_milestone(run, ended.milestone)
            # The milestone is permanent, and as good to resume from; what one goes back to, or may yet, stays.
            self._prune(run.step, keep=0, candidates=tuple(self._uncertified))
        ended.on_complete(saving.path)

    def finish_after(self, error: Exception, **facts: Any) -> None:
        """The same when training has failed of `error`: what was begun before it is good.

        The caller raises `error`, so that nothing here may: what fails behind it is logged.
        """
        actions = functools.partial(self._events.write, "error", message=str(error), **facts), self.finish
        for action in actions:
            try:
                action()
            except Exception as another:
                logger.warning("after %s, what is done at its end failed too: %s", type(error).__name__, another)

    def end(self, run: RunState) -> None:
        """Behind the last milestone: nothing more is certified, so what waited for that goes."""
        self.finish()
        self._prune(run.step, keep=0)
