"""RunCopying: what a run commits goes to a second prefix beside the work; no step waits for a copy, or fails of one."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from marin_dag.graph.step import Step
from marin_dag.keep.copy.attachments import Attachments
from marin_dag.keep.copy.certified_copies import CertifiedStates
from marin_dag.keep.copy.copy_errors import DamagedSourceError
from marin_dag.keep.copy.copy_queue import CopyQueue
from marin_dag.keep.copy.copy_survey import keys_of, of_other_attempts
from marin_dag.keep.copy.copying import Copied, Copier
from marin_dag.ledger.lease import Leases
from marin_dag.ledger.records import Records
from marin_dag.quantities import counted, in_bytes
from marin_dag.run.interrupts import interrupt, signals_handled
from marin_dag.store.retry import is_transient, patiently
from marin_dag.store.store import StoreError

TOLD_SECONDS = 15.0
"""A copy that took so long is told by a line; so is each milestone's."""
ATTACH_SECONDS = 600.0
"""What leads to outputs and explains them is copied anew so often, and in the end."""
CERTIFIED_SECONDS = 6 * 3600.0
"""So is the newest certified state of each trajectory. It is as large as a milestone, and stays there."""
TROUBLE_SECONDS = 60.0
"""Where the target does not answer, every output that waits would say so."""
POLL_SECONDS = 0.2
MAX_NAMED = 10


class Voice(Protocol):
    """Where the user reads, from any thread."""

    def say(self, text: str) -> None:
        """A line of news."""

    def complain(self, text: str) -> None:
        """A line about what went wrong."""


