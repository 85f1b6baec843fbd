"""Overrides: the changes of `--set STEP.FIELD=VALUE`, applied to each config while the recipe builds its steps.

Steps derived by `fork` and `then` inherit an override as they inherit any value: by Python's own evaluation.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.output_ref import OutputRef
from marin_dag.values.changes import Change, text_change


class AssignmentError(UserError):
    """A `--set` that cannot be carried out."""


class Override(NamedTuple):
    """A `--set`; names of steps and fields may hold dots, so `left` is split by a known name."""

    left: str
    """STEP.FIELD: both may hold dots."""
    value: str

    def field_of(self, step: str) -> str | None:
        return self.left[len(step) + 1 :] if self.left.startswith(f"{step}.") else None


class Overrides:
    """The overrides of one build, and the steps that it has built so far."""

    def __init__(self, overrides: Iterable[Override]) -> None:
        self._overrides = tuple(overrides)
        self.applied: dict[Override, set[str]] = {}
        """The steps that an override was applied to: one, unless the names of steps and fields are ambiguous."""
        self.missing: tuple[str, str] | None = None
        """An override (STEP.FIELD) and the name of the step in its value that the recipe had not built yet."""
        self._built: dict[str, Any] = {}

    def of(self, step: str, config_type: type[BaseModel]) -> list[Change]:
        """Return the changes of the config of a step, in the order in which the user gave them."""
        found = []
        for override in self._overrides:
            field = override.field_of(step)
            if field and field.partition(".")[0] in config_type.model_fields:
                self.applied.setdefault(override, set()).add(step)
                named = functools.partial(self._named, override.left)
                found.append(text_change(field, override.value, named))
        return found

    def add(self, step: Any) -> None:
        """Note that the recipe has built a step, or another form of it."""
        if self._overrides:
            self._built[step.name] = step

    def _named(self, left: str, text: str) -> OutputRef[Any]:
        def built(name: str) -> Any:
            if name not in self._built:
                if name.lower() != "none":
                    self.missing = left, name
                raise AssignmentError(f"there is no step {name!r}.")
            return self._built[name]

        return reference_named(text, built)


NONE = Overrides(())
_active: contextvars.ContextVar[Overrides] = contextvars.ContextVar("overrides", default=NONE)


def active() -> Overrides:
    """Return the overrides of the build that is going on."""
    return _active.get()


@contextlib.contextmanager
def overriding(overrides: Overrides) -> Iterator[None]:
    """Apply the overrides to each step that is built inside."""
    token = _active.set(overrides)
    try:
        yield
    finally:
        _active.reset(token)


def reference_named(text: str, step: Callable[[str], Any]) -> OutputRef[Any]:
    """Return what a user means by STEP or STEP@MILESTONE; `step` returns the step of a name."""
    name, separator, milestone = text.partition("@")
    if separator and not milestone.isdigit():
        raise AssignmentError(f"{text!r}: a milestone is a step number, such as {name}@1000.")
    return OutputRef(step(name), at=int(milestone) if separator else None)
