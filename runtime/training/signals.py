"""Signals, heard at once: also while the main thread waits in C code, say in a collective for another host.

Python runs a handler in the main thread between two instructions, of which C code has none. What the interpreter does
at once, in whatever thread the signal arrives, is to write its number to the wake-up descriptor, where a thread reads.
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
def heard(
    numbers: Iterable[signal.Signals], hear: Callable[[signal.Signals], None], *, kept: tuple[type, ...] = ()
) -> Iterator[None]:
    """Calls `hear` for each of these signals inside the block; what heard them before hears them again afterwards.

    It is called twice: in a thread at once, and in the main thread, which must be the caller's, before it goes on. A
    handler of a class in `kept` hears them inside too: of whoever this process is. Others, such as that of a worker of
    Ray's, would end the process that is to save its work.

    Raises:
        RuntimeError: one has a handler that Python does not know, and could not put back.
    """
    listened_to = frozenset(numbers)
    handlers_before = {number: signal.getsignal(number) for number in listened_to}
    if foreign := sorted(number.name for number, before in handlers_before.items() if before is None):
        raise RuntimeError(
            f"{', '.join(foreign)}: what handles it in this process was there before Python, which could not put it "
            "back after listening; start the process without that handler, or train in a process of its own."
        )

    def handler(number: int, frame: FrameType | None) -> None:
        hear(signal.Signals(number))
        before = handlers_before[signal.Signals(number)]
        if callable(before) and isinstance(before, kept):
            before(number, frame)

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    woken_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        while received := reader.recv(4096):
            if woken_before != -1:
                _pass_on(received, woken_before)
            for number in received:
                if number in listened_to:
                    hear(signal.Signals(number))

    thread = threading.Thread(target=listen, name="signals", daemon=True)
    thread.start()
    for number in listened_to:
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


def _pass_on(received: bytes, descriptor: int) -> None:
    """To whoever had set a wake-up descriptor of his own, such as an event loop."""
    try:
        os.write(descriptor, received)
    except BlockingIOError:
        pass  # it is full, so its reader is awake as it is
    except OSError as error:
        logger.warning("signals %s are not passed on to descriptor %d: %s", list(received), descriptor, error)
