"""Priority of processes: steps in the background leave the cores of their machine to the others."""

import contextlib
import os
import sys
from pathlib import Path

NICENESS = 19
"""The lowest priority. Ray's own workers have niceness 15, and so get 2.4 times the share of a busy core."""


def lower_process_priority() -> None:
    """Lower the priority of all threads of this process for good; only Linux has a priority for each thread."""
    if sys.platform != "linux":
        return
    for thread in (int(entry.name) for entry in Path("/proc/self/task").iterdir()):
        with contextlib.suppress(ProcessLookupError):  # a thread may end meanwhile
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
