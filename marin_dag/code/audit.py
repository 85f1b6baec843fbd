"""Code audit: whether the code that a process runs is the code that the plan fingerprinted.

Minutes or days lie between a plan and the import of a module by a worker, and a user may edit the file meanwhile. So a
worker reads the fingerprint again, before it runs and before it commits. An edit that came too late to matter is no
error: a module that was imported while its source was as planned runs as planned, and a module that was never imported
did not run.
"""

import dataclasses
import logging
import sys
import time
from typing import Any

from marin_dag.code.closure import Closure, module_of
from marin_dag.code.fingerprint import closure_now, module_name
from marin_dag.errors import UserError, listed

MAX_NAMED = 8
GLANCE_SECONDS = 5.0


class CodeChangedError(UserError):
    """The code that runs here is not the code that was planned, so its output must not get the planned digest."""


@dataclasses.dataclass(eq=False)
class CodeWatch:
    """Compares the source that a process finds with what was planned."""

    owner: str
    """Name of the step, for errors."""
    function: Any
    values: tuple[object, ...]
    """The arguments of `function`, whose classes' methods count."""
    fingerprint: str
    definitions: dict[str, str]
    """Hashes of definitions as planned, like `fingerprint`; they name what changed."""
    log: logging.Logger
    """Gets a line for edits that came too late to matter."""

    def __post_init__(self) -> None:
        # A function that travels by value is the planner's own.
        self._as_planned = {module_name(self.function)} if self.function.__module__ == "__main__" else set[str]()
        self._has_started = False
        self._next_glance = 0.0
        self._logged: list[str] = []

    def glance(self) -> None:
        """Call `check`, at most once in GLANCE_SECONDS.

        An attempt that cannot be committed ends early, and a module imported on the way is soon known to be as planned.
        """
        if time.monotonic() >= self._next_glance:
            self._next_glance = time.monotonic() + GLANCE_SECONDS
            self.check()

    def check(self) -> None:
        """Raise CodeChangedError if something that runs here, or may run, is not what was planned."""
        loaded = set(sys.modules)  # before the source is read: a later import may read a later source
        found = closure_now(self.function, *self.values)
        if found.fingerprint == self.fingerprint:
            self._as_planned |= loaded
            self._has_started = True
            return
        changed = self._changed(found)
        if self._has_started:
            touched = {module_of(name) for name in changed}
            if all(module is not None and self._is_unused(module) for module in touched):
                if changed != self._logged:
                    self.log.info("edited during the run, and not used by it: %s", listed(changed, MAX_NAMED))
                self._logged = changed
                return
        raise CodeChangedError(
            f"{self.owner}: its code changed during the run: {listed(changed, MAX_NAMED)}. The output is not "
            "committed, since its digest stands for the planned code. Start the run again."
        )

    def _is_unused(self, module: str) -> bool:
        """Return whether an edit of a module came too late to matter."""
        return module in self._as_planned or module not in sys.modules

    def _changed(self, found: Closure) -> list[str]:
        names = sorted({*self.definitions, *found.definitions})
        return [name for name in names if self.definitions.get(name) != found.definitions.get(name)]
