"""Input: a config field that names another step, its committed milestone, or a folder inside its output.

While a graph is built an input holds the step itself; inside a running step it holds the path and the
result of that step's committed output. The two are one type, so a config reads the same at both times.
"""

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import core_schema

from marin_dag.errors import UserError
from marin_dag.values.members import members_of

if TYPE_CHECKING:
    from marin_dag.graph.milestone import Milestone
    from marin_dag.graph.step import Step

ResultT = TypeVar("ResultT")
ConfigT = TypeVar("ConfigT", bound=BaseModel)
ResultT_co = TypeVar("ResultT_co", covariant=True)

FIRST_PART = 1
"""Parts of an output that others may start on are numbered from here."""


class InputNotReadyError(UserError):
    """An input's result or path was asked for outside a running step."""


class Input(Generic[ResultT_co]):
    """Type of a config field that names another step; build it from a `Step`, a `Milestone` or another `Input`."""

    __slots__ = (
        "_digest", "_name", "_path", "_result", "_step",
        "computed_with", "follows_stop", "is_growing", "milestone", "subpath",
    )  # fmt: skip

    def __init__(
        self,
        step: "Step[Any] | None",
        *,
        milestone: int | None = None,
        subpath: str = "",
        name: str = "",
        digest: str = "",
        path: str | None = None,
        result: ResultT_co | None = None,
        follows_stop: bool = False,
        is_growing: bool = False,
        computed_with: Mapping[str, str] | None = None,
    ) -> None:
        self._step = step
        self._name = name
        self._digest = digest
        self._path = path
        self._result = result
        self.milestone = milestone
        """Step of a trajectory, resolved: the predecessor's own `until_step` where the recipe named none."""
        self.follows_stop = follows_stop
        """Whether `milestone` is wherever the predecessor stops, and so moves with it when that is overridden."""
        self.subpath = subpath
        """Folder inside the output, "" for all of it."""
        self.is_growing = is_growing
        """Whether the first part is enough to start on. Never identity: what is made does not depend on it."""
        self.computed_with: Mapping[str, str] = computed_with or {}
        """Inside a running step, how the output was computed, as `StepContext.computed_with` told. Never identity."""

    @property
    def step(self) -> "Step[Any]":
        """The step behind this input; only while a graph is built."""
        if self._step is None:
            raise InputNotReadyError(f"input {self.name!r}: the graph is not at hand inside a running step.")
        return self._step

    @property
    def has_step(self) -> bool:
        """Whether this input still belongs to a graph."""
        return self._step is not None

    def config_of(self, config_type: type[ConfigT]) -> ConfigT | None:
        """The config of the step behind, where this belongs to a graph and the config is of this type.

        A field takes whatever kind returns its result, one of a user's own too, so that checks ask by the type.
        """
        config = None if self._step is None else self._step.config
        return config if isinstance(config, config_type) else None

    @property
    def name(self) -> str:
        """Label of the step; never identity."""
        return self._name or self.step.name

    @property
    def digest(self) -> str:
        """Identity digest of the step (of the trajectory, for a milestone)."""
        return self._digest or self.step.digest

    @property
    def key(self) -> str:
        """Key of the record that this input reads."""
        return self.digest if self.milestone is None else f"{self.digest}@{self.milestone}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the records of which any one is enough to start on, the best first."""
        return (self.key, f"{self.digest}@{FIRST_PART}") if self.is_growing else (self.key,)

    @property
    def result(self) -> ResultT_co:
        """What the step returned; only inside a running step."""
        if self._result is None:
            raise InputNotReadyError(
                f"input {self.name!r}: its result is known only while a step runs; read it inside the step function, "
                "not while the graph is built."
            )
        return self._result

    @property
    def result_type(self) -> type[Any] | None:
        """What the step returns; None where neither the step nor its result is at hand."""
        if self._step is not None:
            return self._step.kind.result_type
        return None if self._result is None else type(self._result)

    @property
    def path(self) -> str:
        """Root of the committed output (a folder or URL, no trailing slash); only inside a running step."""
        if self._path is None:
            raise InputNotReadyError(
                f"input {self.name!r}: its path is known only while a step runs; read it inside the step function, "
                "not while the graph is built."
            )
        return f"{self._path}/{self.subpath}" if self.subpath else self._path

    def join(self, relative: str) -> str:
        """Path of a file inside the committed output."""
        return f"{self.path}/{relative}"

    def bound(
        self, *, path: str, result: Any, is_growing: bool = False, computed_with: Mapping[str, str] | None = None
    ) -> "Input[ResultT_co]":
        """This input as a running step sees it: path and result of the committed output, without the graph.

        `is_growing` says that these are the first part's, and that there is no more yet; `computed_with` is of its
        record.
        """
        return Input(
            None,
            milestone=self.milestone,
            subpath=self.subpath,
            name=self.name,
            digest=self.digest,
            path=path.rstrip("/"),
            result=result,
            is_growing=is_growing,
            computed_with=computed_with,
        )

    def __reduce__(self) -> tuple[Callable[..., "Input[Any]"], tuple[Any, ...]]:
        # The graph does not travel to a worker: it would carry every step above this one.
        known = self.milestone, self.subpath, self.name, self.digest, self._path, self._result
        return _from_state, (*known, self.is_growing, self.computed_with)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Input) and self._step is not None and self._step is other._step:
            return (self.milestone, self.subpath) == (other.milestone, other.subpath)  # no digest has to be computed
        return isinstance(other, Input) and (self.key, self.subpath) == (other.key, other.subpath)

    def __hash__(self) -> int:
        return hash((self.key, self.subpath))

    def __repr__(self) -> str:
        at = "" if self.milestone is None else f"@{self.milestone}"
        return f"Input({self.name}{at}{'/' + self.subpath if self.subpath else ''})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        wanted = (get_args(source) or (Any,))[0]
        return core_schema.with_info_plain_validator_function(
            lambda value, info: _as_input(value, wanted, info),
            serialization=core_schema.plain_serializer_function_ser_schema(repr),
        )


