"""Opened files: one audit hook for a process, and what it needs to know of the event `open`."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

Listener = Callable[[str, tuple[Any, ...]], None]

_lock = threading.Lock()
_listeners: tuple[Listener, ...] = ()
HEARD = frozenset({"open", "checked_by_reader", "subprocess.Popen"})


def listen(listener: Listener) -> None:
    """Call `listener` for each audit event in `HEARD` from now on; a hook cannot be taken out again."""
    global _listeners
    with _lock:
        if not _listeners:
            sys.addaudithook(_on_event)
        if listener not in _listeners:
            _listeners = (*_listeners, listener)


def absolute(path: str) -> str:
    """Return a path from the root, with its links: this is called at each opening."""
    return os.path.abspath(path)  # noqa: PTH100 -- `resolve` would follow links


def is_reading(mode: str | None, flags: int | None) -> bool:
    """Return whether a file is opened to be read only."""
    if mode is not None:
        return "r" in mode and "+" not in mode
    return ((flags or 0) & os.O_ACCMODE) == os.O_RDONLY


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event in HEARD:
        for listener in _listeners:
            listener(event, arguments)