class RunCopying:
    """The copies of one run.

    Args:
        copier: from the run's prefix to the other.
        attachments: what goes along.
        states: what the trajectories have certified.
        steps: those that the run is about, done or not.
        voice: where the user reads.
        command: what the user types to catch up later.
        command_to_force: what the user types to make the output of one step again, by its name.
    """

    def __init__(
        self,
        copier: Copier,
        attachments: Attachments,
        states: CertifiedStates,
        steps: Sequence[Step[Any]],
        voice: Voice,
        *,
        command: str,
        command_to_force: Callable[[str], str],
    ) -> None:
        self._copier, self._attachments, self._states, self._voice = copier, attachments, states, voice
        self._command, self._command_to_force = command, command_to_force
        self._steps = tuple(steps)
        self._leases = Leases(copier.source)
        self._trajectories = {step.digest for step in steps if step.until is not None}
        self._keys = {step.key for step in steps if step.until is None}
        self._queue = CopyQueue(copier, self)
        self._names: dict[str, str] = {}
        self._num_outputs = 0
        self._attached: frozenset[str] = frozenset()
        """Keys whose attachments have been copied."""
        self._ran: frozenset[str] = frozenset()
        """Digests that somebody was at work on then."""
        self._problems: dict[str, None] = {}
        """Of what goes along, as far as they were told."""
        self._fresh: set[str] = set()
        """Keys that were committed since the beginning."""
        self._is_compared = False
        """What was there before, with what is here."""
        self._failed: dict[str, str] = {}
        self._damaged: dict[str, None] = {}
        """Names of steps."""
        self._last_problems: list[str] = []
        self._cures: set[str] = set()
        """That were told."""
        self._full = ""
        """What there is to say of a target that is full."""
        self._is_last = False
        """Whether the run has ended, and waits for its copies."""
        self._num_copied, self._bytes_copied = 0, 0
        self._last_trouble = -TROUBLE_SECONDS
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._attaching = threading.Thread(target=self._attach_now_and_then, name="copies of names", daemon=True)

    def start(self) -> None:
        """Begins with what is finished of these steps and not at the target yet.

        Raises:
            StoreError: one of the two prefixes does not answer.
        """
        for key in patiently(self._missing):
            self._queue.add(key)
        self._queue.start()
        self._attaching.start()

    def add(self, key: str) -> None:
        """An output was committed, or a milestone published."""
        if key in self._keys or key.partition("@")[0] in self._trajectories:
            self._fresh.add(key)
            self._queue.add(key)

    def finish(self, *, is_interrupted: bool) -> bool:
        """Waits for what is left, and tells of what is not there; whether all is.

        Raises:
            KeyboardInterrupt: the user waits no longer; what is left has been told.
        """
        with signals_handled(interrupt):  # SIGTERM and SIGUSR2 as Ctrl-C: what is not there is told before the end
            try:
                if is_interrupted:
                    self._queue.cancel()
                else:
                    self._wait()
            except KeyboardInterrupt:
                self._queue.cancel()
                self._conclude([])
                raise
            return self._conclude(self._last_problems)

    def leave(self) -> None:
        """Leaves what is under way, without a word."""
        self._queue.cancel()
        self._stop()

    def _stop(self) -> None:
        self._end_attaching()
        while not self._queue.is_over(POLL_SECONDS):
            pass
        self._copier.close()

    def _end_attaching(self) -> None:
        self._ended.set()
        self._attaching.join()

    def _wait(self) -> None:
        try:
            for key in patiently(self._missing):  # of other runs, too, and of attempts that a successor carried out
                if key not in self._failed:
                    self._queue.add(key)
        except StoreError:
            pass  # what there is of it will be told in the end
        self._is_last = True
        self._queue.end()
        begun = told = time.monotonic()
        while not self._queue.is_over(POLL_SECONDS):
            if time.monotonic() - told >= TOLD_SECONDS or begun == told:
                told = time.monotonic()
                left = self._queue.left
                if left:
                    self._voice.say(
                        f"copies: {counted(len(left), 'output')} left, {in_bytes(self._copier.bytes_done)} done; "
                        "Ctrl-C leaves them"
                    )

        self._end_attaching()
        if self._full:
            self._last_problems = [self._full]
            return
        try:
            self._last_problems = [*self._attach(is_last=True), *self._states.copy(self._copier, self._voice.say)]
        except StoreError as error:
            self._last_problems = [self._copier.said(error)]

    def _conclude(self, problems: list[str]) -> bool:
        self._stop()
        target = self._copier.target.prefix
        try:
            missing = self._missing()
            if not problems:  # an interrupt, or somebody at work there, may have left them
                problems = [f"{state.name}, certified, is not there yet" for state in self._states.left()]
        except StoreError as error:
            missing, problems = list(self._failed), [*problems, self._copier.said(error)]
        if not missing and not problems:
            written = f", {self._num_copied:,} by this run ({in_bytes(self._bytes_copied)})" if self._num_copied else ""
            self._voice.say(f"copies: all {self._num_outputs:,} outputs are in {target}{written}")
            return True
        if missing:
            self._voice.complain(
                f"copies: {len(missing):,} of {counted(self._num_outputs, 'output')} are not in {target}:"
            )
        for key in missing[:MAX_NAMED]:
            self._voice.complain(f"  {self._names.get(key, key)}: {self._failed.get(key, 'not copied yet')}")
        if len(missing) > MAX_NAMED:
            self._voice.complain(f"  and {len(missing) - MAX_NAMED:,} more")
        for problem in problems:
            self._voice.complain(f"copies: {problem}")
        for name in self._damaged:
            self._voice.complain(f"first:        {self._command_to_force(name)}")
        self._voice.complain(f"to catch up:  {self._command}")
        return False

    def _missing(self) -> list[str]:
        """What is committed and not at the target."""
        there = self._look()
        return [key for key in self._names if key not in there]

    def _look(self) -> frozenset[str]:
        """What is at the target; what is committed at the source is known from then on."""
        names = keys_of(self._steps, Records(self._copier.source).committed_keys())
        self._names, self._num_outputs = names, len(names)
        return Records(self._copier.target).committed_keys()

    def _attach(self, *, is_last: bool = False) -> list[str]:
        """For what is at the target by now."""
        if not self._is_compared:
            self._tell_others()
            self._is_compared = True
        there = self._look()
        keys = frozenset(key for key in self._names if key in there)
        running = frozenset(self._leases.at_work())
        # Who was at work then may have ended since, without a new key.
        growing = running | self._ran | {key.partition("@")[0] for key in keys - self._attached}
        problems = self._attachments.copy(keys, growing | self._trajectories if is_last else growing)
        self._attached, self._ran = keys, running
        return problems

    def _attach_now_and_then(self) -> None:
        states_are_due = time.monotonic()
        while True:
            try:
                problems = self._attach()
                if time.monotonic() >= states_are_due:
                    states_are_due = time.monotonic() + CERTIFIED_SECONDS
                    problems += self._states.copy(self._copier, self._voice.say)
            except StoreError as error:
                problems = [self._copier.said(error)]
            for problem in problems:
                if problem not in self._problems:
                    self._problems[problem] = None
                    self._tell_trouble(f"copies: what goes along could not be written: {problem}")
            if self._ended.wait(ATTACH_SECONDS):
                return

    def _tell_others(self) -> None:
        """Of what was there before: what another attempt made, which no copy will change."""
        others = of_other_attempts(self._copier, self._names, self._attachments.know)
        if others:
            named = ", ".join(self._name(key) for key in others[:MAX_NAMED])
            more = f" and {len(others) - MAX_NAMED:,} more" if len(others) > MAX_NAMED else ""
            self._voice.complain(
                f"copies: in {self._copier.target.prefix} from other attempts, and that stays: {named}{more}; "
                "`copy` says whether their files are the same"
            )

    def on_copied(self, copied: Copied) -> None:
        """See CopyListener."""
        with self._lock:
            self._failed.pop(copied.key, None)
            self._full = "" if copied.what == "copied" and not self._is_last else self._full
            self._num_copied += copied.what == "copied"
            self._bytes_copied += copied.size_in_bytes
        if copied.what == "copied" and copied.record is not None:
            self._attachments.add(copied.record)
        name = self._name(copied.key)
        if copied.what == "copied" and (
            copied.seconds >= TOLD_SECONDS or (copied.key in self._fresh and "@" in copied.key)
        ):
            speed = f", {in_bytes(copied.size_in_bytes / copied.seconds)}/s" if copied.seconds >= 1 else ""
            files = f"{counted(copied.num_files, 'file')}, {in_bytes(copied.size_in_bytes)}{speed}"
            self._voice.say(f"{name}: copied to {self._copier.target.prefix} ({files})")
        elif copied.what == "anothers" and not copied.is_same:
            self._voice.complain(f"{name}: is at {self._copier.target.prefix} with other files, and that stays")

    def on_postponed(self, key: str, pause_seconds: float, error: Exception) -> None:
        """See CopyListener. Of many that wait for one store the first says so."""
        with self._lock:
            self._failed[key] = self._copier.said(error).partition("\n")[0]
        self._tell_trouble(
            f"{self._name(key)}: its copy is tried again, as long as that may help: {self._copier.said(error)}"
        )

    def on_failed(self, key: str, error: Exception) -> None:
        """See CopyListener."""
        said = self._copier.said(error, told=self._cures)
        if isinstance(error, DamagedSourceError):
            said = "; ".join([str(error), *(f"{found.path} {found.what}" for found in error.findings[:MAX_NAMED])])
            self._damaged[self._name(key).partition("@")[0]] = None
        with self._lock:
            self._failed[key] = said.partition("\n")[0]
        complain = self._tell_trouble if is_transient(error) else self._voice.complain  # what stays is never hidden
        complain(f"{self._name(key)}: not copied: {said}")

    def on_full(self, keys: Collection[str], error: Exception) -> None:
        """See CopyListener."""
        with self._lock:
            was_full, self._full = self._full, self._copier.said(error).partition("\n")[0]
        if not was_full and not self._is_last:  # in the end it is told with what is not there
            self._voice.complain(f"copies: no room is left, and none is made before there is: {self._full}")

    def _tell_trouble(self, text: str) -> None:
        with self._lock:
            is_due = time.monotonic() - self._last_trouble >= TROUBLE_SECONDS
            self._last_trouble = time.monotonic() if is_due else self._last_trouble
        if is_due:
            self._voice.complain(text)

    def _name(self, key: str) -> str:
        found = self._names.get(key)
        if found is not None:
            return found
        digest, at, milestone = key.partition("@")
        name = next((step.name for step in self._steps if step.digest == digest), digest[:8])
        return f"{name}{at}{milestone}"
