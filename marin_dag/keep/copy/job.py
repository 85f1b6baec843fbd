"""Copies: the outputs of steps and what belongs to them at another prefix, several copied at once.

Leases, failures and other state of unfinished work are not copied: the leases of their own prefix fence them.
"""

import contextlib
import dataclasses
import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.keep.copy.copier import Copier, CopyCancelledError, DamagedSourceError, copy_small
from marin_dag.ledger.acceptances import ACCEPTED
from marin_dag.ledger.pins import PINS
from marin_dag.ledger.records import LABELS, Records, first_lines
from marin_dag.ledger.requests import REQUESTS
from marin_dag.quantities import counted, in_bytes
from marin_dag.record_key import digest_of, milestone_of
from marin_dag.store.retry import patiently
from marin_dag.store.store import Store, StoreError

OUTPUTS_AT_ONCE = 4
"""Small outputs cost round trips; the files of all outputs share the threads of the copier."""
POLL_SECONDS = 0.2
PROGRESS_SECONDS = 15.0
INTERVAL_SECONDS = 600.0
"""Names, pins and the like are copied this often, and failed outputs are tried again."""
MAX_NAMED = 10


@dataclasses.dataclass(eq=False)
class Copies:
    """Copies of the outputs of `steps`, made by a command or beside a run.

    No step of a run waits for a copy, or fails because of one.
    """

    copier: Copier
    steps: Sequence[Step[Any]]
    forks_folder: str
    """Folder of the forks, which are copied too."""
    say: Callable[[str], None]
    """Prints a line, as `complain` does; called from any thread."""
    complain: Callable[[str], None]
    command: str
    """Continues the copies."""
    command_to_force: Callable[[str], str]
    """Returns the command that makes the output of a step again."""
    is_quiet: bool = False
    """Whether to print no line for a copy without an error."""

    def __post_init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._size_in_bytes = 0
        self._failed: dict[str, str] = {}
        """First line of the error of each failed output, by name."""
        self._damaged: set[str] = set()
        """Keys of outputs with damaged files at the source, which another try cannot copy."""
        self._compared: set[str] = set()
        """Keys whose copies are there, and were compared if they are to be."""
        self._fresh: set[str] = set()
        """Keys committed since the start; their logs grow for some seconds after the copy."""
        self._problems: list[str] = []
        self._pending: dict[str, Future[None]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(OUTPUTS_AT_ONCE, thread_name_prefix="copies")
        self._ended, self._is_cancelled = threading.Event(), False
        self._thread = threading.Thread(target=self._repeat, name="copies", daemon=True)

    def outstanding(self) -> tuple[dict[str, str], int]:
        """Return the names by key of what is to be copied or compared, and the number of finished outputs."""
        names = outputs_of(self.steps, patiently(Records(self.copier.source).committed_keys))
        there = self._compared if self.copier.check else patiently(Records(self.copier.target).committed_keys)
        return {key: name for key, name in names.items() if key not in there}, len(names)

    def start(self) -> None:
        """Start to copy what is outstanding; repeat it every `INTERVAL_SECONDS`."""
        self._thread.start()

    def add(self, key: str) -> None:
        """Copy an output that was just committed, if it is one of these steps."""
        self._fresh.add(key)
        self._submit(outputs_of(self.steps, [key]))

    def leave(self) -> None:
        """End all copies; finished files stay for the next copy."""
        self._ended.set()
        with self._lock:
            self._is_cancelled = True
        self.copier.cancel()
        self._pool.shutdown(cancel_futures=True)
        self.copier.close()
        self._thread.join()

    def finish(self, *, is_interrupted: bool = False) -> bool:
        """Wait for the copies, unless interrupted, and print what is missing; return whether nothing is."""
        try:
            if not is_interrupted:
                self._wait()
        finally:
            self.leave()
            is_whole = self._conclude()
        return is_whole

    def _repeat(self) -> None:
        while True:
            self._copy_outstanding()
            self._copy_attachments()
            if self._ended.wait(INTERVAL_SECONDS):
                return

    def _copy_outstanding(self, *, without: Collection[str] = ()) -> None:
        with self._complaining():
            self._submit({key: name for key, name in self.outstanding()[0].items() if key not in without})

    def _wait(self) -> None:
        self._ended.set()
        self._thread.join()
        self._wait_for_pending()
        self._copy_outstanding(without=self._damaged)  # again for what failed
        self._wait_for_pending()
        with self._complaining():
            for record in Records(self.copier.source).find_all(self._fresh).values():
                self.copier.copy_beside(record)
        self._copy_attachments()

    def _wait_for_pending(self) -> None:
        last, first_bytes = time.monotonic(), self.copier.bytes_done
        while left := [future for future in list(self._pending.values()) if not future.done()]:
            wait(left, timeout=POLL_SECONDS)
            seconds = time.monotonic() - last
            if seconds >= PROGRESS_SECONDS:
                done = self.copier.bytes_done
                rate = in_bytes((done - first_bytes) / seconds)
                self.say(f"{len(left):,} left, {in_bytes(done)} done, {rate}/s; Ctrl-C leaves them")
                last, first_bytes = time.monotonic(), done

    @contextlib.contextmanager
    def _complaining(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self.complain(first_lines(error))

    def _copy_attachments(self) -> None:
        """Copy what belongs to the outputs at the target; complain of each new conflict."""
        source, target = self.copier.source, self.copier.target
        try:
            names = outputs_of(self.steps, patiently(Records(source).committed_keys))
            keys = names.keys() & patiently(Records(target).committed_keys)
            problems = copy_attachments(source, target, keys, self.forks_folder)
        except StoreError as error:
            problems = [first_lines(error)]
        for problem in problems:
            if problem not in self._problems:
                self.complain(problem)
        self._problems = problems

    def _conclude(self) -> bool:
        """Print what was copied or what is missing; return whether nothing is."""
        try:
            names, num_outputs = self.outstanding()
        except StoreError as error:
            self.complain(first_lines(error))
            return False
        missing = dict.fromkeys(names.values(), "not copied yet") | self._failed
        there, counts = self.copier.target.prefix, self._counts
        if not missing:
            repaired = f", {counts['repaired']:,} repaired" if counts["repaired"] else ""
            copied = f"{counts['copied']:,} copied{repaired} ({in_bytes(self._size_in_bytes)})"
            what = copied if counts["copied"] or counts["repaired"] else "nothing to copy"
            self.say(f"{what}: {counted(num_outputs - counts['gone'], 'output')} in {there}")
            return not self._problems
        self.complain(f"{len(missing):,} not copied to {there}:")
        for name, why in list(missing.items())[:MAX_NAMED]:
            self.complain(f"  {name}: {why}")
        if len(missing) > MAX_NAMED:
            self.complain(f"  and {len(missing) - MAX_NAMED:,} more")
        self.complain(f"to continue:  {self.command}")
        return False

    def _submit(self, names: Mapping[str, str]) -> None:
        """Start copies of outputs, given with their names by key, unless they are pending."""
        with self._lock:
            for key, name in names.items():
                pending = self._pending.get(key)
                if (pending is None or pending.done()) and not self._is_cancelled:
                    self._pending[key] = self._pool.submit(self._copy, key, name)

    def _copy(self, key: str, name: str) -> None:
        try:
            copied = self.copier.copy(key)
        except CopyCancelledError:
            return
        except Exception as error:  # any error is one of this output alone
            self._fail(key, name, error)
            return
        with self._lock:
            self._failed.pop(name, None)
            self._damaged.discard(key)
            self._compared.add(key)
            self._counts[copied.outcome] += 1
            self._size_in_bytes += copied.size_in_bytes
        if copied.outcome in ("copied", "repaired") and not self.is_quiet:
            files = f"{counted(copied.num_files, 'file')}, {in_bytes(copied.size_in_bytes)}"
            self.say(f"{name}: {copied.outcome} ({files})")
        elif copied.outcome == "other attempt":
            self.say(f"{name}: the target has the output of another attempt, which stays")

    def _fail(self, key: str, name: str, error: Exception) -> None:
        text = first_lines(error)
        first_line = text.partition("\n")[0]
        with self._lock:
            is_known, self._failed[name] = self._failed.get(name) == first_line, first_line
        if isinstance(error, DamagedSourceError):
            self._damaged.add(key)
            text += f"\nto make them again:  {self.command_to_force(name.partition('@')[0])}"
        if not is_known:
            self.say(f"{name}: not copied: {text}")


def outputs_of(steps: Sequence[Step[Any]], committed: Iterable[str]) -> dict[str, str]:
    """Return the names of the committed outputs of `steps` by key, inputs first; every milestone counts.

    Parts of a growing output are not listed, since the whole output contains them.
    """
    by_digest: dict[str, list[str]] = {}
    for key in sorted(committed, key=lambda key: (len(key), key)):  # step 9 before step 10
        by_digest.setdefault(digest_of(key), []).append(key)
    stops: dict[str, list[Step[Any]]] = {}
    for step in steps:
        stops.setdefault(step.digest, []).append(step)
    found: dict[str, str] = {}
    for digest, same in stops.items():
        same.sort(key=lambda step: step.until or 0)
        for step in same:
            for key in by_digest.get(digest, ()):
                at = milestone_of(key)
                if step.until is None and at is None:
                    found.setdefault(key, step.name)
                elif step.until is not None and at is not None and (at <= step.until or step is same[-1]):
                    found.setdefault(key, f"{step.name}@{at}")
    return found


def copy_attachments(source: Store, target: Store, keys: Collection[str], forks_folder: str) -> list[str]:
    """Copy all forks, and the names, pins, requests and acceptances of the outputs `keys`.

    Existing objects at the target stay as they are. Return conflicts, a line each: objects of the target that differ.
    """
    digests = {digest_of(key) for key in keys}
    labels = (path for path in _paths(source, LABELS) if path.rpartition("/")[2] in keys)
    pins = (path for path in _paths(source, PINS) if path.removeprefix(f"{PINS}/").removesuffix(".json") in keys)
    requests = (path for path in _paths(source, REQUESTS) if path.split("/")[1] in digests)
    there = {path for folder in (LABELS, PINS, REQUESTS) for path in _paths(target, folder)}
    for path in itertools.chain(labels, pins, requests):
        if path not in there:
            copy_small(source, target, path)
    problems = []
    acceptances = [path for path in _paths(source, ACCEPTED) if path.split("/")[1] in digests]
    # In order and up to the first difference: a revocation must stay behind the acceptance that it revokes.
    for digest, paths in itertools.groupby(acceptances, lambda path: path.split("/")[1]):
        if not all(copy_small(source, target, path) for path in paths):
            problems.append(
                f"{target.url(f'{ACCEPTED}/{digest}')}: the acceptances there differ from those here, and stay. To "
                f"change them, run `accept` with --prefix {target.prefix}."
            )
    for path in _paths(source, forks_folder):
        if not copy_small(source, target, path):
            name = path.removeprefix(f"{forks_folder}/").removesuffix(".json")
            problems.append(
                f"the fork {name} differs at the target, and stays. To delete it, run `drop {name}` with --prefix "
                f"{target.prefix}."
            )
    return problems


def _paths(store: Store, folder: str) -> list[str]:
    return [entry.path for entry in patiently(functools.partial(store.list, folder))]
