"""Readers of a document that do to their process what native code does now and then."""

import os
import signal
from collections.abc import Iterator

from runtime.text.extraction.extracted import Text

num_read = 0


class OddError(Exception):
    """Cannot be made again of what it says."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"{what} in line {line}")


def read(text: str) -> Iterator[Text]:
    """`SIGSEGV` and the like end the process; `second` does if it has read before; the others raise behind
    a text."""
    global num_read
    num_read += 1
    if text.startswith("SIG") or (text == "second" and num_read > 1):
        os.kill(os.getpid(), signal.Signals[text] if text.startswith("SIG") else signal.SIGSEGV)
    if text == "exit":
        os._exit(3)
    yield Text("", text)
    if text == "damaged":
        raise EOFError("cut short")
    if text == "odd":
        raise OddError(7, "oddness")
    if text == "unsendable":
        raise RuntimeError("oddness", lambda: text)
