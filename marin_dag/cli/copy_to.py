"""--copy-to PREFIX: copy what a run commits while it runs, and say in the plan what is not copied yet."""

import threading
from typing import Any, NamedTuple, Protocol

from marin_dag.cli.copy import copy_job, target_of
from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Session
from marin_dag.graph.step import Step
from marin_dag.keep.copy.job import CopyJob
from marin_dag.ledger.records import Records, first_lines
from marin_dag.plan.plan import Plan
from marin_dag.quantities import counted, in_bytes
from marin_dag.run.interrupts import INTERRUPTED, interrupt, signals_handled
from marin_dag.store.store import StoreError

INTERVAL_SECONDS = 600.0
"""Good checkpoints, names, pins and the like are copied this often, and failed outputs are tried again."""
SLOW_SECONDS = 15.0
MAX_NAMED = 10


def check_copy_target(session: Session) -> None:
    """Raise UserError if --copy-to names no place to copy to."""
    if session.parsed.copy_to is not None:
        target_of(session, "--copy-to")


class Outstanding(NamedTuple):
    """Finished outputs of a plan, and how many of them a run would copy."""

    prefix: str
    num_outputs: int
    """Finished outputs."""
    num_left: int
    """Outputs and good checkpoints that the target lacks."""

    @property
    def description(self) -> str:
        """The numbers, for the user."""
        return f"{self.prefix}; {self.num_left:,} to copy, {counted(self.num_outputs, 'finished output')}"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to copy."""
        return not self.num_left


def outstanding(session: Session, plan: Plan) -> Outstanding | None:
    """Return what a run would copy, or None without --copy-to."""
    if session.parsed.copy_to is None:
        return None
    job = copy_job(session, "--copy-to", _steps(plan), lambda text: None)
    tasks, num_outputs = job.tasks()
    return Outstanding(job.copier.target.prefix, num_outputs, len(tasks))


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
        """Keys committed since the start; their logs grow for some seconds after the copy."""
        self._problems: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="copies", daemon=True)
        self._thread.start()

    def add(self, key: str) -> None:
        """Copy an output that was just committed, or a milestone that was just published."""
        self._fresh.add(key)
        self._job.add_key(key)

    def leave(self) -> None:
        """Drop the copies that are not finished."""
        self._ended.set()
        self._job.cancel()
        self._thread.join()

    def finish(self, *, is_interrupted: bool) -> bool:
        """Wait for the copies and print what is missing; return whether nothing is.

        Raises:
            KeyboardInterrupt: the user does not wait; what is missing has been printed.
        """
        with signals_handled(interrupt):  # SIGTERM and SIGUSR2 act like Ctrl-C
            try:
                if not is_interrupted:
                    self._wait()
            finally:
                self.leave()
                is_whole = self._conclude()
            return is_whole

    def _repeat(self) -> None:
        while True:
            self._copy_once()
            if self._ended.wait(INTERVAL_SECONDS):
                return

    def _copy_once(self) -> None:
        try:
            self._job.add(*self._job.tasks()[0])
        except StoreError as error:
            self._display.complain(f"copies: {first_lines(error)}")
        self._copy_attachments()

    def _copy_attachments(self) -> None:
        try:
            problems = self._job.copy_attachments()
        except StoreError as error:
            problems = [first_lines(error)]
        for problem in problems:
            if problem not in self._problems:
                self._display.complain(f"copies: {problem}")
        self._problems = problems

    def _wait(self) -> None:
        self._ended.set()
        self._thread.join()
        self._copy_once()
        self._job.wait()
        records = Records(self._job.copier.source)
        try:
            for record in map(records.find, sorted(self._fresh)):
                if record is not None:
                    self._job.copier.copy_beside(record)
        except StoreError as error:
            self._display.complain(f"copies: {first_lines(error)}")
        self._copy_attachments()

    def _conclude(self) -> bool:
        job = self._job
        try:
            tasks, num_outputs = job.tasks()
        except StoreError as error:
            self._display.complain(f"copies: {first_lines(error)}")
            return False
        if not tasks and not self._problems:
            copied = f"{job.counts['copied']:,} copied by this run ({in_bytes(job.size_in_bytes)})"
            self._display.say(f"copies: {counted(num_outputs, 'output')} in {job.copier.target.prefix}, {copied}")
            return True
        if tasks:
            self._display.complain(f"copies: {len(tasks):,} not in {job.copier.target.prefix}:")
        for task in tasks[:MAX_NAMED]:
            self._display.complain(f"  {task.name}: {job.failed.get(task.name, 'not copied yet')}")
        if len(tasks) > MAX_NAMED:
            self._display.complain(f"  and {len(tasks) - MAX_NAMED:,} more")
        self._display.complain(f"to continue:  {self._command}")
        return False


def start_copies(session: Session, plan: Plan, display: Display) -> RunCopies | None:
    """Start the copies of a run; return None without --copy-to.

    Raises:
        UserError: there is no place to copy to.
    """
    if session.parsed.copy_to is None:
        return None
    job = copy_job(session, "--copy-to", _steps(plan), display.say, slow_seconds=SLOW_SECONDS)
    return RunCopies(job, display, session.line("copy", "--to", session.parsed.copy_to))


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
