"""Request polling: how running attempts and their driver see new requests, and reply to them.

Requests are advice. A store that does not answer stops no step; each way in which it fails is reported once.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Holder
from marin_dag.ledger.requests import END, PUBLISH, STOP, Request, Requests
from marin_dag.plan.milestones import not_requested
from marin_dag.run.frontier import Frontier, Node
from marin_dag.run.live import LineDisplay

FoundT = TypeVar("FoundT")
OtherT = TypeVar("OtherT")

POLL_SECONDS = 5.0
"""A look costs one listing below a short path."""


class _Polling:
    """Questions to the store about requests; a failure or a damaged request is reported once."""

    def __init__(self, requests: Requests, report: Callable[[str], object]) -> None:
        self._requests, self._report = requests, report
        self._reported: set[str] = set()
        self._known: set[str] = set()

    def _ask(self, ask: Callable[[], FoundT], otherwise: OtherT) -> FoundT | OtherT:
        found: FoundT | OtherT
        messages: list[str] = []
        try:
            found = ask()
            messages += self._requests.damaged.values()
        except (UserError, OSError) as error:
            messages.append(f"requests cannot be read or answered ({type(error).__name__}: {error}); steps continue")
            found = otherwise
        for message in messages:
            if message not in self._reported:
                self._reported.add(message)
                self._report(message)
        return found


class AttemptRequests(_Polling):
    """Requests to one attempt. Its thread starts when the step first asks: most steps end before that.

    `old` are the ids of the requests from before the driver started. The attempt follows only those about milestones.
    """

    def __init__(
        self, requests: Requests, digest: str, attempt: str, log: logging.Logger, *, old: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(requests, lambda text: log.warning("%s", text))
        self._digest, self._attempt, self._log, self._old = digest, attempt, log, old
        self._lock = threading.Lock()
        self._pending: tuple[Request, ...] = ()
        self._replies: list[Callable[[], object]] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def stop(self) -> Request | None:
        return next((request for request in self._polled() if request.action == STOP), None)

    def others(self) -> Sequence[Request]:
        """Return the other requests that have no reply yet, oldest first."""
        return [request for request in self._polled() if request.action != STOP]

    def reply(self, request: Request, text: str, *, is_declined: bool = False) -> None:
        """Reply to a request; the thread writes the reply at its next look."""
        self._log.info("%s; reply: %s", request.text, text)
        with self._lock:
            self._pending = tuple(other for other in self._pending if other.id != request.id)
            write = functools.partial(self._requests.reply, request, self._attempt, text, is_declined=is_declined)
            self._replies.append(write)

    def close(self, *, to_stop: str = "", to_others: str = "") -> None:
        """End the thread and reply to what is pending; "" leaves a request to the next attempt.

        `to_others` declines all other requests than a stop.
        """
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        for request in self._pending:
            text = to_stop if request.action == STOP else to_others
            if text:
                self.reply(request, text, is_declined=request.action != STOP)
        self._write_replies()

    def _polled(self) -> tuple[Request, ...]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._poll, name="polls for requests", daemon=True)
            self._thread.start()
        return self._pending

    def _poll(self) -> None:
        while not self._ended.is_set():
            self._look()
            self._write_replies()
            self._ended.wait(POLL_SECONDS)

    def _look(self) -> None:
        new = self._ask(lambda: self._requests.of(self._digest, known=self._known), ())
        replied = self._ask(lambda: self._requests.replied(self._digest), None) if new else frozenset()
        if replied is None:
            return
        self._known |= {request.id for request in new}
        # A stop that another attempt replied to still counts: that attempt ended because of it.
        open_requests = [request for request in new if request.id not in replied or request.action == STOP]
        # A milestone is wanted of any later attempt, too.
        outdated = [request for request in open_requests if request.id in self._old and request.milestone is None]
        with self._lock:
            self._pending += tuple(request for request in open_requests if request not in outdated)
        for request in outdated:
            if request.id not in replied:
                self.reply(request, "no attempt saw it; a driver that started later continues", is_declined=True)

    def _write_replies(self) -> None:
        while self._replies:
            if self._ask(self._replies[0], False) is False:
                return  # tried again at the next look
            with self._lock:
                self._replies.pop(0)


class DriverRequests(_Polling):
    """Requests to the steps of one driver that no attempt runs yet, and its own requests to attempts of other drivers.

    `name` is the name of a detached run, or "".
    """

    def __init__(self, requests: Requests, frontier: Frontier, display: LineDisplay, name: str) -> None:
        super().__init__(requests, display.say)
        self._frontier, self._display, self._name = frontier, display, name
        self.old: frozenset[str] = frozenset()
        """Ids of the requests that were there when the driver started."""
        self.is_asked_to_end = False
        """Whether the detached run is to cancel running steps, as at a second Ctrl-C."""
        self._stops: dict[str, Request] = {}
        self._new_stops: dict[str, Request] = {}
        """Stops that have not been passed to waiting steps yet, by digest."""
        self._last_look = time.monotonic()

    def start(self) -> None:
        """Note the requests that are there already as old, except those to this very run while it was starting."""
        self.old = self._ask(self._requests.ids, frozenset())
        own = self._ask(lambda: self._requests.of(self._name), ()) if self._name else ()
        self._known |= self.old - {request.id for request in own}

    def stop_waiting_steps(self, nodes: Iterable[Node], *, withdraw: Callable[[str], None]) -> None:
        """Stop the nodes that were asked to stop and that no attempt runs; look for requests every POLL_SECONDS."""
        if time.monotonic() - self._last_look >= POLL_SECONDS:
            self._look()
        if not self._new_stops:
            return
        stops, self._new_stops = self._new_stops, {}
        asked = [node for node in nodes if node.step.digest in stops]
        has_attempt = {node.step.digest for node in asked if node.state == "running" and node.has_started}
        for node in asked:
            if node.state == "running" and not node.has_started:
                node.stop_request = stops[node.step.digest]
                withdraw(node.step.key)
            elif node.state == "waiting" and not node.is_elsewhere:
                self.stop_unstarted(node, stops[node.step.digest], has_reply=node.step.digest in has_attempt)

    def stop_unstarted(self, node: Node, stop: Request, *, has_reply: bool = False) -> None:
        """Mark a step that no attempt of this driver runs as stopped, and reply to the request."""
        self._frontier.move(node, "stopped")
        self._display.event(node.step.name, "stopped", stop.text)
        if not has_reply:
            self._ask(lambda: self._requests.reply(stop, "", "not started, or not started again"), None)

    def stop_of(self, digest: str) -> Request | None:
        """Return the request to stop that step since the driver started; looks now."""
        self._look()
        return self._stops.get(digest)

    def wanted_milestones(self, digest: str) -> frozenset[int]:
        """Return the milestones that people asked the run `digest` to publish."""
        return self._ask(lambda: self._requests.wanted_milestones(digest), frozenset())

    def request_milestones(self, holder: Holder, step: Step[Any], wanted: Sequence[int]) -> bool:
        """Ask another driver's attempt for the `wanted` milestones; return False if the store did not answer."""

        def request() -> bool:
            reasons = not_requested(holder, step, wanted)
            asked = self._requests.wanted_milestones(step.digest) if reasons else frozenset()
            for reason in reasons:
                if not reason.takes_requests:
                    self._display.say(str(reason))
                elif reason.wanted not in asked:
                    why = "another driver needs it"
                    self._requests.send(step.digest, holder.name, PUBLISH, milestone=reason.wanted, reason=why)
                    where = f"{holder.name}, running on {reason.where}"
                    self._display.say(f"{where}, is asked to publish step {reason.wanted:,}")
            return True

        return self._ask(request, False)

    def _look(self) -> None:
        self._last_look = time.monotonic()
        new = self._ask(lambda: self._requests.of_all(known=self._known), ())
        self._known |= {request.id for request in new}
        self.is_asked_to_end |= any(request.action == END and request.digest == self._name for request in new)
        for request in new:
            if request.action == STOP and request.digest not in self._stops:
                self._stops[request.digest] = self._new_stops[request.digest] = request
