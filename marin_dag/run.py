"""The driver: starts what is ready, goes on where it can, and ends with every output either committed or resumable."""

import contextlib
import hashlib
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, get_args

from pydantic import ValidationError

from marin_dag.attempt import failure_of
from marin_dag.backend import Backend
from marin_dag.epoch import LeaseLostError
from marin_dag.errors import UserError
from marin_dag.inputs import Input, replace_inputs
from marin_dag.interrupts import heard
from marin_dag.lease import Held, Leases
from marin_dag.live import ENDINGS, Display
from marin_dag.node import Node, PreemptedError, State
from marin_dag.obituary import headline, obituary, summary
from marin_dag.provenance import collect_provenance
from marin_dag.records import Failure, Records, first_lines, new_attempt
from marin_dag.resources import Cpu
from marin_dag.source_archive import SourceArchive
from marin_dag.step import Step
from marin_dag.store import Store, StoreError
from marin_dag.task import KindReference, Outcome, Progress, Task
from marin_dag.transient import is_transient, patiently

POLL_SECONDS = 0.2
ELSEWHERE_POLL_SECONDS = 2.0
QUEUED_SECONDS = 10.0
"""A step that has not begun so long after it was handed over is told to wait for its resources."""
ATTEMPTS_WITHOUT_PROGRESS = 3
# With the longest pause, about ten minutes without a store before a step is given up.
STARTS_POSTPONED = 14
LONGEST_PAUSE_SECONDS = 60.0


