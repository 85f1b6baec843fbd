"""CopyJob: copies the outputs of steps and what belongs to them to another prefix, several at once."""

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from marin_dag.graph.step import Step
from marin_dag.keep.copy.copier import Copied, Copier, CopyCancelledError, DamagedSourceError
from marin_dag.keep.copy.scope import copy_attachments, copy_good_checkpoint, good_checkpoints, outputs_of
from marin_dag.ledger.records import Records, first_lines
from marin_dag.quantities import counted, in_bytes
from marin_dag.store.retry import patiently

OUTPUTS_AT_ONCE = 4
"""Small outputs cost round trips; the files of all outputs share the threads of the copier."""
POLL_SECONDS = 0.2
PROGRESS_SECONDS = 15.0


class CopyTask(NamedTuple):
    """An output or a good checkpoint to be copied."""

    key: str
    """Key of the record; of a good checkpoint its folder."""
    name: str
    copy: Callable[[], Copied]


class CopyJob:
    """The copies of the outputs of `steps`; any thread may add outputs.

    Args:
        copier: copies one output.
        steps: the steps, finished or not.
        forks_folder: folder of the forks, which are copied too.
        say: prints a line; called from any thread.
        command_to_force: returns the command that makes the output of a step again.
        is_quiet: print no line for a copy without an error.
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
        self._command_to_force, self._is_quiet = command_to_force, is_quiet
        self._by_digest: dict[str, list[Step[Any]]] = {}
        for step in steps:
            self._by_digest.setdefault(step.digest, []).append(step)
        self._pending: dict[str, Future[None]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(OUTPUTS_AT_ONCE, thread_name_prefix="copies")

    def tasks(self) -> tuple[list[CopyTask], int]:
        """Return what the target lacks, or all outputs if they are to be checked, and the number of finished outputs.

        Raises:
            StoreError: a store failed.
        """
        copier = self.copier
        names = outputs_of(self._steps, patiently(Records(copier.source).committed_keys))
        there = patiently(Records(copier.target).committed_keys)
        tasks = [self._task(key, name) for key, name in names.items() if copier.check or key not in there]
        for found in good_checkpoints(copier.source, copier.target, self._steps, check=copier.check):
            copy = functools.partial(copy_good_checkpoint, copier, found)
            tasks.append(CopyTask(found.folder, f"{found.name}, good checkpoint", copy))
        return tasks, len(names)

    def _task(self, key: str, name: str) -> CopyTask:
        return CopyTask(key, name, functools.partial(self.copier.copy, key))

    def add(self, *tasks: CopyTask) -> None:
        """Start tasks, as soon as a thread is free, unless they are pending."""
        with self._lock:
            for task in tasks:
                pending = self._pending.get(task.key)
                if (pending is None or pending.done()) and not self.copier.is_cancelled:
                    self._pending[task.key] = self._pool.submit(self._run, task)

    def add_key(self, key: str) -> None:
        """Add an output that was just committed, if it is one of these steps."""
        steps = self._by_digest.get(key.partition("@")[0], ())
        self.add(*(self._task(key, name) for key, name in outputs_of(steps, [key]).items()))

    def wait(self) -> None:
        """Wait for all tasks and print the progress."""
        last, first_bytes = time.monotonic(), self.copier.bytes_done
        while left := [future for future in list(self._pending.values()) if not future.done()]:
            wait(left, timeout=POLL_SECONDS)
            seconds = time.monotonic() - last
            if seconds >= PROGRESS_SECONDS:
                done = self.copier.bytes_done
                rate = in_bytes((done - first_bytes) / seconds)
                self.say(f"copies: {len(left):,} left, {in_bytes(done)} done, {rate}/s; Ctrl-C leaves them")
                last, first_bytes = time.monotonic(), done

    def cancel(self) -> None:
        """Drop all tasks, and wait for the threads."""
        with self._lock:
            self.copier.cancel()
        self._pool.shutdown(cancel_futures=True)
        self.copier.close()

    def copy_attachments(self) -> list[str]:
        """Copy what belongs to the outputs at the target; return conflicts, a line each; see scope.py."""
        names = outputs_of(self._steps, patiently(Records(self.copier.source).committed_keys))
        keys = names.keys() & patiently(Records(self.copier.target).committed_keys)
        return copy_attachments(self.copier.source, self.copier.target, keys, self._forks_folder)

    def _run(self, task: CopyTask) -> None:
        try:
            copied = task.copy()
        except CopyCancelledError:
            return
        except Exception as error:  # any error is one of this output alone
            self._fail(task, error)
            return
        with self._lock:
            self.failed.pop(task.name, None)
            self.counts[copied.outcome] += 1
            self.size_in_bytes += copied.size_in_bytes
        if copied.outcome in ("copied", "repaired") and not self._is_quiet:
            files = f"{counted(copied.num_files, 'file')}, {in_bytes(copied.size_in_bytes)}"
            self.say(f"{task.name}: {copied.outcome} ({files})")
        elif copied.outcome == "other attempt":
            self.say(f"{task.name}: the target has the output of another attempt, which stays")

    def _fail(self, task: CopyTask, error: Exception) -> None:
        text = first_lines(error)
        first_line = text.partition("\n")[0]
        with self._lock:
            is_known, self.failed[task.name] = self.failed.get(task.name) == first_line, first_line
        if is_known:
            return
        if isinstance(error, DamagedSourceError):
            text += f"\nto make them again:  {self._command_to_force(task.name.partition('@')[0])}"
        self.say(f"{task.name}: not copied: {text}")
