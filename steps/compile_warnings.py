"""Compile warnings: messages that the first training step of a phase compiles, for minutes with a large model."""

import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from marin_dag.graph.step import StepContext

SILENT_SECONDS = 15.0
"""Time after which a compile is announced, and not only logged."""

ArgumentsT = ParamSpec("ArgumentsT")
ReturnT = TypeVar("ReturnT")


def announced_compile(
    function: Callable[ArgumentsT, ReturnT], what: str, context: StepContext
) -> Callable[ArgumentsT, ReturnT]:
    """Return a jitted function, called `what` in messages, whose first call announces the compile and its time."""
    is_compiled = False

    def announce() -> None:
        context.warn(f"still compiling {what} after {SILENT_SECONDS:.0f} s; training starts when it is done")

    def call(*args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs) -> ReturnT:
        nonlocal is_compiled
        if is_compiled:
            return function(*args, **kwargs)
        began = time.monotonic()
        context.log.info("compiling %s: seconds for a small model, minutes for a large one", what)
        still = threading.Timer(SILENT_SECONDS, announce)
        still.daemon = True
        still.start()
        try:
            returned = function(*args, **kwargs)
        finally:
            still.cancel()
        is_compiled = True
        seconds = time.monotonic() - began
        context.log.info("compiled %s in %.1f s", what, seconds)
        if seconds >= SILENT_SECONDS:
            context.warn(f"compiled {what} in {seconds:.0f} s")
        return returned

    return call
