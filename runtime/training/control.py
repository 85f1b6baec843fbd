"""Control: turns signals, stop requests and requests of users into one decision between two training steps.

With several hosts, `agree` gives all hosts the largest decision of any host, at the same step: hosts that act on their
own flags hang in a collective save. A host that waits for data does not reach the agreement, so it polls `is_stopping`.
Meanwhile the main threads of the other hosts wait in the agreement and receive nothing; other threads poll the driver
and leave the notice that `is_stopping` reads.
"""

import contextlib
import enum
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from runtime.parallel.hosts import StopNotice
from runtime.training.background import repeated
from runtime.training.signals import handled

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""SIGTERM: what schedulers send before they kill. SIGUSR2: what Slurm sends ahead of the time limit."""
POLL_SECONDS = 1.0
"""How often the threads poll the driver and look whether to leave the notice."""
STEP_LIMIT = 2**48
"""Beyond any step."""

logger = logging.getLogger(__name__)


class Action(enum.IntEnum):
    """The next action of a run. Of several actions the largest wins; the others are decided again one step later."""

    CONTINUE = 0
    PROFILE = 1
    SAVE = 2
    PUBLISH = 3
    SAVE_AND_EXIT = 4


class ControlRequest(NamedTuple):
    """A request of a user."""

    id: str
    action: Action
    """PROFILE, SAVE or PUBLISH."""
    step: int | None
    """The step to publish; None is the next one."""
    origin: str
    """The user and the reason, for the event log."""
    reply: Callable[[str], None]
    """Takes one line: how the request is or will be carried out. Called once, unless `refuse` is."""
    refuse: Callable[[str], None]
    """Takes one line: why the request will not be carried out."""


class Decision(NamedTuple):
    """The action of all hosts before the next training step."""

    action: Action
    step: int = 0
    requests: tuple[ControlRequest, ...] = ()
    """Requests to this host that the decision carries out."""

    @property
    def number(self) -> int:
        """The number that hosts agree on; a larger action has a larger number."""
        return self.action * STEP_LIMIT + self.step

    def reply(self, text: str) -> None:
        for request in self.requests:
            request.reply(text)

    def reply_published(self, step: int, path: str) -> None:
        """Reply to requests for the very next step once it is saved: a later attempt would not know of them."""
        if self.action == Action.PUBLISH and self.step == step:
            self.reply(f"published step {step:,}: {path}")

    def refuse(self, text: str) -> None:
        for request in self.requests:
            request.refuse(text)


class Control:
    """Collects signals, the driver's stop requests and the requests of users."""

    def __init__(
        self,
        stop_reason: Callable[[], str] = lambda: "",
        *,
        requests: Callable[[], Sequence[ControlRequest]] = lambda: (),
        agree: Callable[[int], int] = lambda number: number,
        notice: StopNotice | None = None,
        kept_handlers: tuple[type, ...] = (),
    ) -> None:
        """Read requests from these functions.

        Args:
            stop_reason: returns why the driver stops the run, or ""; with a notice, a thread calls it too.
            requests: returns the requests without a reply.
            agree: maps the number of this host's decision to that of all hosts.
            notice: informs hosts that wait for data, where there are several hosts.
            kept_handlers: classes of signal handlers that stay active.
        """
        self._stop_reason = stop_reason
        self._requests = requests
        self._taken: set[str] = set()
        """Ids of the requests that have a reply, or will get one."""
        self._polling = threading.Lock()
        self._agree = agree
        self._notice = notice
        self._kept_handlers = kept_handlers
        self._is_exit_requested = False  # set from any thread and from signal handlers, in one assignment
        self._is_exit_agreed = False
        self.reason = ""
        """Why the run stops, for the event log."""

    def request_exit(self, reason: str) -> None:
        """Request a stop, from any thread or signal handler; a request is final."""
        if not self._is_exit_requested:
            self.reason = reason  # first: a thread that sees the flag may read the reason
            self._is_exit_requested = True

    def decide(self, step: int, *, until_step: int, is_save_due: bool = False) -> Decision:
        """Return what to do before the training step after `step`; all hosts call it once for each step.

        `is_save_due` comes from the clock of this host, which other hosts do not share.
        """
        self._poll_driver()
        wanted = self._wanted(step, until_step)
        if self._is_exit_requested:
            wanted = Decision(Action.SAVE_AND_EXIT)
        elif wanted.action == Action.CONTINUE and is_save_due:
            wanted = Decision(Action.SAVE)
        action, of_step = divmod(self._agree(wanted.number), STEP_LIMIT)
        if action == Action.SAVE_AND_EXIT:
            self._is_exit_agreed = True
            self.request_exit("another host has to stop")
        if (action, of_step) != (wanted.action, wanted.step):
            return Decision(Action(action), of_step)  # what this host wants is decided again at the next step
        self._taken |= {request.id for request in wanted.requests}
        return wanted

    def _wanted(self, step: int, until_step: int) -> Decision:
        """Return what users request next; refuse what the run cannot do."""
        new = [request for request in self._requests() if request.id not in self._taken]
        for request in new:
            if request.action != Action.PUBLISH:
                continue
            of_step = step + 1 if request.step is None else request.step
            if step < of_step <= until_step:
                same = tuple(other for other in new if other[1:3] == request[1:3])
                return Decision(Action.PUBLISH, of_step, same)
            self._taken.add(request.id)
            past = f"step {of_step:,} is past; the run is at step {step:,}"
            ahead = f"this run stops at step {until_step:,}; a run that continues to {of_step:,} publishes it"
            request.refuse(ahead if of_step > until_step else past)
        for action in (Action.SAVE, Action.PROFILE):
            if same := tuple(request for request in new if request.action == action):
                return Decision(action, 0, same)
        return Decision(Action.CONTINUE)

    def is_stopping(self) -> bool:
        """Return, to a host that waits for its batch, whether any host has to stop; if so, call `decide` at once."""
        self._poll_driver()
        if not self._is_exit_requested and self._notice is not None and self._notice.is_left():
            # The host that left it may have made its decision for this step before; this host then has to stop too.
            self.request_exit("another host has to stop")
        return self._is_exit_requested

    @contextlib.contextmanager
    def listening(self) -> Iterator[bool]:
        """Handle signals inside the block; yield False outside of the main thread, which cannot.

        With a notice, threads poll the driver and inform the other hosts while this one waits for them.
        """
        with contextlib.ExitStack() as stack:
            if self._notice is not None:
                for poll, name in ((self._poll_quietly, "driver poll"), (self._leave_notice, "stop notice")):
                    stack.enter_context(repeated(poll, pause_seconds=lambda: POLL_SECONDS, name=name))
            is_main = threading.current_thread() is threading.main_thread()
            if is_main:
                stop = lambda number: self.request_exit(f"signal {number.name}")  # noqa: E731
                stack.enter_context(handled(SIGNALS, stop, kept=self._kept_handlers))
            yield is_main

    def _poll_driver(self) -> None:
        with self._polling:
            if not self._is_exit_requested and (reason := self._stop_reason()):
                self.request_exit(reason)

    def _poll_quietly(self) -> None:
        try:
            self._poll_driver()
        except Exception as error:  # the loop polls too, and raises it in its own thread
            logger.warning("the driver cannot be polled for a stop (%s: %s)", type(error).__name__, error)

    def _leave_notice(self) -> None:
        # Not once all have agreed: a thousand hosts would write a file that no host reads.
        if self._notice is not None and self._is_exit_requested and not self._is_exit_agreed:
            self._notice.leave()
