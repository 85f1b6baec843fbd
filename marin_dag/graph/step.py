"""Step: a name, a kind and a config. Its identity is what the config says, never what it is called or where it runs."""

import copy
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.cost import Cost
from marin_dag.graph.declared import Declared, declared_by_caller
from marin_dag.graph.inputs import Input, inputs_in
from marin_dag.graph.milestone import Milestone
from marin_dag.graph.resources import Cpu, Resources
from marin_dag.graph.step_function import refuse_wrong_markers, types_of
from marin_dag.identity.canonical import Identity, identity_of
from marin_dag.run.context import StepContext, StepStopped
from marin_dag.values.changes import apply_changes
from marin_dag.values.fields import Added, Once, Runtime, StopAt, once_fields, stop_field
from marin_dag.values.typed_values import wrong_value_in

__all__ = [
    "Added",
    "Cost",
    "Input",
    "Milestone",
    "Once",
    "Policy",
    "Runtime",
    "Step",
    "StepContext",
    "StepKind",
    "StepStopped",
    "StopAt",
    "step",
]

ConfigT = TypeVar("ConfigT", bound=BaseModel)
ResultT = TypeVar("ResultT", bound=BaseModel)
Policy = Literal["tracked", "versioned"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")
MAX_PART_LENGTH = 200
"""File systems take 255 bytes, and what is made of a step has its digest and a suffix behind the name."""
MAX_SHOWN = 40
"""Characters of a name that is too long."""


@dataclasses.dataclass(eq=False, repr=False)
class StepKind(Generic[ConfigT, ResultT]):
    """What `@step` makes of a function; call it with a name and a config to get a step."""

    function: Callable[[ConfigT, StepContext], ResultT]
    _: dataclasses.KW_ONLY
    policy: Policy
    version: str | None
    packages: tuple[str, ...]
    resources: Resources
    continues: str | None
    check: Callable[[ConfigT], None] | None
    check_on: Callable[[ConfigT, Resources], None] | None
    check_decided: Callable[[ConfigT], None] | None
    cost: Callable[[ConfigT, Resources], Cost] | None
    resumes_at: Callable[[Sequence[str]], Iterable[int]] | None
    tolerance: Callable[[ResultT, ResultT], str] | None
    parts: bool
    requests: tuple[str, ...]
    lost_peer_errors: tuple[str, ...]

    def __post_init__(self) -> None:
        self.name = self.function.__name__
        self.config_type, self.result_type = types_of(self.function)
        refuse_wrong_markers(self.config_type)
        self.stop_field = stop_field(self.config_type)
        self.__doc__ = self.function.__doc__
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        where = f"@step {self.function.__module__}.{self.name}"
        if self.policy not in ("tracked", "versioned"):
            raise TypeError(f"{where}: policy is {self.policy!r}; it is 'tracked' or 'versioned'.")
        if self.policy == "versioned" and not self.version:
            raise TypeError(f'{where}: a versioned step declares its version, such as version="1".')
        if self.parts and self.stop_field is not None:
            raise TypeError(f"{where}: has a StopAt field and parts; the milestones of a trajectory are its parts.")
        if self.continues is not None and self.stop_field is None:
            raise TypeError(f"{where}: continues={self.continues!r} needs a config field of type StopAt[int].")
        if self.continues is not None and self.continues not in self.config_type.model_fields:
            raise TypeError(f"{where}: continues={self.continues!r} is no field of {self.config_type.__qualname__}.")

    def __call__(
        self,
        name: str,
        config: ConfigT,
        *,
        policy: Policy | None = None,
        version: str | None = None,
        resources: Resources | None = None,
    ) -> "Step[ResultT]":
        """A step of this kind; a recipe may choose another policy and other resources than the kind declares."""
        return Step(
            self,
            name,
            config,
            policy=policy or self.policy,
            version=version or self.version,
            resources=resources or self.resources,
            declared=(declared := declared_by_caller()),
            version_declared=declared if version else None,
        )

    def __repr__(self) -> str:
        return f"StepKind({self.name})"


def step(
    *,
    policy: Policy = "tracked",
    version: str | None = None,
    packages: tuple[str, ...] = (),
    resources: Resources = Cpu(1),  # noqa: B008 -- frozen
    continues: str | None = None,
    check: Callable[[Any], None] | None = None,
    check_on: Callable[[Any, Resources], None] | None = None,
    check_decided: Callable[[Any], None] | None = None,
    cost: Callable[[Any, Resources], Cost] | None = None,
    resumes_at: Callable[[Sequence[str]], Iterable[int]] | None = None,
    tolerance: Callable[[Any, Any], str] | None = None,
    parts: bool = False,
    requests: tuple[str, ...] = (),
    lost_peer_errors: tuple[str, ...] = (),
) -> Callable[[Callable[[ConfigT, StepContext], ResultT]], StepKind[ConfigT, ResultT]]:
    """Declare a kind of step.

    Args:
        policy: "tracked": the code is identity. "versioned": `version` is, and other code under it is drift.
        version: what a versioned kind declares.
        packages: third-party packages that shape the output; their versions enter the identity.
        resources: what one step of this kind needs, unless the recipe says otherwise.
        continues: the config field that names the predecessor in a trajectory.
        check: raises ValueError, with a message for the user, for a config that cannot work; called by the plan.
        check_on: the same for what depends on the resources that the step asks for.
        check_decided: the same for what a recipe leaves open: a plan tells of it, and a run that would start the step
            does not begin.
        cost: estimates what a step takes, from its config and resources; of a trajectory, from where its start stops.
        resumes_at: of a trajectory: the steps that an interrupted attempt can go on from, given the files that it left
            below `work_path` (relative to it); so that a plan counts only what is left.
        tolerance: for a kind that is not exact to the bit: says what differs between two results beyond what is to be
            expected, or "". `verify --rerun` asks it.
        parts: it publishes finished parts of its output while it runs, numbered from 1; `step.growing()` is then an
            input that is ready with the first of them.
        requests: actions that people may request while it runs (`tell STEP ACTION`), besides "stop"; the function
            gets the requests from `context.requests()`.
        lost_peer_errors: names of the exception types that only say that another host of the step is gone; on several
            hosts, the failure of another member is the cause.
    """

    def declare(function: Callable[[ConfigT, StepContext], ResultT]) -> StepKind[ConfigT, ResultT]:
        return StepKind(
            function,
            policy=policy,
            version=version,
            packages=packages,
            resources=resources,
            continues=continues,
            check=check,
            check_on=check_on,
            check_decided=check_decided,
            cost=cost,
            resumes_at=resumes_at,
            tolerance=tolerance,
            parts=parts,
            requests=requests,
            lost_peer_errors=lost_peer_errors,
        )

    return declare


def _checked_resources(resources: Resources, name: str) -> Resources:
    """The same, or an error that says what there is."""
    if not isinstance(resources, Resources):
        raise UserError(f'{name}: resources are {resources!r}; write Cpu(2), Gpu("H100", 8) or Tpu("v4-8").')
    return resources


class Step(Generic[ResultT]):
    """A node of the graph. Immutable; compare by `key`, not by name."""

    def __init__(
        self,
        kind: StepKind[Any, ResultT],
        name: str,
        config: BaseModel,
        *,
        policy: Policy,
        version: str | None,
        resources: Resources,
        base: "Step[ResultT] | Milestone[ResultT] | None" = None,
        changes: dict[str, Any] | None = None,
        derivation: Literal["fork", "then"] | None = None,
        declared: Declared | None = None,
        version_declared: Declared | None = None,
    ) -> None:
        if not NAME.fullmatch(name):
            raise UserError(f"step name {name!r}: use letters, digits, '_', '-', '.' and '/' between parts.")
        if (longest := max(map(len, name.split("/")))) > MAX_PART_LENGTH:
            shown = f"{name[:MAX_SHOWN]}…"
            raise UserError(f"step name {shown}: a part has {longest} characters; use at most {MAX_PART_LENGTH}.")
        if not isinstance(config, kind.config_type):
            raise UserError(
                f"{name}: a {kind.name} step takes {kind.config_type.__qualname__}, not {type(config).__qualname__}."
            )
        if policy == "versioned" and not version:
            raise UserError(f'{name}: a versioned step needs a version; pass version="1" or use policy="tracked".')
        self.kind = kind
        self.name = name
        self.config = config
        self.policy = policy
        self.version = version
        self.resources = _checked_resources(resources, name)
        self.base = base
        """What `fork` or `then` started from; None for a step written out in full."""
        self.changes = dict(changes or {})
        """What `fork` or `then` changed, by dotted field."""
        self.derivation = derivation
        self.declared = declared
        """The call that made this step; None for one made on the command line."""
        self.version_declared = version_declared
        """The call that gave it its version; None where that comes from the kind, or is inherited."""
        self._identity: Identity | None = None
        if wrong := wrong_value_in(config):
            raise UserError(f"{f'{declared}: ' if declared else ''}{name}{wrong}")
        self._refuse_a_stop_before_the_start()

    def _refuse_a_stop_before_the_start(self) -> None:
        start = self.predecessor
        if start is None or self.until is None or start.milestone is None:
            return
        if self.until <= start.milestone:
            raise UserError(
                f"{self.name}.{self.kind.stop_field} is {self.until}, but it starts from {start.name} at "
                f"{start.milestone}; a trajectory stops after it starts. Raise it, or start from an earlier milestone."
            )

    @property
    def until(self) -> int | None:
        """The milestone at which this step stops; None for a kind without trajectory."""
        return None if self.kind.stop_field is None else cast(int, getattr(self.config, self.kind.stop_field))

    @property
    def predecessor(self) -> Input[Any] | None:
        """The input that this step's trajectory continues."""
        if self.kind.continues is None:
            return None
        start = getattr(self.config, self.kind.continues)
        return start if isinstance(start, Input) else None

    @cached_property
    def inputs(self) -> tuple[tuple[str, Input[Any]], ...]:
        """Dotted field and input, in field order."""
        return tuple(inputs_in(self.config))

    @property
    def identity(self) -> dict[str, Any]:
        """The whole identity document, stored with the output."""
        return self.computed_identity.document

    @property
    def digest(self) -> str:
        """SHA-256 of the identity document (of the trajectory, where there is one)."""
        return (self._identity or self.computed_identity).digest  # a plan asks twenty times for each

    @property
    def key(self) -> str:
        """Name of this step's record: the digest, and the milestone at which a trajectory stops."""
        return self.digest if self.until is None else f"{self.digest}@{self.until}"

    @property
    def computed_identity(self) -> Identity:
        """Digest and document, computed once."""
        if self._identity is None:
            # Inputs first and by a stack of our own: a graph may be deeper than Python's.
            below: list[Step[Any]] = [self]
            while below:
                missing = [i.step for _, i in below[-1].inputs if i.has_step and i.step._identity is None]
                if missing:
                    below.extend(missing)
                else:
                    step = below.pop()
                    step._identity = step._identity or identity_of(step)
        assert self._identity is not None
        return self._identity

    def as_input(self) -> Input[ResultT]:
        """This step as the value of an `Input` field."""
        return Input(self, milestone=self.until, follows_stop=True)

    def at(self, *, step: int) -> "Milestone[ResultT]":
        """An earlier (or later) milestone of this trajectory, usable wherever the step is."""
        if self.kind.stop_field is None:
            raise UserError(f"{self.name}: a {self.kind.name} step has no milestones; use the step itself.")
        return Milestone(self, milestone=step)

    def growing(self) -> "Milestone[ResultT]":
        """This step as an input that is ready with its first part.

        For whoever makes the same of it whether it was whole at the start or not: the identity is that of the whole.
        """
        if not self.kind.parts:
            raise UserError(f"{self.name}: a {self.kind.name} step publishes no parts; use the step itself.")
        return Milestone(self, milestone=None, is_growing=True)

    def folder(self, subpath: str) -> "Milestone[ResultT]":
        """One folder of this step's output as an input."""
        return Milestone(self, milestone=None, subpath=subpath)

    def fork(self, name: str, **changes: Any) -> "Step[ResultT]":
        """The same config with `changes` applied; dotted paths go in as `**{"learning_rate.end_value": 1e-5}`."""
        config = apply_changes(self.config, changes, owner=name)
        declared = declared_by_caller()
        return self._derived(name, config, base=self, changes=changes, derivation="fork", declared=declared)

    def then(self, name: str, **changes: Any) -> "Step[ResultT]":
        """The next leg of this trajectory: starts where this one stops, inherits all that `changes` leaves out."""
        start: Milestone[ResultT] = Milestone(self, milestone=None)
        return self.following(name, start, self, changes, declared_by_caller())

    def following(
        self,
        name: str,
        start: "Milestone[ResultT]",
        base: "Step[ResultT] | Milestone[ResultT]",
        changes: Any,
        declared: Declared,
    ) -> "Step[ResultT]":
        """A leg that leaves this trajectory at `start`; `base`, `changes` and `declared` say how it was made."""
        if self.kind.continues is None:
            raise UserError(f"{self.name}: a {self.kind.name} step cannot be continued; use fork.")
        once = {field: default for field, default in once_fields(self.kind.config_type).items() if field not in changes}
        config = apply_changes(self.config, {self.kind.continues: start, **once, **changes}, owner=name)
        return self._derived(name, config, base=base, changes=changes, derivation="then", declared=declared)

    def _derived(self, name: str, config: BaseModel, **derivation: Any) -> "Step[ResultT]":
        return Step(
            self.kind,
            name,
            config,
            policy=self.policy,
            version=self.version,
            resources=self.resources,
            **derivation,
        )

    def on(self, resources: Resources) -> "Step[ResultT]":
        """The same step on other resources; what it makes does not change."""
        moved = copy.copy(self)
        moved.resources = _checked_resources(resources, self.name)
        return moved

    def with_version(self, version: str) -> "Step[ResultT]":
        """The same step under another declared version, which steps derived from it inherit."""
        moved = copy.copy(self)
        moved.version, moved._identity = version, None
        moved.version_declared = declared_by_caller()
        return moved

    def with_config(self, config: BaseModel) -> "Step[ResultT]":
        """This step with another config, no longer derived from anything."""
        return self._derived(self.name, config)

    def __repr__(self) -> str:
        return f"Step({self.name})"
