"""CodeWatch: whether what a process runs is what the plan fingerprinted.

Between a plan and the import of a module by a worker lie minutes or days in which somebody edits the file. A worker
reads the fingerprint again where it runs, before it runs and before it commits. It does not refuse for an edit that
came too late to matter: of a module that was imported while the source still was what the plan saw, the process runs
that, and what it never imported it did not run.
"""

import importlib.metadata
import logging
import socket
import sys
import time
from typing import Any

from pydantic import BaseModel

from marin_dag.code.closure import Closure
from marin_dag.errors import UserError, listed
from marin_dag.graph.inputs import Input
from marin_dag.graph.step import StepKind
from marin_dag.identity.canonical import canonical
from marin_dag.identity.code_identity import closure_now, module_name

MAX_NAMED = 8
GLANCE_SECONDS = 5.0


class CodeChangedError(UserError):
    """What runs here is not what the plan saw; an output of it must not go by the plan's digest."""


class CodeWatch:
    """Compares the source that a process finds with what was planned.

    Args:
        owner: name of the step, for errors.
        function: what is called.
        values: what it is called with, whose classes' methods count.
        fingerprint: as planned.
        definitions: as planned, to name what changed.
        log: told of edits that came too late to matter.
    """

    def __init__(
        self,
        owner: str,
        function: Any,
        values: tuple[object, ...],
        fingerprint: str,
        definitions: dict[str, str],
        log: logging.Logger,
    ) -> None:
        self._owner = owner
        self._function = function
        self._values = values
        self._fingerprint = fingerprint
        self._definitions = definitions
        self._log = log
        # A function that travels by value is the planner's own.
        self._as_planned = {module_name(function)} if function.__module__ == "__main__" else set[str]()
        self._has_begun = False
        self._next_glance = 0.0
        self._told: list[str] = []

    def glance(self) -> None:
        """As `check`, no more than once in GLANCE_SECONDS: an attempt that cannot be committed ends early, and of a
        module that was imported on the way it is known soon that it was the planned one."""
        if time.monotonic() >= self._next_glance:
            self._next_glance = time.monotonic() + GLANCE_SECONDS
            self.check()

    def check(self) -> None:
        """Raises CodeChangedError if something that runs here, or may, is not what was planned."""
        loaded = set(sys.modules)  # before the source is read: a later import may read a later source
        found = closure_now(self._function, *self._values)
        if found.fingerprint == self._fingerprint:
            self._as_planned |= loaded
            self._has_begun = True
            return
        changed = self._changed(found)
        if self._has_begun:
            touched = {name.rpartition(".")[0] for name in changed}
            if all(module in self._as_planned or module not in sys.modules for module in touched):
                if changed != self._told:
                    self._log.info("edited meanwhile, and not what runs here: %s", listed(changed, MAX_NAMED))
                self._told = changed
                return
        raise CodeChangedError(
            f"the code of {self._owner} changed while the run was going: {listed(changed, MAX_NAMED)}. Nothing is "
            "committed under a digest whose code did not run; start the run again."
        )

    def _changed(self, found: Closure) -> list[str]:
        names = sorted({*self._definitions, *found.definitions})
        return [name for name in names if self._definitions.get(name) != found.definitions.get(name)]


def watch_of(
    name: str, kind: StepKind[Any, Any], config: BaseModel, identity: dict[str, Any], log: logging.Logger
) -> CodeWatch:
    """The watch over one attempt."""
    code = identity["code"]
    return CodeWatch(name, kind.function, (config,), code["fingerprint"], code["definitions"], log)


def refuse_other_packages(name: str, identity: dict[str, Any]) -> None:
    """Raises CodeChangedError if a package that the step names has another version here than where it was planned."""
    for package, planned in identity["code"]["packages"].items():
        try:
            here = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            here = "not installed"
        if here != planned:
            raise CodeChangedError(
                f"{name}: package {package} is {here} on {socket.gethostname()}, and {planned} where the run was "
                "planned; the version is part of the step's identity. Install the same on every machine."
            )


def refuse_another_config(name: str, kind: StepKind[Any, Any], config: BaseModel, identity: dict[str, Any]) -> None:
    """Raises CodeChangedError if the config is no longer what was planned: somebody changed a list inside it."""
    start = None if kind.continues is None else getattr(config, kind.continues)
    if kind.function.__module__ == "__main__" or isinstance(start, Input):
        return  # classes of a script have another name here; what goes on unchanged goes by where it began
    if canonical(config, name) != identity["config"]:
        raise CodeChangedError(
            f"{name}: its config is not what it was when its digest was computed; a list or mapping inside it was "
            "changed after that. Build the step again instead of changing what it holds."
        )
