"""Driver: starts the steps that are ready, retries, and ends with every output committed or resumable."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from pydantic import ValidationError

from marin_dag.errors import UserError
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Step
from marin_dag.ledger.epoch import LeaseLostError
from marin_dag.ledger.lease import Held, Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import collect_provenance
from marin_dag.ledger.records import Record, Records, first_lines, new_attempt
from marin_dag.ledger.requests import Requests
from marin_dag.ledger.source_archive import SourceArchive
from marin_dag.plan.milestones import WantedMilestones, earlier_milestones, still_wanted, wanted_milestones
from marin_dag.run.frontier import Frontier, Node, State
from marin_dag.run.interrupts import signals_handled
from marin_dag.run.live import LineDisplay
from marin_dag.run.request_polling import DriverRequests
from marin_dag.run.retries import Retries, preemption
from marin_dag.run.task import Backend, Outcome, Task, bound_config
from marin_dag.store.retry import patiently
from marin_dag.store.store import Store, StoreError

POLL_SECONDS = 0.2
ELSEWHERE_POLL_SECONDS = 2.0
QUEUED_SECONDS = 10.0
"""A step that has not started this long after it was submitted is shown as queued."""


@dataclasses.dataclass(eq=False)
class Run:
    """A driver's run of some steps of a graph; committed steps are left alone."""

    steps: Sequence[Step[Any]]
    store: Store
    backend: Backend
    """Runs attempts; started only if a step is to run."""
    display: LineDisplay
    command: str
    """The command that continues after a failure."""
    command_to_force: Callable[[str], str] = lambda name: f"--force {name} --until {name}"
    """Returns the command that makes the output of one step again, by its name."""
    back_off_seconds: float = 2.0
    """The pause before the second attempt; it doubles."""
    force: frozenset[str] = frozenset()
    """Keys of committed steps to run again; their files must be the same, and their records stay."""
    wanted: WantedMilestones | None = None
    """Milestones that the steps publish on the way; None means those that other steps of `steps` need."""
    on_committed: Callable[[str], None] = lambda key: None
    """Called with the key of each committed output and published milestone."""
    name: str = ""
    """Name of a detached run. It gets its second `stop` as a request, because Ray passes on only one signal."""
    notice_seconds: float | None = None
    """Seconds between the scheduler's signal and its kill; None if unknown."""

    def __post_init__(self) -> None:
        self._records = Records(self.store)
        self.warned: dict[str, Record] = {}
        """The outputs that this driver's steps made and warned about, by step."""
        self._leases = Leases(self.store)
        first_of_key = {step.key: step for step in reversed(self.steps)}
        self._nodes = {step.key: Node(first_of_key[step.key]) for step in self.steps}
        self._frontier = Frontier(self._nodes.values(), self.backend.max_alike)
        self._committed = self._frontier.committed
        self._requests = DriverRequests(Requests(self.store), self._frontier, self.display, self.name)
        self._retries = Retries(self.store, self._frontier, self.display, self.back_off_seconds)
        self.failures = self._retries.failures
        """Failures of the steps that will not be retried, by key."""
        self._leases_to_release: list[Lease] = []
        self._num_interrupts = 0
        self._has_started = self._is_stopping = self._is_closing = False
        self._wanted = wanted_milestones(self.steps) if self.wanted is None else self.wanted

    @property
    def was_interrupted(self) -> bool:
        return self._num_interrupts > 0

    def run(self) -> int:
        """Run the steps; return 0 if all are committed or skipped in the end, else 1."""
        for key in self._records.committed_keys():
            self._frontier.commit(key)
        self._requests.start()
        for node in self._nodes.values():
            if node.step.key in self._committed and node.step.key not in self.force:
                self._frontier.move(node, "done")
        if self._frontier.is_finished:
            return 0
        self._provenance = collect_provenance(self.store)
        SourceArchive(self.store, [node.step for node in self._unfinished()]).keep()
        with signals_handled(self._on_signal) as install_handlers_again:
            with self.display:
                self.display.begin([node.step.name for node in self._unfinished()])
                try:
                    self.backend.start(self, self._requested_resources())
                    install_handlers_again()
                    self._has_started = True
                    self._loop()
                except (KeyboardInterrupt, SystemExit) as ended:
                    # While Ray starts, its own handler turns SIGTERM into SystemExit.
                    self._num_interrupts += isinstance(ended, SystemExit)
                    self.display.say("interrupted: running steps are cancelled, finished work is kept")
                finally:
                    self._is_closing = True
                    self._close()
            return self._conclude()

    def started(self, key: str) -> None:
        node = self._frontier.running.get(key)
        if node is not None and not node.has_started:
            node.has_started = True
            if node.lease is not None:
                node.lease.has_started = True
            detail = "" if node.num_attempts == 1 else f"attempt {node.num_attempts}"
            self.display.event(node.step.name, "started", detail)

    def report(self, key: str, progress: Progress) -> None:
        node = self._frontier.running.get(key)
        if node is not None:  # progress may arrive after the outcome of its attempt
            if node.lease is not None:
                node.lease.progress = progress
            self.display.progress(node.step.name, progress)

    def published(self, key: str) -> None:
        self._frontier.commit(key)
        self.on_committed(key)
        for node in self._frontier.fallen_behind():
            self._frontier.move(node, "skipped")
            self.display.event(node.step.name, "skipped", "newer milestones wait; the next run makes it")
        if key in self._nodes and self._nodes[key].state == "waiting":
            self._done(self._nodes[key], "published by another step of its run")

    def say(self, text: str) -> None:
        self.display.say(text)

    def _loop(self) -> None:
        while not self._frontier.is_finished:
            self._requests.stop_waiting_steps(self._nodes.values(), withdraw=self.backend.withdraw)
            self._block()
            if not self._is_stopping:
                self._start_ready()
            elif not self._frontier.running:
                return
            elif self._requests.is_asked_to_end:
                raise KeyboardInterrupt
            self._release_ended()  # while the steps that were waiting for the outputs run already
            for outcome in self.backend.wait(POLL_SECONDS):
                self._take(outcome)
            self._show_queued()

    def _requested_resources(self) -> dict[str, Resources]:
        """Return the resources of the steps by name, without steps that another driver makes."""
        elsewhere: dict[str, Held] = {}
        try:
            elsewhere = patiently(self._leases.running)
        except StoreError as error:
            self.display.say(f"cannot see which steps other drivers run: {first_lines(error)}")
        return {n.step.name: n.step.resources for n in self._unfinished() if n.step.digest not in elsewhere}

    def _show_queued(self) -> None:
        now = time.monotonic()
        for node in self._frontier.running.values():
            if not (node.has_started or node.is_shown_queued) and now - node.submitted > QUEUED_SECONDS:
                node.is_shown_queued = True
                self.display.event(node.step.name, "queued", f"waits for {node.step.resources}")

    def _start_ready(self) -> None:
        for node in self._frontier.ready(time.monotonic()):
            if len(self._frontier.running) >= self.backend.max_running or self._is_stopping:
                return
            try:
                self._start(node)
            except (UserError, ValidationError, ImportError) as error:
                if not self._retries.postpone(node, error):
                    self._retries.fail(node, self._task(node, 0, None).failure_of(error))

    def _start(self, node: Node) -> None:
        key = node.step.key
        needs = {item.keys: self._frontier.key_there(item) for _, item in node.step.inputs}
        got = self._leases.acquire(
            node.step.digest,
            node.step.name,
            lambda: self.backend.cancel(key),
            needs=tuple(key for key in needs.values() if key is not None),
            milestones=self._milestones(node),
        )
        if isinstance(got, Held):
            self._wait_for(node, got)
            return
        may_have_stopped = node.is_elsewhere or node.num_attempts > 0 or node.step.until is not None
        node.lease, node.is_elsewhere = got, False
        try:
            # Look again under the lease: another driver may have committed and left since the first look.
            if self._is_committed(node):
                self._done(node, "by another driver")
                return
            stop = self._requests.stop_of(node.step.digest) if may_have_stopped else None
            if stop is not None:  # another attempt at the step has ended because of it
                self._requests.stop_unstarted(node, stop)
                return
            if node.step.until is not None:
                node.requested_milestones = self._requests.wanted_milestones(node.step.digest)
            # From the store, after the lease: `gc` deletes a record and then asks which running steps need it.
            records = {keys: self._records.get(key) for keys, key in needs.items() if key is not None}
            if self._is_stopping:  # since the step was ready; the reads take time
                return
            self.backend.submit(self._task(node, got.epoch, records))
            node.num_attempts += 1
            node.num_postponed = 0
            node.has_started, node.is_shown_queued = False, False
            node.submitted = time.monotonic()
            self._frontier.move(node, "running")
        finally:
            if node.state != "running":
                self._release(node)

    def _wait_for(self, node: Node, held: Held) -> None:
        """Note that another driver runs the step, and ask its attempt for the milestones that this one needs."""
        if not node.is_elsewhere:
            node.is_elsewhere = True
            self.display.event(node.step.name, "elsewhere", held.holder.description)
        if not node.has_requested and not held.holder.does:  # a copier publishes nothing
            node.has_requested = self._requests.request_milestones(held.holder, node.step, self._milestones(node))
        node.not_before = time.monotonic() + ELSEWHERE_POLL_SECONDS
        self._find_new_commits()  # the holder may publish what steps of this driver start from
        if self._is_committed(node):
            self._done(node, "by another driver")

    def _is_committed(self, node: Node) -> bool:
        return node.step.key not in self.force and self._records.find(node.step.key) is not None

    def _milestones(self, node: Node) -> tuple[int, ...]:
        """Return what an attempt is to publish: milestones on the way, then its own end."""
        return self._on_the_way(node) if node.step.until is None else (*self._on_the_way(node), node.step.until)

    def _on_the_way(self, node: Node) -> tuple[int, ...]:
        return still_wanted(self._wanted, node.step, self._committed, requested=node.requested_milestones)

    def _task(self, node: Node, epoch: int, records: Mapping[tuple[str, ...], Record] | None) -> Task:
        """Return a new attempt at a step; with no `records`, one that only names a failed start."""
        step = node.step
        is_rerun = step.key in self.force and step.key in self._committed
        on_the_way = earlier_milestones(step, self._committed) if is_rerun else self._on_the_way(node)
        return Task(
            prefix=self.store.prefix,
            name=step.name,
            kind=step.kind,
            digest=step.digest,
            milestone=step.until,
            identity=step.identity,
            config=step.config if records is None else bound_config(step.config, records, self.store.url),
            resources=step.resources,
            attempt=new_attempt(),
            lease_epoch=epoch,
            provenance=self._provenance,
            notice_seconds=self.notice_seconds,
            wanted_milestones=on_the_way,
            old_requests=self._requests.old,
            is_in_background=step.background is not None,
            is_forced=is_rerun,
        )

    def _take(self, outcome: Outcome) -> None:
        node = self._nodes[outcome.task.key]
        if outcome.status == "done":
            if not node.has_started:  # the outcome of a short step arrives before its start
                self.started(outcome.task.key)
                self.display.began(node.step.name, node.submitted)
            self._release_later(node)
            self._done(node, outcome.detail)
            if outcome.record is not None and outcome.record.warnings:
                self.warned[node.step.name] = outcome.record
                for warning in outcome.record.warnings:
                    self.display.say(f"{node.step.name}: warning: {warning.text}")
            return
        failure = outcome.failure
        # The attempt may see its successor's claim at its commit, before the next heartbeat does.
        saw_claim = failure is not None and failure.error_type == LeaseLostError.__qualname__
        is_lost = saw_claim or (node.lease is not None and node.lease.is_lost)
        self._release(node)
        if is_lost:
            self._frontier.move(node, "stopped" if self._is_stopping else "waiting")
            waits = "" if self._is_stopping else "; this driver waits for it"
            self.display.event(node.step.name, "lost", f"another driver has taken the step over{waits}")
        elif outcome.status != "failed" and node.stop_request is not None and not node.has_started:
            self._requests.stop_unstarted(node, node.stop_request)
        elif failure is not None:
            self._retries.retry_or_fail(node, failure, is_stopping=self._is_stopping)
        elif outcome.status == "stopped" and not self._is_stopping and not outcome.is_requested_stop:
            self._retries.retry_or_fail(node, preemption(outcome), is_stopping=self._is_stopping)
        else:
            self._frontier.move(node, "stopped")
            self.display.event(node.step.name, "stopped", outcome.kept if node.has_started else "before it started")

    def _done(self, node: Node, detail: str) -> None:
        self._release(node)
        self._frontier.commit(node.step.key)
        self.on_committed(node.step.key)
        self._frontier.move(node, "done")
        self.display.event(node.step.name, "done", detail)

    def _block(self) -> None:
        """Mark the steps that can no longer run as blocked, so that the driver ends when the others have.

        A background step is skipped: another run may already have passed the milestone that it reads.
        """
        has_looked = False
        while suspects := self._frontier.take_suspects():
            for node in suspects:
                reason = self._frontier.obstacle(node.step, is_stopping=self._is_stopping)
                if reason is not None and not has_looked:  # once: there may be thousands
                    has_looked = True
                    self._find_new_commits()
                    reason = self._frontier.obstacle(node.step, is_stopping=self._is_stopping)
                if reason is not None:
                    node.obstacle = reason
                    state: State = "blocked" if node.step.background is None else "skipped"
                    self._frontier.move(node, state)
                    self.display.event(node.step.name, state, reason)

    def _find_new_commits(self) -> None:
        """Note records of other drivers, and of killed attempts whose commit the next lease holder carried out."""
        try:
            found = patiently(self._records.committed_keys) - self._committed
        except StoreError as error:
            self.display.say(f"cannot see what other drivers have committed: {first_lines(error)}")
            return
        for key in found:
            self._frontier.commit(key)

    def _unfinished(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.state != "done"]

    def _release(self, node: Node) -> None:
        if node.lease is not None:
            lease, node.lease = node.lease, None
            with contextlib.suppress(StoreError):  # without heartbeats it goes stale
                lease.release()

    def _release_later(self, node: Node) -> None:
        """Release the lease of a committed step after the next steps have started, unless its run goes on."""
        if node.lease is not None:
            self._leases_to_release.append(node.lease)
            node.lease = None
            if node.step.until is not None:
                self._release_ended()

    def _release_ended(self) -> None:
        while self._leases_to_release:
            with contextlib.suppress(StoreError):  # without heartbeats it goes stale
                self._leases_to_release.pop().release(has_committed=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Let running steps save and stop at the first signal; end at the second, or before any step has started."""
        self._num_interrupts += 1
        self._is_stopping = True
        if self._num_interrupts == 2 and self._is_closing:
            return  # all steps have ended, and only the report is left
        if self._num_interrupts > 1 or not (self._has_started or self._is_closing):
            raise KeyboardInterrupt
        self.backend.request_stop()
        running = "running steps save their work; interrupt again to cancel them"
        self.display.say(f"stopping: {running if self._frontier.running else 'no step is running'}")

    def _close(self) -> None:
        self.backend.close()
        self._release_ended()
        for node in list(self._frontier.running.values()):
            self._frontier.move(node, "stopped")
            self.display.event(node.step.name, "stopped", "cancelled" if node.has_started else "before it started")
            self._release(node)
        self._leases.close()

    def _conclude(self) -> int:
        for line in self._retries.failure_lines(self.command, self.command_to_force):
            self.display.complain(line)
        return 0 if all(node.state in ("done", "skipped") for node in self._nodes.values()) else 1
