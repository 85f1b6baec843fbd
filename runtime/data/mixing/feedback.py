"""Feedback: losses by source of finished updates, handed from the training loop to the thread that reads ahead."""

import threading
from collections.abc import Mapping

from runtime.data.mixing.policy import Seen

BySource = Mapping[str, Seen]
"""Sums of one update by the identity of the source."""


class FeedbackClosedError(RuntimeError):
    """The run ended before it published losses that the loader waits for; raised in the waiting thread."""


class Feedback:
    """Losses by source of each update, which its reader takes once each; thread-safe.

    Updates are named, as batches are, by the number of updates finished before them.
    """

    def __init__(self, known: Mapping[int, BySource]) -> None:
        """Start with `known`: earlier updates, as far back as a policy may ask."""
        self._known = dict(known)
        self._is_closed = False
        self._changed = threading.Condition()

    def publish(self, step: int, seen: BySource) -> None:
        """Add the update that followed `step` finished ones."""
        with self._changed:
            self._known[step] = seen
            self._changed.notify_all()

    def __call__(self, step: int) -> BySource:
        """Wait for the update that follows `step` finished ones and return its sums."""
        with self._changed:
            self._changed.wait_for(lambda: step in self._known or self._is_closed)
            if step not in self._known:
                raise FeedbackClosedError(f"the run ended before it published the losses of step {step}.")
            return self._known.pop(step)

    def close(self) -> None:
        """Release the waiting reader with FeedbackClosedError."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
