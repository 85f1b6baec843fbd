"""Priority of processes: steps in the background leave the cores of their machine to the others."""

import contextlib
import os
import sys
from pathlib import Path

NICENESS = 19
"""The lowest; Ray gives its workers 15, which have 2.4 times the weight where cores are short."""


def lower_process_priority() -> None:
    """Lower the priority of all threads of this process for good; Linux only, which has one for each thread."""
    if sys.platform != "linux":
        return
    for thread in (int(entry.name) for entry in Path("/proc/self/task").iterdir()):
        with contextlib.suppress(ProcessLookupError):  # a thread may end meanwhile
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
