"""--copy-to PREFIX: copy what a run commits while it runs, and say in the plan what is not copied yet."""

import threading
import time
from typing import Any, NamedTuple, Protocol

from marin_dag.cli.copy import make_job, target_of
from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Session
from marin_dag.graph.step import Step
from marin_dag.keep.copy.job import CopyJob
from marin_dag.ledger.records import Records, first_lines
from marin_dag.plan.plan import Plan
from marin_dag.quantities import counted, in_bytes
from marin_dag.run.early_interrupt import INTERRUPTED
from marin_dag.run.interrupts import heard, interrupt
from marin_dag.store.store import StoreError

INTERVAL_SECONDS = 600.0
"""Names, pins and the like are copied this often, and outputs that failed are tried again."""
GOOD_CHECKPOINT_SECONDS = 6 * 3600.0
"""The newest good checkpoint is copied this often: it is as large as a milestone, and stays at the target."""
PROGRESS_SECONDS = 15.0
POLL_SECONDS = 0.2
MAX_NAMED = 10


def check_copy_target(session: Session) -> None:
    """Raise UserError if --copy-to names no place to copy to."""
    if session.parsed.copy_to is not None:
        target_of(session, "--copy-to")


class Outstanding(NamedTuple):
    """Finished outputs of a plan that a run would copy, beside those that it makes."""

    prefix: str
    num_outputs: int
    """Finished outputs."""
    num_left: int
    """Outputs and good checkpoints that the target lacks."""

    @property
    def description(self) -> str:
        """The numbers, for the user."""
        left = f"{self.num_left:,} to copy, of " if self.num_left else ""
        return f"{self.prefix}; {left}{counted(self.num_outputs, 'finished output')}"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to copy."""
        return not self.num_left


def outstanding(session: Session, plan: Plan) -> Outstanding | None:
    """Return what a run would copy, or None without --copy-to."""
    if session.parsed.copy_to is None:
        return None
    target = target_of(session, "--copy-to")
    job = make_job(session, target, _steps(plan), lambda text: None)
    tasks, num_outputs = job.outputs()
    return Outstanding(target.prefix, num_outputs, len(tasks) + len(job.good_checkpoints()))


class Display(Protocol):
    """The terminal of a run; any thread may print."""

    def say(self, text: str) -> None:
        """Print a line."""

    def complain(self, text: str) -> None:
        """Print a line about an error."""


class RunCopies:
    """The copies beside one run. No step waits for a copy, or fails because of one."""

    def __init__(self, job: CopyJob, display: Display, command: str) -> None:
        self._job, self._display, self._command = job, display, command
        self._fresh: set[str] = set()
        """Keys committed since the start: their logs grow for some seconds after the copy."""
        self._problems: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="copies", daemon=True)

    def start(self) -> None:
        """Start with what is finished and not at the target."""
        self._job.start()
        self._thread.start()

    def add(self, key: str) -> None:
        """Copy an output that was just committed, or a milestone that was just published."""
        self._fresh.add(key)
        self._job.add_key(key)

    def _add_missing(self) -> None:
        try:
            self._job.add(*self._job.outputs()[0])
        except StoreError as error:
            self._report([first_lines(error)])

    def leave(self) -> None:
        """Drop the copies that are not finished."""
        self._ended.set()
        self._job.cancel()
        self._thread.join()
        self._job.copier.close()

    def finish(self, *, is_interrupted: bool) -> bool:
        """Wait for the copies and print what is missing; return whether nothing is.

        Raises:
            KeyboardInterrupt: the user does not wait; what is missing has been printed.
        """
        with heard(interrupt):  # SIGTERM and SIGUSR2 like Ctrl-C: print what is missing before the end
            try:
                if not is_interrupted:
                    self._wait()
            except KeyboardInterrupt:
                self.leave()
                self._conclude()
                raise
            self.leave()
            return self._conclude()

    def _wait(self) -> None:
        self._ended.set()
        self._add_missing()
        self._add_good_checkpoints()
        self._job.end()
        last = time.monotonic() - PROGRESS_SECONDS + 1.0
        while not self._job.is_over(POLL_SECONDS):
            if time.monotonic() - last >= PROGRESS_SECONDS:
                last = time.monotonic()
                done = in_bytes(self._job.copier.bytes_done)
                self._display.say(f"copies: {self._job.num_left:,} left, {done} done; Ctrl-C leaves them")
        self._thread.join()
        self._problems.clear()  # an error that has passed is no problem any more
        records = Records(self._job.copier.source)
        try:
            for key in sorted(self._fresh):
                record = records.find(key)
                if record is not None:
                    self._job.copier.copy_beside(record)
            self._report(self._job.copy_attachments())
        except StoreError as error:
            self._report([first_lines(error)])

    def _repeat(self) -> None:
        good_is_due = time.monotonic()
        while True:
            self._add_missing()
            if time.monotonic() >= good_is_due:
                good_is_due += GOOD_CHECKPOINT_SECONDS
                self._add_good_checkpoints()
            try:
                self._report(self._job.copy_attachments())
            except StoreError as error:
                self._report([first_lines(error)])
            if self._ended.wait(INTERVAL_SECONDS):
                return

    def _add_good_checkpoints(self) -> None:
        try:
            self._job.add(*self._job.good_checkpoints())
        except StoreError as error:
            self._report([first_lines(error)])

    def _report(self, problems: list[str]) -> None:
        for problem in problems:
            if problem not in self._problems:
                self._problems.append(problem)
                self._display.complain(f"copies: {problem}")

    def _conclude(self) -> bool:
        target = self._job.copier.target.prefix
        try:
            tasks, num_outputs = self._job.outputs()
            tasks += self._job.good_checkpoints()
        except StoreError as error:
            self._report([first_lines(error)])
            return False
        if not tasks and not self._problems:
            copied = f", {self._job.counts['copied']:,} copied ({in_bytes(self._job.size_in_bytes)})"
            self._display.say(f"copies: {counted(num_outputs, 'output')} in {target}{copied}")
            return True
        if tasks:
            self._display.complain(f"copies: {len(tasks):,} not in {target}:")
        for task in tasks[:MAX_NAMED]:
            self._display.complain(f"  {task.name}: {self._job.failed.get(task.name, 'not copied yet')}")
        if len(tasks) > MAX_NAMED:
            self._display.complain(f"  and {len(tasks) - MAX_NAMED:,} more")
        self._display.complain(f"to continue:  {self._command}")
        return False


def start_copies(session: Session, plan: Plan, display: Display) -> RunCopies | None:
    """Start the copies of a run; return None without --copy-to.

    Raises:
        UserError: the target cannot be written to.
    """
    if session.parsed.copy_to is None:
        return None
    target = target_of(session, "--copy-to")
    job = make_job(session, target, _steps(plan), display.say, is_quiet=True)
    copies = RunCopies(job, display, session.line("copy", "--to", session.parsed.copy_to))
    copies.start()
    return copies


def finish_copies(copies: RunCopies | None, code: int) -> int:
    """Wait for the copies of a run that ended with `code`; return the exit code of both."""
    if copies is None:
        return code
    try:
        is_whole = copies.finish(is_interrupted=code == INTERRUPTED)
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED if code == NOTHING_WOULD_RUN and not is_whole else code


def _steps(plan: Plan) -> list[Step[Any]]:
    return [planned.step for planned in plan.steps if planned.is_selected]
