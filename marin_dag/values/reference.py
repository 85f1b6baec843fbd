"""Reference: what stands in a config for the output of another step.

While a graph is built it is an `OutputRef`, which knows the step; while a step runs it is an `Input`, which knows the
path and the result. What reads configs needs no more than this.
"""

from typing import TypeVar

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.record_key import key_of

ConfigT = TypeVar("ConfigT", bound=BaseModel)


class InputNotReadyError(UserError):
    """The result or path of an input was read outside a running step, or its step inside one."""


class Reference:
    """The output of a step, a milestone of it, or a folder in one of these."""

    name: str
    """Label of the step. Never identity."""
    digest: str
    """Identity digest of the step (of the run, for a milestone)."""
    milestone: int | None
    subpath: str
    """Folder inside the output, "" for all of it."""
    is_growing: bool
    """Whether the first part is enough to start on. Never identity: the output does not depend on it."""

    @property
    def key(self) -> str:
        """Key of the record that this reads."""
        return key_of(self.digest, self.milestone)

    @property
    def typed(self) -> str:
        """The reference as a user types it in `--set`."""
        return self.name if self.milestone is None else f"{self.name}@{self.milestone}"

    @property
    def result_type(self) -> type | None:
        """Type of the step's result; None where it is not known."""
        return None

    def config_of(self, config_type: type[ConfigT]) -> ConfigT | None:
        """Return the config of the step, where the graph is at hand and the config is of this type.

        A field takes any kind that returns its result, also a kind of the user's own, so checks ask by the type.
        """
        return None

    def check_result(self, classes: tuple[type, ...]) -> None:
        """Raise ValueError if the step returns none of `classes`; a bound input was checked when it was planned."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and (self.key, self.subpath) == (other.key, other.subpath)

    def __hash__(self) -> int:
        return hash((self.key, self.subpath))

    def __repr__(self) -> str:
        at = "" if self.milestone is None else f"@{self.milestone}"
        return f"{type(self).__name__}({self.name}{at}{'/' + self.subpath if self.subpath else ''})"
