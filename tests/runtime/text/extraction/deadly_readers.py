"""A reader that ends its process, as native code may."""

import os
import signal
from collections.abc import Iterator

from runtime.text.extraction.extracted import Text

num_read = 0


class OddError(Exception):
    """An error that cannot be built from its arguments."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"{what} in line {line}")


def read(text: str) -> Iterator[Text]:
    """End the process for `SIGSEGV` and the like, and for `second` after another text; else yield and then raise."""
    global num_read
    num_read += 1
    if text.startswith("SIG") or (text == "second" and num_read > 1):
        os.kill(os.getpid(), signal.Signals[text] if text.startswith("SIG") else signal.SIGSEGV)
    while text == "endless":
        pass
    if text == "boundless":
        bytearray(1 << 30)
    if text == "exit":
        os._exit(3)
    yield Text("", text)
    if text == "damaged":
        raise EOFError("cut short")
    if text == "odd":
        raise OddError(7, "oddness")
    if text == "unsendable":
        raise RuntimeError("oddness", lambda: text)
