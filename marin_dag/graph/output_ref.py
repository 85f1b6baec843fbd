"""OutputRef: the output of a step in the graph, or a milestone or a folder of it, for other steps to read."""

import dataclasses
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.declared import declared_by_caller
from marin_dag.record_key import key_of
from marin_dag.values.reference import InputNotReadyError, Reference

ConfigT = TypeVar("ConfigT", bound=BaseModel)
FIRST_PART = 1
"""Parts of an output are numbered from here."""
NodeT = TypeVar("NodeT", bound=Any)
"""A step. Its class imports this module, so it cannot be named here."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OutputRef(Reference, Generic[NodeT]):
    """The output of a step, at a milestone or where the step stops, whole or one folder of it."""

    step: NodeT
    at: int | None = None
    """The milestone; None: wherever the step stops."""
    subpath: str = ""
    is_growing: bool = False

    def __post_init__(self) -> None:
        if self.subpath.startswith("/") or ".." in self.subpath.split("/"):
            raise UserError(f"{self.name}: subpath {self.subpath!r} leaves the output; use a relative folder.")

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only, since the step has it
        return self.step.name

    @property
    def digest(self) -> str:  # type: ignore[override]
        return self.step.digest

    @property
    def milestone(self) -> int | None:  # type: ignore[override]
        return self.step.until if self.at is None else self.at

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of records, the best first; any one of them is enough to start on."""
        return (self.key, key_of(self.digest, FIRST_PART)) if self.is_growing else (self.key,)

    @property
    def typed(self) -> str:
        return self.name if self.at is None else f"{self.name}@{self.at}"

    @property
    def result_type(self) -> type:
        found: type = self.step.kind.result_type
        return found

    def config_of(self, config_type: type[ConfigT]) -> ConfigT | None:
        config = self.step.config
        return config if isinstance(config, config_type) else None

    def check_result(self, classes: tuple[type, ...]) -> None:
        if self.at is not None and self.step.kind.stop_field is None:
            raise ValueError(f"a {self.step.kind.name} step has no milestones; use {self.name} itself")
        if not issubclass(self.result_type, classes):
            raise ValueError(
                f"step {self.name!r} returns {self.result_type.__qualname__}, but this field takes a step that "
                f"returns {' or '.join(item.__qualname__ for item in classes)}"
            )

    def folder(self, subpath: str) -> "OutputRef[NodeT]":
        return dataclasses.replace(self, subpath=subpath.rstrip("/") or subpath, is_growing=False)

    def then(self, name: str, **changes: Any) -> NodeT:
        """Return a step that starts from this milestone; see `Step.then`."""
        return self.step.then_from(self, name, changes, declared_by_caller())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OutputRef) and self.step is other.step:  # no digest has to be computed
            return (self.milestone, self.subpath) == (other.milestone, other.subpath)
        return super().__eq__(other)

    __hash__ = Reference.__hash__

    def __getattr__(self, name: str) -> Any:
        if name in ("result", "path", "join", "computed_with"):
            raise InputNotReadyError(
                f"input {self.name!r}: its {name} is known only while a step runs; read it inside the step function, "
                "not while the graph is built."
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
