"""Compile warnings: messages that the first update of a phase compiles, for minutes with a large model."""

import threading
import time
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from marin_dag.graph.step import StepContext

SILENT_SECONDS = 15.0
"""Time after which a compile is announced, and not only logged."""

ArgumentsT = ParamSpec("ArgumentsT")
ReturnT = TypeVar("ReturnT")


class AnnouncedCompile(Generic[ArgumentsT, ReturnT]):
    """A jitted function whose first call announces the compile and its time.

    Args:
        function: Made by `jax.jit`; its first call returns when it is compiled, and does not wait for the device.
        what: Its name in messages.
    """

    def __init__(self, function: Callable[ArgumentsT, ReturnT], what: str, context: StepContext) -> None:
        self._function, self._what, self._context = function, what, context
        self._is_compiled = False

    def __call__(self, *args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs) -> ReturnT:
        if self._is_compiled:
            return self._function(*args, **kwargs)
        began = time.monotonic()
        self._context.log.info("compiling %s: seconds for a small model, minutes for a large one", self._what)
        still = threading.Timer(SILENT_SECONDS, self._announce)
        still.daemon = True
        still.start()
        try:
            returned = self._function(*args, **kwargs)
        finally:
            still.cancel()
        seconds = time.monotonic() - began
        self._is_compiled = True
        self._context.log.info("compiled %s in %.1f s", self._what, seconds)
        if seconds >= SILENT_SECONDS:
            self._context.warn(f"compiled {self._what} in {seconds:.0f} s")
        return returned

    def _announce(self) -> None:
        self._context.warn(
            f"still compiling {self._what} after {SILENT_SECONDS:.0f} s; training starts when it is done"
        )
