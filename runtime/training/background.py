"""Background: threads that step back for the train step, where both want the same cores."""

import os
import sys
import threading

NICENESS = 10
"""A tenth of the weight of the others: enough to end within some updates, however busy they keep the cores."""


def step_back() -> None:
    """Lowers the priority of the calling thread for good. Only Linux has one for each thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # Never up: a process that is itself in the background may not, and should not.
        os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
