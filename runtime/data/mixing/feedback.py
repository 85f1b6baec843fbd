"""Feedback: what finished updates showed of each source, handed from the loop to the thread that reads ahead."""

import threading
from collections.abc import Callable, Mapping

from runtime.data.activity import Activity
from runtime.data.mixing.policy import Seen

BySource = Mapping[str, Seen]
"""By the identity of the source."""


class FeedbackClosedError(RuntimeError):
    """Nobody will publish what was asked for; raised in the thread that waits."""


class Feedback:
    """Losses by source of each update, which its reader takes once each; thread-safe.

    Updates are named by the number of updates finished before them, as batches are.
    """

    def __init__(self, known: Mapping[int, BySource]) -> None:
        """`known`: updates made before this process began, as far back as a policy may ask."""
        self._known = dict(known)
        self._is_closed = False
        self._changed = threading.Condition()

    def publish(self, step: int, seen: BySource) -> None:
        """Tells of the update that followed `step` finished ones."""
        with self._changed:
            self._known[step] = seen
            self._changed.notify_all()

    def __call__(self, step: int) -> BySource:
        """Waits until the update that follows `step` finished ones has been published."""
        with self._changed:
            self._changed.wait_for(lambda: step in self._known or self._is_closed)
            if step not in self._known:
                raise FeedbackClosedError(f"the losses of step {step} were waited for and the run has ended.")
            return self._known.pop(step)

    def close(self) -> None:
        """Lets go whoever waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def noted(feedback: Callable[[int], BySource], activity: Activity) -> Callable[[int], BySource]:
    """`feedback`, of which `activity` is told while it is waited for."""

    def asked(step: int) -> BySource:
        with activity.during("losses of earlier updates"):
            return feedback(step)

    return asked
