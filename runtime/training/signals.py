"""Signals, received at once even while the main thread waits in C code, such as a collective.

Python runs a handler in the main thread between two instructions, and C code has none. The interpreter writes the
number of a signal to the wake-up descriptor at once, in whatever thread it arrives. A thread reads it there.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def handled(
    numbers: Iterable[signal.Signals], handle: Callable[[signal.Signals], None], *, kept: tuple[type, ...] = ()
) -> Iterator[None]:
    """Call `handle` for each of these signals inside the block, and restore the earlier handlers afterwards.

    The caller must be the main thread. `handle` runs twice: in a thread at once, and in the main thread before it
    continues. Of earlier handlers only those of a class in `kept` run inside the block: a Ray worker's would end the
    process before it saves.

    Raises:
        RuntimeError: a handler was installed outside of Python, which could not restore it.
    """
    watched = frozenset(numbers)
    handlers_before = {number: signal.getsignal(number) for number in watched}
    if foreign := sorted(number.name for number, before in handlers_before.items() if before is None):
        raise RuntimeError(
            f"{', '.join(foreign)}: this process has a handler that was installed before Python, which could not "
            "restore it. Start the process without that handler, or train in a separate process."
        )

    def handler(number: int, frame: FrameType | None) -> None:
        handle(signal.Signals(number))
        before = handlers_before[signal.Signals(number)]
        if callable(before) and isinstance(before, kept):
            before(number, frame)

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    woken_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        while received := reader.recv(4096):
            if woken_before != -1:
                _forward(received, woken_before)
            for number in received:
                if number in watched:
                    handle(signal.Signals(number))

    thread = threading.Thread(target=listen, name="signals", daemon=True)
    thread.start()
    for number in watched:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in handlers_before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(woken_before)
        writer.close()
        thread.join()
        reader.close()


def _forward(received: bytes, descriptor: int) -> None:
    """Forward signals to the earlier wake-up descriptor, such as that of an event loop."""
    try:
        os.write(descriptor, received)
    except BlockingIOError:
        pass  # it is full, so its reader is awake
    except OSError as error:
        logger.warning("signals %s are not forwarded to descriptor %d: %s", list(received), descriptor, error)
