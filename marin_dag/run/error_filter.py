"""Error filter: a process that redacts what this process and its children write to standard error.

It is a process of its own, so that the last output of a library that ends this process arrives, too.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from marin_dag.store.redact import known_secrets
from marin_dag.store.redacted_output import pass_on

STANDARD_ERROR = 2
LAST_WORDS_SECONDS = 2.0
_ROOT = str(Path(__file__).parents[2])
# SIGTERM may go to all processes of a job; the filter ends when the last writer has.
_FILTER = """import json, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.path.insert(0, {root!r})
from {module} import pass_on
pass_on({source}, 1, json.load(sys.stdin))
"""

_original_error: int | None = None
_hidden: tuple[str, ...] | None = None
"""The secrets that the present filter knows."""
filters: "dict[subprocess.Popen[bytes], threading.Thread]" = {}


def redact_standard_error(*, again: bool = False) -> None:
    """Redact from now on what this process and its children write to standard error.

    Call it `again` when this process may have learned of other secrets; without a filter, that does nothing.
    """
    global _original_error, _hidden
    secrets = known_secrets()
    if _hidden == secrets or (again and _hidden is None):
        return
    if _original_error is None:
        _original_error = os.dup(STANDARD_ERROR)
        atexit.register(_wait_for_filters, _original_error)
    read, write = os.pipe()
    watched = _start_filter(read, _original_error, secrets)
    os.dup2(write, STANDARD_ERROR)
    os.close(write)
    watcher = threading.Thread(target=_watch, args=(watched, read, _original_error), name="error filter", daemon=True)
    filters[watched] = watcher
    watcher.start()
    _hidden = secrets


def _start_filter(source: int, target: int, secrets: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    code = _FILTER.format(root=_ROOT, module=pass_on.__module__, source=source)
    started = subprocess.Popen(
        # Without the packages of the environment, which take most of a second to import.
        [sys.executable, "-I", "-S", "-c", code],
        stdin=subprocess.PIPE,
        stdout=target,
        stderr=target,
        pass_fds=(source,),
        start_new_session=True,  # so that Ctrl-C does not end it before this process
    )
    assert started.stdin is not None
    with contextlib.suppress(BrokenPipeError), started.stdin:  # `_watch` takes over where it has ended already
        started.stdin.write(json.dumps(secrets).encode())
    return started


def _watch(watched: "subprocess.Popen[bytes]", source: int, target: int) -> None:
    """Wait for the filter. If it ends before its writers, such as when the system kills it, do its work here.

    Without a reader, a write to standard error would end a child. If nothing can be written to the target either, the
    source is closed, and writers see the error that they would see without a filter.
    """
    if watched.wait() == 0:
        os.close(source)
    else:
        with contextlib.suppress(OSError):
            pass_on(source, target, ())
    del filters[watched]


def _wait_for_filters(original_error: int) -> None:
    """Let this process end after its last output; children that outlive it keep the filter for themselves."""
    os.dup2(original_error, STANDARD_ERROR)
    for watcher in list(filters.values()):
        watcher.join(LAST_WORDS_SECONDS)
