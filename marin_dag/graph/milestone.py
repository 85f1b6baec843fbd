"""Milestone: a step's output at one milestone of its trajectory, or one folder of it, for others to start from."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.declared import declared_by_caller
from marin_dag.graph.inputs import Input

if TYPE_CHECKING:
    from marin_dag.graph.step import Step

ResultT = TypeVar("ResultT", bound=BaseModel)


class Milestone(Generic[ResultT]):
    """A step's output at one milestone of its trajectory, or one folder of it."""

    def __init__(
        self, step: "Step[ResultT]", *, milestone: int | None, subpath: str = "", is_growing: bool = False
    ) -> None:
        if subpath.startswith("/") or ".." in subpath.split("/"):
            raise UserError(f"{step.name}: subpath {subpath!r} leaves the output; use a relative folder.")
        self.step = step
        self.milestone = milestone
        """None: wherever the step itself stops."""
        self.subpath = subpath.strip("/")
        self.is_growing = is_growing

    def as_input(self) -> Input[ResultT]:
        """This milestone as the value of an `Input` field."""
        follows = self.milestone is None
        at = self.step.until if follows else self.milestone
        return Input(self.step, milestone=at, subpath=self.subpath, follows_stop=follows, is_growing=self.is_growing)

    def folder(self, subpath: str) -> "Milestone[ResultT]":
        """One folder of the output at this milestone."""
        return Milestone(self.step, milestone=self.milestone, subpath=subpath)

    def then(self, name: str, **changes: Any) -> "Step[ResultT]":
        """A leg that leaves the trajectory at this milestone; see `Step.then`."""
        return self.step.following(name, self, self, changes, declared_by_caller())

    def __repr__(self) -> str:
        return f"Milestone({self.step.name}@{self.milestone})"
