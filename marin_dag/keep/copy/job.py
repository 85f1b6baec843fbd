"""CopyJob: copies the outputs of steps, several at once, each again after a pause if its error is transient."""

import errno
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from marin_dag.graph.step import Step
from marin_dag.keep.copy.copier import Copied, Copier, CopyCancelledError, DamagedSourceError, HeldAtTargetError
from marin_dag.keep.copy.scope import copy_attachments, copy_good_checkpoint, good_checkpoints, outputs_of
from marin_dag.ledger.epoch import LeaseLostError
from marin_dag.ledger.records import Records, first_lines
from marin_dag.quantities import counted, in_bytes
from marin_dag.store.retry import is_transient, patiently

OUTPUTS_AT_ONCE = 4
"""Small outputs cost round trips; files of all outputs share the threads of the copier."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 60.0
LAST_TRIES = 3
"""Tries of an output once no more outputs will come and the user waits for the end."""
SLOW_SECONDS = 15.0
"""Beside a run only slower copies get a line."""


class CopyTask(NamedTuple):
    """An output or a good checkpoint to be copied."""

    key: str
    """Key of the record; of a good checkpoint its folder."""
    digest: str
    name: str
    copy: Callable[[], Copied]


class CopyJob:
    """The copies of the outputs of `steps`; `start` it, then add outputs from any thread.

    Args:
        copier: copies one output.
        steps: the steps, finished or not.
        forks_folder: folder of the forks, which are copied too.
        say: prints a line; called from any thread.
        command_to_force: returns the command that makes the output of a step again.
        is_quiet: print only slow copies, beside a run that prints lines of its own.
    """

    def __init__(
        self,
        copier: Copier,
        steps: Sequence[Step[Any]],
        forks_folder: str,
        say: Callable[[str], None],
        *,
        command_to_force: Callable[[str], str],
        is_quiet: bool = False,
    ) -> None:
        self.copier, self.say = copier, say
        self.counts: Counter[str] = Counter()
        """Numbers of outcomes."""
        self.size_in_bytes = 0
        """Bytes written."""
        self.failed: dict[str, str] = {}
        """First line of the error of each failed task, by name."""
        self._steps, self._forks_folder = tuple(steps), forks_folder
        self._by_digest: dict[str, list[Step[Any]]] = {}
        for step in steps:
            self._by_digest.setdefault(step.digest, []).append(step)
        self._command_to_force, self._is_quiet = command_to_force, is_quiet
        self._waiting: dict[str, tuple[float, CopyTask]] = {}
        """Tasks by key in order of arrival, each with the time from which on it may start."""
        self._tries: Counter[str] = Counter()
        self._active: dict[str, CopyTask] = {}
        """Running tasks by digest: one at a time has the lease."""
        self._is_ending = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"copies {number}", daemon=True)
            for number in range(OUTPUTS_AT_ONCE)
        ]

    def outputs(self) -> tuple[list[CopyTask], int]:
        """Return the committed outputs that the target lacks, or all of them to be checked, and the number of all."""
        names = outputs_of(self._steps, patiently(Records(self.copier.source).committed_keys))
        there = patiently(Records(self.copier.target).committed_keys)
        return [self._task(key, name) for key, name in names.items() if self.copier.check or key not in there], len(
            names
        )

    def _task(self, key: str, name: str) -> CopyTask:
        return CopyTask(key, key.partition("@")[0], name, functools.partial(self.copier.copy, key))

    def good_checkpoints(self) -> list[CopyTask]:
        """Return the newest good checkpoints that the target lacks."""
        source, target, check = self.copier.source, self.copier.target, self.copier.check
        return [
            CopyTask(
                found.folder,
                found.digest,
                f"{found.name}, good checkpoint",
                functools.partial(copy_good_checkpoint, self.copier, found),
            )
            for found in good_checkpoints(source, target, self._steps, check=check)
        ]

    def copy_attachments(self) -> list[str]:
        """Copy what belongs to the outputs at the target; return conflicts, a line each."""
        names = outputs_of(self._steps, patiently(Records(self.copier.source).committed_keys))
        keys = names.keys() & patiently(Records(self.copier.target).committed_keys)
        return copy_attachments(self.copier.source, self.copier.target, keys, self._forks_folder)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def add(self, *tasks: CopyTask) -> None:
        """Add tasks, unless they are waiting or running."""
        with self._changed:
            active = {task.key for task in self._active.values()}
            for task in tasks:
                if task.key not in active:
                    self._waiting.setdefault(task.key, (0.0, task))
            self._changed.notify_all()

    def add_key(self, key: str) -> None:
        """Add an output that was just committed, if it is one of these steps."""
        steps = self._by_digest.get(key.partition("@")[0], ())
        self.add(*(self._task(key, name) for key, name in outputs_of(steps, [key]).items()))

    @property
    def num_left(self) -> int:
        """Number of tasks that are waiting or running."""
        with self._changed:
            return len(self._waiting) + len(self._active)

    def end(self) -> None:
        """Let the threads end when no task is left; a failing task has `LAST_TRIES` more tries."""
        with self._changed:
            self._is_ending = True
            self._tries.clear()
            self._waiting = {key: (0.0, task) for key, (_, task) in self._waiting.items()}
            self._changed.notify_all()

    def is_over(self, timeout_seconds: float) -> bool:
        """Return whether all threads have ended, after waiting at most this long for it."""
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def cancel(self) -> None:
        """Drop all tasks and wait for the threads."""
        self.copier.cancel()
        with self._changed:
            self._is_ending = True
            self._waiting.clear()
            self._changed.notify_all()
        while not self.is_over(1.0):
            pass

    def _work(self) -> None:
        while (task := self._next()) is not None:
            started = time.monotonic()
            try:
                copied = task.copy()
                self._on_copied(task, copied, time.monotonic() - started)
            except CopyCancelledError:
                pass
            except Exception as error:  # no error may end the thread
                self._on_error(task, error)
            finally:
                with self._changed:
                    del self._active[task.digest]
                    self._changed.notify_all()

    def _next(self) -> CopyTask | None:
        """Wait for a task that is due; return None when none is left and none will come."""
        with self._changed:
            while True:
                now = time.monotonic()
                free = [(at, task) for at, task in self._waiting.values() if task.digest not in self._active]
                due = next((task for at, task in free if at <= now), None)
                if due is not None:
                    del self._waiting[due.key]
                    self._active[due.digest] = due
                    return due
                if self._is_ending and not self._waiting:
                    return None
                self._changed.wait(min(at for at, _ in free) - now if free else None)

    def _on_copied(self, task: CopyTask, copied: Copied, seconds: float) -> None:
        with self._changed:
            self.failed.pop(task.name, None)
            self.counts[copied.outcome] += 1
            self.size_in_bytes += copied.size_in_bytes
        if self._is_quiet and seconds < SLOW_SECONDS:
            return
        if copied.outcome in ("copied", "repaired"):
            rate = f", {in_bytes(copied.size_in_bytes / seconds)}/s" if seconds >= 1 else ""
            files = f"{counted(copied.num_files, 'file')}, {in_bytes(copied.size_in_bytes)}{rate}"
            self.say(f"{task.name}: {copied.outcome} ({files})")
        elif copied.outcome == "other attempt":
            self.say(f"{task.name}: the target has the output of another attempt, which stays")

    def _on_error(self, task: CopyTask, error: Exception) -> None:
        text = first_lines(error)
        may_pass = isinstance(error, LeaseLostError) or is_transient(error)
        with self._changed:
            if self.copier.is_cancelled:
                return
            may_pass = may_pass or (isinstance(error, HeldAtTargetError) and not self._is_ending)
            self._tries[task.key] += 1
            num_tries = self._tries[task.key]
            if may_pass and (not self._is_ending or num_tries < LAST_TRIES):
                pause = min(FIRST_PAUSE_SECONDS * 2 ** (num_tries - 1), LONGEST_PAUSE_SECONDS)
                self._waiting[task.key] = (time.monotonic() + pause, task)
                may_pass, is_news = True, num_tries == 1
            else:
                may_pass, is_news = False, self.failed.get(task.name) != text.partition("\n")[0]
            self.failed[task.name] = text.partition("\n")[0]
            if _is_full(error) and self._is_ending:
                self._waiting.clear()
        if is_news:
            again = self._command_to_force(task.name.partition("@")[0]) if isinstance(error, DamagedSourceError) else ""
            fix = f"\nto make them again, and replace the damaged ones:  {again}" if again else ""
            self.say(f"{task.name}: {'copy failed, and is tried again' if may_pass else 'not copied'}: {text}{fix}")


def _is_full(error: BaseException) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)