def _from_state(*state: Any) -> "Input[Any]":
    milestone, subpath, name, digest, path, result, is_growing, computed_with = state
    return Input(
        None,
        milestone=milestone,
        subpath=subpath,
        name=name,
        digest=digest,
        path=path,
        result=result,
        is_growing=is_growing,
        computed_with=computed_with,
    )


def _as_input(value: Any, wanted: Any, info: ValidationInfo) -> "Input[Any]":
    if isinstance(value, str) and info.context and "input_named" in info.context:
        value = info.context["input_named"](value)
    if hasattr(value, "as_input"):
        value = cast("Step[Any] | Milestone[Any]", value).as_input()
    if not isinstance(value, Input):
        raise ValueError(f"{value!r} is not a step; pass the step itself, or step.at(step=...)")
    if value.has_step:
        _refuse_wrong_result(value.step, wanted)
    return value


def _refuse_wrong_result(step: "Step[Any]", wanted: Any) -> None:
    allowed = get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)
    classes = tuple(get_origin(item) or item for item in allowed)
    if not all(isinstance(item, type) for item in classes):
        return
    if not issubclass(step.kind.result_type, classes):
        raise ValueError(
            f"step {step.name!r} returns {step.kind.result_type.__qualname__}, but this field takes a step that "
            f"returns {' or '.join(item.__qualname__ for item in classes)}"
        )


def inputs_in(value: object, path: str = "") -> Iterator[tuple[str, Input[Any]]]:
    """Every input below `value`, with the dotted path of its field, in field order."""
    if isinstance(value, Input):
        yield path, value
        return
    for name, item in members_of(value):
        yield from inputs_in(item, f"{path}.{name}" if path else str(name))


ValueT = TypeVar("ValueT")


def replace_inputs(value: ValueT, replacement: Callable[[Input[Any]], Input[Any]]) -> ValueT:
    """`value` with every input replaced; what holds no input stays the same object."""
    return cast(ValueT, _replaced(value, replacement))


def _replaced(value: Any, replacement: Callable[[Input[Any]], Input[Any]]) -> Any:
    if isinstance(value, Input):
        return replacement(value)
    if next(inputs_in(value), None) is None:
        return value
    match value:
        case BaseModel():
            new = {name: _replaced(getattr(value, name), replacement) for name in type(value).model_fields}
            return value.model_copy(update=new)
        case dict():
            return {key: _replaced(item, replacement) for key, item in value.items()}
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*(_replaced(item, replacement) for item in value))
        case list() | tuple():
            return type(value)(_replaced(item, replacement) for item in value)
    new = {f.name: _replaced(getattr(value, f.name), replacement) for f in dataclasses.fields(value)}
    return dataclasses.replace(value, **new)
