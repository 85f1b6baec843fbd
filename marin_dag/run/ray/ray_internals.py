"""Ray internals: private parts of Ray and of the standard library that a driver changes, as there is no option.

The tests run these functions on real clusters, so that an upgrade of Ray breaks a test and not a run.
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def capture_ray_messages(handle: Callable[[str], None]) -> None:
    """Call `handle` with the first line of each message that Ray would print in the driver, such as a dead worker.

    Ray prints the message before the driver knows which step it concerns, and a traceback after it.
    """
    import ray._private.worker as worker

    def handle_first_line(data: dict[str, Any], ignore_prefix: bool) -> None:
        handle("\n".join(data["lines"]).strip().partition("\n")[0])

    worker.print_to_stdstream = handle_first_line


@contextlib.contextmanager
def processes_in_own_groups() -> Iterator[list[subprocess.Popen[Any]]]:
    """Start each process inside the block in a process group of its own; yield the growing list of these processes.

    `timeout`, Slurm and others send SIGTERM to the whole group: Ray's servers would end, and with them the steps that
    the driver asks to save their work. They still end with a killed driver, because on Linux the kernel signals them.
    On other systems Ray finds them only in the driver's group, so that nothing is changed there.
    """
    started: list[subprocess.Popen[Any]] = []
    if sys.platform != "linux":
        yield started
        return
    original, here = subprocess.Popen.__init__, threading.get_ident()

    def start_in_own_group(self: subprocess.Popen[Any], *arguments: Any, **options: Any) -> None:
        if threading.get_ident() == here and not options.get("start_new_session"):
            options.setdefault("process_group", 0)
        original(self, *arguments, **options)
        if threading.get_ident() == here:
            started.append(self)

    setattr(subprocess.Popen, "__init__", start_in_own_group)  # noqa: B010 -- a type checker rejects the assignment
    try:
        yield started
    finally:
        setattr(subprocess.Popen, "__init__", original)  # noqa: B010


@contextlib.contextmanager
def own_address_only() -> Iterator[None]:
    """Make a cluster that starts inside the block listen on the loopback address alone, as on Windows and macOS.

    Elsewhere Ray's ports for metrics, which ask for no token, listen on every address of the machine. Later processes
    do not inherit the variable: it forbids clusters of machines.
    """
    import ray._private.ray_constants as constants

    is_cluster, was = constants.ENABLE_RAY_CLUSTER, os.environ.get(LOOPBACK_VARIABLE)
    os.environ[LOOPBACK_VARIABLE], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = is_cluster
        del os.environ[LOOPBACK_VARIABLE]
        if was is not None:
            os.environ[LOOPBACK_VARIABLE] = was