class Run:
    """One run of some steps of one graph, from first to last.

    Args:
        steps: what may run, in any order; what of it is committed already is left alone.
        store: where records and outputs are.
        backend: where attempts run; started only if something is to run.
        display: what the user sees.
        command: what the user types to go on after a failure.
        back_off_seconds: the wait before the second attempt; it doubles.
        force: keys of committed steps to run again; they must give the same files, and the record stays what it was.
    """

    def __init__(
        self,
        steps: Sequence[Step[Any]],
        store: Store,
        backend: Backend,
        display: Display,
        *,
        command: str,
        back_off_seconds: float = 2.0,
        force: frozenset[str] = frozenset(),
    ) -> None:
        self._store = store
        self._backend = backend
        self._display = display
        self._command = command
        self._back_off_seconds = back_off_seconds
        self._records = Records(store)
        self._leases = Leases(store)
        self._nodes = {step.key: Node(step) for step in reversed(steps)}
        self._nodes = {step.key: self._nodes[step.key] for step in steps}
        self._committed: set[str] = set()
        self._num_interrupts = 0
        self._is_stopping = False
        self._force = set(force)
        self.failures: dict[str, Failure] = {}
        """Of the steps that failed for good, by key."""

    def run(self) -> int:
        """0 if all steps are committed in the end, else 1."""
        self._committed = set(self._records.committed_keys())
        for node in self._nodes.values():
            if node.step.key in self._committed and node.step.key not in self._force:
                node.state = "done"
        if all(node.state == "done" for node in self._nodes.values()):
            return 0
        self._provenance = collect_provenance(self._store)
        SourceArchive(self._store).keep([node.step for node in self._unfinished()])
        largest = max(
            (n.step.resources.num_cpus for n in self._unfinished() if isinstance(n.step.resources, Cpu)), default=1
        )
        with heard(self._on_signal) as listen_again, self._display:
            self._display.begin([node.step.name for node in self._unfinished()])
            try:
                greeting = self._backend.start(self, largest)
                listen_again()
                if greeting:
                    self._display.say(greeting)
                self._loop()
            except KeyboardInterrupt:
                self._display.say("interrupted; what was running is cancelled, what was finished is kept")
            finally:
                self._close()
        return self._conclude()

    def on_started(self, key: str) -> None:
        """See Listener."""
        node = self._nodes.get(key)
        if node is not None and node.state == "running" and not node.has_started:
            node.has_started = True
            again = "" if node.num_attempts == 1 else f"attempt {node.num_attempts}"
            self._display.event(node.step.name, "started", again)

    def on_progress(self, key: str, progress: Progress) -> None:
        """See Listener."""
        if key in self._nodes:
            self._display.progress(self._nodes[key].step.name, progress)

    def on_published(self, key: str) -> None:
        """See Listener."""
        self._committed.add(key)
        if key in self._nodes and self._nodes[key].state == "waiting":
            self._done(self._nodes[key], "published by a run of its trajectory")

    def _loop(self) -> None:
        while any(node.state in ("waiting", "running") for node in self._nodes.values()):
            self._block()
            if not self._is_stopping:
                self._start_what_is_ready()
            elif not self._running():
                return
            for outcome in self._backend.wait(POLL_SECONDS):
                self._take(outcome)
            self._tell_what_is_queued()

    def _tell_what_is_queued(self) -> None:
        for node in self._running():
            waits = not node.has_started and time.monotonic() - node.handed_over > QUEUED_SECONDS
            if waits and not node.is_told_queued:
                node.is_told_queued = True
                self._display.event(node.step.name, "queued", f"waits for {node.step.resources}")

    def _start_what_is_ready(self) -> None:
        for node in self._nodes.values():
            if len(self._running()) >= self._backend.max_running or self._is_stopping:
                return
            if node.state == "waiting" and node.not_before <= time.monotonic() and self._is_ready(node):
                try:
                    self._start(node)
                except (UserError, ValidationError, ImportError) as error:
                    if is_transient(error) and node.num_postponed < STARTS_POSTPONED:
                        self._postpone(node, error)
                    else:
                        self._fail(node, failure_of(self._task(node, 0, {}, unbound=True), error))

    def _is_ready(self, node: Node) -> bool:
        if any(self._key_there(item) is None for _, item in node.step.inputs):
            return False
        return not any(
            other.state == "running" or (other.state == "waiting" and (other.step.until or 0) < (node.step.until or 0))
            for other in self._nodes.values()
            if other is not node and other.step.digest == node.step.digest
        )

    def _start(self, node: Node) -> None:
        key = node.step.key
        there = {item.keys: self._key_there(item) for _, item in node.step.inputs}
        needs = tuple(key for key in there.values() if key is not None)
        got = self._leases.acquire(node.step.digest, node.step.name, lambda: self._backend.cancel(key), needs=needs)
        if isinstance(got, Held):
            if not node.is_elsewhere:
                node.is_elsewhere = True
                holder = got.holder
                self._display.event(node.step.name, "elsewhere", f"{holder.host} pid {holder.pid} since {holder.since}")
            node.not_before = time.monotonic() + ELSEWHERE_POLL_SECONDS
            self._sees_what_others_committed()  # the holder may publish what steps of this run start from
            if key not in self._force and self._records.find(key) is not None:
                self._done(node, "by another run")
            return
        node.lease, node.is_elsewhere = got, False
        try:
            # Asked again under the lease: another run may have committed it and left since this one looked.
            if key not in self._force and self._records.find(key) is not None:
                self._done(node, "by another run")
                return
            records = {keys: self._records.get(key) for keys, key in there.items() if key is not None}
            self._backend.submit(self._task(node, got.epoch, records))
        except BaseException:
            self._release(node)
            raise
        node.num_attempts += 1
        node.num_postponed = 0
        node.state, node.has_started, node.is_told_queued = "running", False, False
        node.handed_over = time.monotonic()

    def _postpone(self, node: Node, error: Exception) -> None:
        """The store did not answer: nothing of the step was lost, so that it costs no attempt to ask again."""
        delay = min(self._back_off_seconds * 2**node.num_postponed, LONGEST_PAUSE_SECONDS)
        node.num_postponed += 1
        node.not_before = time.monotonic() + delay
        self._display.event(node.step.name, "waiting", f"{delay:g} s for the store: {first_lines(error)}")

    def _task(self, node: Node, epoch: int, records: dict[tuple[str, ...], Any], *, unbound: bool = False) -> Task:
        def bound(item: Input[Any]) -> Input[Any]:
            record = records[item.keys]
            result = item.step.kind.result_type.model_validate(record.result)
            path = self._store.url(record.output_path)
            return item.bound(path=path, result=result, is_growing=record.key != item.key)

        step = node.step
        wanted = {
            item.milestone
            for other in self._nodes.values()
            for _, item in other.step.inputs
            if item.digest == step.digest and item.milestone is not None and item.key not in self._committed
        }
        return Task(
            prefix=self._store.prefix,
            name=step.name,
            kind=KindReference.to(step.kind),
            digest=step.digest,
            milestone=step.until,
            identity=step.identity,
            config=step.config if unbound else replace_inputs(step.config, bound),
            resources=step.resources,
            attempt=new_attempt(),
            lease_epoch=epoch,
            provenance=self._provenance,
            wanted_milestones=tuple(sorted(wanted - {step.until})),
            is_forced=step.key in self._force and step.key in self._committed,
        )

    def _take(self, outcome: Outcome) -> None:
        node = self._nodes[outcome.task.key]
        if outcome.status == "done":  # the news of a quick step may come after its end
            self.on_started(outcome.task.key)
        lost = node.lease is not None and node.lease.is_lost
        # The attempt may meet its successor's claim at its commit, before the next heartbeat does.
        lost = lost or (outcome.failure is not None and outcome.failure.error_type == LeaseLostError.__qualname__)
        self._release(node, has_committed=outcome.status == "done")
        if outcome.status == "done":
            self._done(node, "again, with the same output" if outcome.task.is_forced else "")
        elif lost and self._is_stopping:
            node.state = "stopped"
            self._display.event(node.step.name, "lost", "another run has taken it over")
        elif lost:
            node.state = "waiting"
            self._display.event(node.step.name, "lost", "another run has taken it over; waiting for its result")
        elif outcome.status == "failed" and outcome.failure is not None:
            self._retry_or_fail(node, outcome.failure)
        elif outcome.status == "stopped" and not self._is_stopping:
            error = PreemptedError("asked to stop by somebody else than this driver; a preempted machine?")
            self._retry_or_fail(node, failure_of(outcome.task, error))
        else:
            node.state = "stopped"
            self._display.event(node.step.name, "stopped", "its work so far is kept")

    @property
    def was_interrupted(self) -> bool:
        """Whether the user asked it to stop."""
        return self._num_interrupts > 0

    def _retry_or_fail(self, node: Node, failure: Failure) -> None:
        mark = self._progress_mark(node.step)
        moved = bool(node.progress_mark and mark) and mark != node.progress_mark
        node.num_without_progress = 1 if moved else node.num_without_progress + 1
        node.progress_mark = mark or node.progress_mark
        failure = failure.model_copy(update={"progress": mark})
        if failure.is_transient and node.num_without_progress < ATTEMPTS_WITHOUT_PROGRESS and not self._is_stopping:
            self._keep(failure)
            delay = self._back_off_seconds * 2 ** (node.num_without_progress - 1)
            node.state, node.not_before = "waiting", time.monotonic() + delay
            self._display.event(node.step.name, "retrying", f"in {delay:g} s after {headline(failure)}")
            return
        if failure.is_transient and node.num_without_progress >= ATTEMPTS_WITHOUT_PROGRESS:
            text = f"{failure.error}\ncrash loop: {node.num_without_progress} attempts in a row got no further"
            failure = failure.model_copy(update={"error": text})
        self._fail(node, failure)

    def _progress_mark(self, step: Step[Any]) -> str:
        """Changes when an attempt leaves more to resume from: shards, checkpoints, milestones; "" if the store is
        silent."""
        try:
            kept = patiently(
                lambda: self._store.list("work", f"{step.digest}/") + self._store.list("commits", f"{step.digest}@")
            )
        except StoreError as error:
            self._display.say(f"{step.name}: what it left to resume from cannot be seen: {first_lines(error)}")
            return ""
        return hashlib.sha256(repr([(entry.path, entry.size_in_bytes) for entry in kept]).encode()).hexdigest()[:16]

    def _fail(self, node: Node, failure: Failure) -> None:
        node.state = "failed"
        self.failures[node.step.key] = failure
        self._display.event(node.step.name, "failed", headline(failure))
        self._keep(failure)

    def _keep(self, failure: Failure) -> None:
        try:
            self._records.record_failure(failure)
        except StoreError as error:  # a full disk is often the failure itself; the user has the message already
            self._display.complain(f"this failure could not be recorded: {error}")

    def _done(self, node: Node, how: str) -> None:
        self._release(node)
        node.state = "done"
        self._committed.add(node.step.key)
        self._display.event(node.step.name, "done", how)

    def _block(self) -> None:
        """Marks what can no longer run, so that the rest may end."""
        changed = True
        while changed:
            changed = False
            for node in self._nodes.values():
                reason = self._obstacle(node.step) if node.state == "waiting" else None
                if reason is not None and self._sees_what_others_committed():
                    reason = self._obstacle(node.step)
                if reason is not None:
                    node.state, changed = "blocked", True
                    self._display.event(node.step.name, "blocked", reason)

    def _sees_what_others_committed(self) -> bool:
        """Whether there are records that this run was not told of: of other drivers, or of the attempt of a killed one
        that the next holder of its lease carried out."""
        try:
            found = patiently(self._records.committed_keys) - self._committed
        except StoreError as error:
            self._display.say(f"whether others have made what is missing cannot be seen: {first_lines(error)}")
            return False
        self._committed |= found
        return bool(found)

    def _obstacle(self, step: Step[Any]) -> str | None:
        for _, item in step.inputs:
            if self._key_there(item) is not None:
                continue
            makers = [node for node in self._nodes.values() if node.step.key != step.key and _makes(node.step, item)]
            if any(maker.state in ("waiting", "running") for maker in makers):
                continue
            if self._is_stopping and any(maker.state == "stopped" for maker in makers):
                continue  # nothing is wrong with it: the next run goes on with both
            for maker in makers:
                if maker.state != "done":
                    return f"by {maker.step.name}"
            if makers:
                return f"{item.name} is done but has published no milestone {item.milestone}"
            return f"{item.name} is not committed and not part of this run"
        return None

    def _key_there(self, item: Input[Any]) -> str | None:
        """Key of the best record of what `item` can start on; None if there is none yet."""
        return next((key for key in item.keys if key in self._committed), None)

    def _running(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.state == "running"]

    def _unfinished(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.state != "done"]

    def _release(self, node: Node, *, has_committed: bool = False) -> None:
        if node.lease is not None:
            lease, node.lease = node.lease, None
            with contextlib.suppress(StoreError):  # it goes stale by itself
                lease.release(has_committed=has_committed)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """First Ctrl-C (or SIGTERM): running steps save and leave. Second: they are cancelled."""
        self._num_interrupts += 1
        if self._num_interrupts > 1:
            raise KeyboardInterrupt
        self._is_stopping = True
        self._display.say("stopping: running steps save their work; interrupt again to cancel them")
        self._backend.request_stop()

    def _close(self) -> None:
        self._backend.close()
        for node in self._running():
            node.state = "stopped"
            self._release(node)
        self._leases.close()

    def _conclude(self) -> int:
        for key, failure in self.failures.items():
            node = self._nodes[key]
            self._display.complain(obituary(node.step.name, node.num_attempts, failure, self._store))
        states = [node.state for node in self._nodes.values()]
        if all(state == "done" for state in states):
            return 0
        count = {state: states.count(state) for state in get_args(State) if state in ENDINGS}
        self._display.complain(summary(len(states), count))
        self._display.complain(f"to go on:  {self._command}")
        return 1


def _makes(step: Step[Any], item: Input[Any]) -> bool:
    """Whether a run of `step` may commit what `item` reads; of a trajectory, a leg makes what lies on it."""
    if step.digest != item.digest:
        return False
    if item.milestone is None or step.until is None:
        return True
    start = step.predecessor
    begins = start.milestone if start is not None and start.digest == step.digest else None
    return (begins is None or begins < item.milestone) and item.milestone <= step.until
