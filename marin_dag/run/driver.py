"""The driver: starts what is ready, goes on where it can, and ends with every output either committed or resumable."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from pydantic import ValidationError

from marin_dag.errors import UserError
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Step
from marin_dag.graph.step_sources import sources_of
from marin_dag.ledger.epoch import LeaseLostError
from marin_dag.ledger.lease import Held, Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import collect_provenance
from marin_dag.ledger.records import Failure, Record, Records, first_lines
from marin_dag.ledger.requests import Tellings
from marin_dag.ledger.source_archive import SourceArchive
from marin_dag.plan.wanted_milestones import WantedMilestones, wanted_milestones
from marin_dag.run.attempt import failure_of
from marin_dag.run.backend import Backend
from marin_dag.run.frontier import Frontier
from marin_dag.run.interrupts import heard
from marin_dag.run.live import Display
from marin_dag.run.node import Node, PreemptedError
from marin_dag.run.obituary import last_words
from marin_dag.run.orders import Orders
from marin_dag.run.run_hearing import RunHearing
from marin_dag.run.setbacks import Setbacks
from marin_dag.run.task import Outcome, Task
from marin_dag.store.retry import patiently
from marin_dag.store.store import Store, StoreError

POLL_SECONDS = 0.2
ELSEWHERE_POLL_SECONDS = 2.0
QUEUED_SECONDS = 10.0
"""A step that has not begun so long after it was handed over is told to wait for its resources."""


class Run:
    """One run of some steps of one graph, from first to last.

    Args:
        steps: what may run, in any order; what of it is committed already is left alone.
        store: where records and outputs are.
        backend: where attempts run; started only if something is to run.
        display: what the user sees.
        command: what the user types to go on after a failure.
        command_to_force: what the user types to make the output of one step again, by its name.
        back_off_seconds: the wait before the second attempt; it doubles.
        force: keys of committed steps to run again; they must give the same files, and the record stays what it was.
        wanted: what trajectories are to publish on their way, for others than `steps` too; None is for these alone.
        on_committed: called with the key of each output that is committed, and of each milestone, when it is published.
        name: of a detached run; a second `stop` is told by it, for Ray hands a job one signal and no more.
        notice_seconds: what the scheduler gives before it kills, for the steps to know; None is not known.
    """

    def __init__(
        self,
        steps: Sequence[Step[Any]],
        store: Store,
        backend: Backend,
        display: Display,
        *,
        command: str,
        command_to_force: Callable[[str], str] | None = None,
        back_off_seconds: float = 2.0,
        force: frozenset[str] = frozenset(),
        wanted: WantedMilestones | None = None,
        on_committed: Callable[[str], None] = lambda key: None,
        name: str = "",
        notice_seconds: float | None = None,
    ) -> None:
        self._store = store
        self._backend = backend
        self._display = display
        self._command = command
        self._command_to_force = command_to_force or (lambda name: f"{command} --force {name} --until {name}")
        self._records = Records(store)
        self._leases = Leases(store)
        self._nodes = {step.key: Node(step) for step in reversed(steps)}
        self._nodes = {step.key: self._nodes[step.key] for step in steps}
        self._frontier = Frontier(self._nodes.values(), backend.max_alike)
        self._committed = self._frontier.committed
        self._hearing = RunHearing(Tellings(store), self._frontier, display, name)
        self._setbacks = Setbacks(store, self._frontier, display, back_off_seconds=back_off_seconds)
        self._ended_leases: list[Lease] = []
        self._num_interrupts = 0
        self._has_begun = self._is_stopping = self._is_closing = False
        self._on_committed = on_committed
        self._orders = Orders(
            store,
            self._committed,
            forced=force,
            wanted=wanted_milestones(steps) if wanted is None else wanted,
            notice_seconds=notice_seconds,
        )

    def run(self) -> int:
        """0 if all steps are committed in the end, else 1."""
        for key in self._records.committed_keys():
            self._frontier.commit(key)
        self._hearing.begin()
        for node in self._nodes.values():
            if node.step.key in self._committed and not self._orders.is_forced(node.step):
                self._frontier.move(node, "done")
        if self._frontier.is_finished:
            return 0
        self._provenance = collect_provenance(self._store)
        SourceArchive(self._store).keep(sources_of(node.step for node in self._unfinished()))
        with heard(self._on_signal) as listen_again:
            with self._display:
                self._display.begin([node.step.name for node in self._unfinished()])
                try:
                    if self._backend.announcement:
                        self._display.say(self._backend.announcement)
                    greeting = self._backend.start(self, self._asked_for())
                    listen_again()
                    self._has_begun = True
                    if greeting:
                        self._display.say(greeting)
                    self._loop()
                except (KeyboardInterrupt, SystemExit) as ended:
                    # What starts Ray hears SIGTERM by Ray's own handler.
                    self._num_interrupts += isinstance(ended, SystemExit)
                    self._display.say("interrupted; what was running is cancelled, what was finished is kept")
                finally:
                    self._is_closing = True
                    self._close()
            return self._conclude()

    def on_started(self, key: str) -> None:
        """See Listener."""
        node = self._nodes.get(key)
        if node is not None and node.state == "running" and not node.has_started:
            self._note_start(node)
            again = "" if node.num_attempts == 1 else f"attempt {node.num_attempts}"
            self._display.event(node.step.name, "started", again)

    def _note_start(self, node: Node) -> None:
        node.has_started = True
        if node.lease is not None:
            node.lease.has_started = True

    def on_progress(self, key: str, progress: Progress) -> None:
        """See Listener."""
        # News travel another way than outcomes: those of an attempt that has ended would say that it still runs.
        if key in self._nodes and self._nodes[key].state == "running":
            lease = self._nodes[key].lease
            if lease is not None:
                lease.progress = progress
            self._display.progress(self._nodes[key].step.name, progress)

    def on_published(self, key: str) -> None:
        """See Listener."""
        self._frontier.commit(key)
        self._on_committed(key)
        if key in self._nodes and self._nodes[key].state == "waiting":
            self._done(self._nodes[key], "published by a run of its trajectory")

    def on_remark(self, text: str) -> None:
        """See Listener."""
        self._display.say(text)

    def _loop(self) -> None:
        while not self._frontier.is_finished:
            self._hearing.heed_new_stops(self._nodes.values(), withdraw=self._backend.withdraw)
            self._block()
            if not self._is_stopping:
                self._start_what_is_ready()
            elif not self._frontier.running:
                return
            elif self._hearing.is_told_to_end:
                raise KeyboardInterrupt
            self._release_what_has_ended()  # while those that waited for it run already
            for outcome in self._backend.wait(POLL_SECONDS):
                self._take(outcome)
            self._tell_what_is_queued()

    def _asked_for(self) -> dict[str, Resources]:
        """Of the machines of this run, by step; what another run makes is waited for, whatever it takes."""
        elsewhere: dict[str, Held] = {}
        try:
            elsewhere = patiently(self._leases.running)
        except StoreError as error:
            self._display.say(f"whether other runs make some of it cannot be seen: {first_lines(error)}")
        return {n.step.name: n.step.resources for n in self._unfinished() if n.step.digest not in elsewhere}

    def _tell_what_is_queued(self) -> None:
        for node in self._frontier.running.values():
            waits = not node.has_started and time.monotonic() - node.handed_over > QUEUED_SECONDS
            if waits and not node.is_told_queued:
                node.is_told_queued = True
                self._display.event(node.step.name, "queued", f"waits for {node.step.resources}")

    def _start_what_is_ready(self) -> None:
        for node in self._frontier.ready(time.monotonic()):
            if len(self._frontier.running) >= self._backend.max_running or self._is_stopping:
                return
            try:
                self._start(node)
            except (UserError, ValidationError, ImportError) as error:
                if not self._setbacks.is_postponed(node, error):
                    self._setbacks.fail(node, failure_of(self._task(node, 0, None), error))

    def _start(self, node: Node) -> None:
        key = node.step.key
        there = {item.keys: self._frontier.key_there(item) for _, item in node.step.inputs}
        needs = tuple(key for key in there.values() if key is not None)
        got = self._leases.acquire(
            node.step.digest,
            node.step.name,
            lambda: self._backend.cancel(key),
            needs=needs,
            milestones=self._orders.milestones(node),
        )
        if isinstance(got, Held):
            if not node.is_elsewhere:
                node.is_elsewhere = True
                self._display.event(node.step.name, "elsewhere", got.holder.description)
            if not node.has_told and not got.holder.does:  # a copier publishes nothing new
                node.has_told = self._hearing.tell(got.holder, node.step, self._orders.milestones(node))
            node.not_before = time.monotonic() + ELSEWHERE_POLL_SECONDS
            self._sees_what_others_committed()  # the holder may publish what steps of this run start from
            if not self._orders.is_forced(node.step) and self._records.find(key) is not None:
                self._done(node, "by another run")
            return
        was_anothers = node.is_elsewhere or node.num_attempts > 0
        node.lease, node.is_elsewhere = got, False
        try:
            # Asked again under the lease: another run may have committed it and left since this one looked.
            if not self._orders.is_forced(node.step) and self._records.find(key) is not None:
                self._done(node, "by another run")
                return
            if node.step.until is not None or was_anothers:
                stop = self._hearing.stop_of(node.step.digest)
                if stop is not None:  # another attempt, or another leg, has left for it
                    self._release(node)
                    self._hearing.stop_unbegun(node, stop)
                    return
            if node.step.until is not None:
                node.told_to_publish = self._hearing.to_publish(node.step.digest)
            records = {keys: self._records.get(key) for keys, key in there.items() if key is not None}
            if self._is_stopping:  # since it was found ready; the reads take their time
                self._release(node)
                return
            self._backend.submit(self._task(node, got.epoch, records))
        except BaseException:
            self._release(node)
            raise
        node.num_attempts += 1
        node.num_postponed = 0
        node.has_started, node.is_told_queued = False, False
        node.handed_over = time.monotonic()
        self._frontier.move(node, "running")

    def _task(self, node: Node, epoch: int, records: Mapping[tuple[str, ...], Record] | None) -> Task:
        return self._orders.task(node, epoch, records, self._provenance, self._hearing.old)

    def _take(self, outcome: Outcome) -> None:
        node = self._nodes[outcome.task.key]
        if outcome.status == "done" and node.num_attempts > 1:  # which says that it was another try
            self.on_started(outcome.task.key)
        elif outcome.status == "done":  # of a quick step nobody was told that it began, and its end says all
            self._note_start(node)
        lost = node.lease is not None and node.lease.is_lost
        # The attempt may meet its successor's claim at its commit, before the next heartbeat does.
        lost = lost or (outcome.failure is not None and outcome.failure.error_type == LeaseLostError.__qualname__)
        if outcome.status == "done":
            self._release_later(node)
            self._done(node, outcome.remark)
            return
        self._release(node)
        if lost and self._is_stopping:
            self._frontier.move(node, "stopped")
            self._display.event(node.step.name, "lost", "somebody else has taken it over")
        elif lost:
            self._frontier.move(node, "waiting")
            self._display.event(node.step.name, "lost", "somebody else has taken it over; waiting for that to end")
        elif outcome.status != "failed" and node.told_to_stop is not None and not node.has_started:
            self._hearing.stop_unbegun(node, node.told_to_stop)
        elif outcome.status == "failed" and outcome.failure is not None:
            self._setbacks.retry_or_fail(node, outcome.failure, is_stopping=self._is_stopping)
        elif outcome.status == "stopped" and not self._is_stopping and not outcome.is_told_to_stop:
            said = "asked to stop by somebody else than this driver; a preempted machine?"
            kept = "Forced, it begins anew" if outcome.task.is_forced else "Its work so far is kept"
            said += f" {kept}: {outcome.stopped_at}" if outcome.stopped_at else ""
            failure = failure_of(outcome.task, PreemptedError(said))
            self._setbacks.retry_or_fail(node, failure, is_stopping=self._is_stopping)
        else:
            self._frontier.move(node, "stopped")
            said = "its work so far is kept" if node.has_started else "before it began"
            said = "run again with --force, it begins anew" if outcome.task.is_forced and node.has_started else said
            said += f": {outcome.stopped_at}" if outcome.stopped_at else ""
            self._display.event(node.step.name, "stopped", said)

    @property
    def failures(self) -> Mapping[str, Failure]:
        """Of the steps that failed for good, by key."""
        return self._setbacks.failures

    @property
    def was_interrupted(self) -> bool:
        """Whether the user asked it to stop."""
        return self._num_interrupts > 0

    def _done(self, node: Node, how: str) -> None:
        self._release(node)
        self._frontier.commit(node.step.key)
        self._on_committed(node.step.key)
        self._frontier.move(node, "done")
        self._display.event(node.step.name, "done", how)

    def _block(self) -> None:
        """Marks what can no longer run, so that the rest may end."""
        has_looked = False
        while suspects := self._frontier.take_suspects():
            for node in suspects:
                reason = self._obstacle(node)
                if reason is not None and not has_looked:  # once: there may be thousands
                    has_looked = True
                    self._sees_what_others_committed()
                    reason = self._obstacle(node)
                if reason is not None:
                    node.obstacle = reason
                    self._frontier.move(node, "blocked")
                    self._display.event(node.step.name, "blocked", reason)

    def _obstacle(self, node: Node) -> str | None:
        return self._frontier.obstacle(node.step, is_stopping=self._is_stopping)

    def _sees_what_others_committed(self) -> bool:
        """Whether there are records that this run was not told of: of other drivers, or of the attempt of a killed one
        that the next holder of its lease carried out."""
        try:
            found = patiently(self._records.committed_keys) - self._committed
        except StoreError as error:
            self._display.say(f"whether others have made what is missing cannot be seen: {first_lines(error)}")
            return False
        for key in found:
            self._frontier.commit(key)
        return bool(found)

    def _unfinished(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.state != "done"]

    def _release(self, node: Node) -> None:
        if node.lease is not None:
            lease, node.lease = node.lease, None
            with contextlib.suppress(StoreError):  # it goes stale by itself
                lease.release()

    def _release_later(self, node: Node) -> None:
        """Of a step that has committed: nobody waits for its lease but another leg of its trajectory."""
        if node.lease is not None:
            self._ended_leases.append(node.lease)
            node.lease = None
            if node.step.until is not None:
                self._release_what_has_ended()

    def _release_what_has_ended(self) -> None:
        while self._ended_leases:
            with contextlib.suppress(StoreError):  # it goes stale by itself
                self._ended_leases.pop().release(has_committed=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """First Ctrl-C (or SIGTERM, SIGUSR2): running steps save and leave. Second, or before any runs: all ends."""
        self._num_interrupts += 1
        self._is_stopping = True
        if self._num_interrupts == 2 and self._is_closing:
            return  # all has stopped before it was asked to at once; what is left is to say how to go on
        if self._num_interrupts > 1 or not (self._has_begun or self._is_closing):
            raise KeyboardInterrupt
        running = "running steps save their work; interrupt again to cancel them"
        self._backend.request_stop()
        self._display.say(f"stopping: {running if self._frontier.running else 'nothing runs'}")

    def _close(self) -> None:
        self._backend.close()
        self._release_what_has_ended()
        for node in list(self._frontier.running.values()):
            self._frontier.move(node, "stopped")
            self._display.event(node.step.name, "stopped", "cancelled" if node.has_started else "before it began")
            self._release(node)
        self._leases.close()

    def _conclude(self) -> int:
        nodes = list(self._nodes.values())
        for line in last_words(nodes, self.failures, self._store, self._command, self._command_to_force):
            self._display.complain(line)
        return 0 if all(node.state == "done" for node in nodes) else 1
