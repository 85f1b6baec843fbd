"""Compile remarks: the first update of a phase compiles, of a large model for minutes, and people are told of it."""

import threading
import time
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from marin_dag.graph.step import StepContext

SILENT_SECONDS = 15.0
"""A compile that takes no longer is told to the log alone."""

ArgumentsT = ParamSpec("ArgumentsT")
ReturnT = TypeVar("ReturnT")


class ToldOfCompile(Generic[ArgumentsT, ReturnT]):
    """A compiled function whose first call, which compiles it, says so and how long that took.

    Args:
        function: as `jax.jit` makes it: it returns when it is compiled, and does not wait for the device.
        what: it is, for people.
    """

    def __init__(self, function: Callable[ArgumentsT, ReturnT], what: str, context: StepContext) -> None:
        self._function, self._what, self._context = function, what, context
        self._is_compiled = False

    def __call__(self, *args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs) -> ReturnT:
        if self._is_compiled:
            return self._function(*args, **kwargs)
        began = time.monotonic()
        self._context.log.info("compiling %s: seconds of a small model, minutes of a large one", self._what)
        still = threading.Timer(SILENT_SECONDS, self._say_that_it_compiles)
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
            self._context.warn(f"{self._what} is compiled: it took {seconds:.0f} s")
        return returned

    def _say_that_it_compiles(self) -> None:
        self._context.warn(f"{self._what} compiles, for {SILENT_SECONDS:.0f} s so far; nothing moves until it has")
