"""Kind of step: a function and what `@step` declares about it."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from marin_dag.graph.context import StepContext
from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Cpu, Resources
from marin_dag.identity.code_identity import Policy
from marin_dag.values.fields import added_fields, stop_field
from marin_dag.values.walk import Form, fields_of, form_of, structures_in

ConfigT = TypeVar("ConfigT", bound=BaseModel)
ResultT = TypeVar("ResultT", bound=BaseModel)


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class KindOptions:
    """The declarations of `@step` about a kind of step."""

    policy: Policy = "tracked"
    """"tracked": the code is identity. "versioned": `version` is, and other code under it is drift."""
    version: str | None = None
    packages: tuple[str, ...] = ()
    """Third-party packages that shape the output; their versions enter the identity."""
    resources: Resources = Cpu(1)  # noqa: RUF009 -- frozen
    """Resources of one step of this kind, unless the recipe sets others."""
    continues: str | None = None
    """The config field that names the step whose run this step continues."""
    check: Callable[[Any], None] | None = None
    """Raises ValueError, with a message for the user, for a config that cannot work; called by the plan."""
    check_on: Callable[[Any, Resources], None] | None = None
    """The same for what depends on the resources that the step asks for."""
    check_decided: Callable[[Any], None] | None = None
    """The same for what a recipe leaves open: plans report it, and runs refuse to start the step until it is set."""
    cost: Callable[[Any, Resources], Cost] | None = None
    """Estimates what a step takes, from its config and resources; a step that continues a run counts from its start."""
    resumes_at: Callable[[Sequence[str]], Iterable[int]] | None = None
    """Returns the milestone numbers that an interrupted attempt can resume at, given the paths of the files below
    `work_path`, so that a plan counts only what is left."""
    parts: bool = False
    """Whether it publishes finished parts of its output while it runs, numbered from 1; `step.growing()` is then an
    input that is ready with the first of them."""
    requests: tuple[str, ...] = ()
    """Actions that people may request while it runs (`tell STEP ACTION`), besides "stop"; the function gets them from
    `context.requests()`."""
    refuses_uncovered: bool = False
    """Whether an attempt that read what its digest does not cover commits nothing, instead of a warning."""
    lost_peer_errors: tuple[str, ...] = ()
    """Names of exception types that only mean that another host of the step is gone. Of a gang, the failure of another
    member is then the cause."""


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class Kind(KindOptions, Generic[ConfigT, ResultT]):
    """A kind of step."""

    function: Callable[[ConfigT, StepContext], ResultT]

    def __post_init__(self) -> None:
        self.name = self.function.__name__
        self.config_type, self.result_type = types_of(self.function)
        check_markers(self.config_type)
        self.stop_field = stop_field(self.config_type)
        self.__doc__ = self.function.__doc__
        self._check_options()

    def _check_options(self) -> None:
        where = f"@step {self.function.__module__}.{self.name}"
        if self.policy not in ("tracked", "versioned"):
            raise TypeError(f"{where}: policy is {self.policy!r}; use 'tracked' or 'versioned'.")
        if self.policy == "versioned" and not self.version:
            raise TypeError(f'{where}: a versioned step declares its version, such as version="1".')
        if self.parts and self.stop_field is not None:
            raise TypeError(
                f"{where}: has a StopAt field, whose milestones are the parts of its output; leave parts=True out."
            )
        if self.continues is not None and self.stop_field is None:
            raise TypeError(f"{where}: continues={self.continues!r} needs a config field of type StopAt[int].")
        if self.continues is not None and self.continues not in self.config_type.model_fields:
            raise TypeError(
                f"{where}: continues={self.continues!r} is no field of {self.config_type.__qualname__}; name one."
            )

    def __repr__(self) -> str:
        return f"StepKind({self.name})"


def types_of(function: Callable[..., Any]) -> tuple[type[Any], type[Any]]:
    """Return the config and result type of a step function.

    Raises:
        TypeError: it does not take (config, context), or a type is no frozen pydantic model.
    """
    where = f"@step {function.__module__}.{function.__qualname__}"
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 2:
        raise TypeError(f"{where}: takes {len(parameters)} arguments; a step function takes (config, context).")
    result = inspect.signature(function).return_annotation
    types = tuple(_models(where, function, (parameters[0].annotation, result)))
    return types[0], types[1]


def check_markers(config_type: type[BaseModel]) -> None:
    """Raise TypeError if a config type, or a class that its fields take, has a wrong `Added` field."""
    pending: list[type] = [config_type]
    seen: set[type] = set()
    while pending:
        owner = pending.pop()
        if owner not in seen:
            seen.add(owner)
            if form_of(owner) is not Form.NAMEDTUPLE:
                added_fields(owner)
            pending.extend(inner for hint in fields_of(owner).values() for inner in structures_in(hint))


def _models(where: str, function: Callable[..., Any], annotations: tuple[Any, ...]) -> Iterator[type[Any]]:
    for role, annotation in zip(("config", "result"), annotations, strict=True):
        found = annotation
        if isinstance(annotation, str):
            try:
                found = eval(annotation, function.__globals__)
            except NameError as error:
                raise TypeError(
                    f"{where}: the {role} type {annotation!r} is not defined above it ({error}); define it there."
                ) from None
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            shown = "not given" if found is inspect.Parameter.empty else repr(found)
            raise TypeError(
                f"{where}: the {role} type is {shown}; a step function is written (config: MyConfig, context: "
                "StepContext) -> MyResult, with frozen pydantic models."
            )
        if not found.model_config.get("frozen") or found.model_config.get("extra") != "forbid":
            raise TypeError(f'{where}: {found.__qualname__} must be declared with frozen=True, extra="forbid".')
        yield found
