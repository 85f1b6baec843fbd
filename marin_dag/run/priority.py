"""Priority of processes: steps in the background leave the cores of their machine to the others."""

import contextlib
import os
import sys
from pathlib import Path

NICENESS = 10
"""A tenth of the others' weight where cores are short; all of an idle core."""


def lower_process_priority() -> None:
    """Lower the priority of all threads of this process for good; Linux only, which has one for each thread."""
    if sys.platform != "linux":
        return
    for thread in (int(entry.name) for entry in Path("/proc/self/task").iterdir()):
        with contextlib.suppress(ProcessLookupError):  # a thread may end meanwhile
            # Never raise it: a process that itself runs in the background may not.
            os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
