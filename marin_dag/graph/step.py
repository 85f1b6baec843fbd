"""Step: a name, a kind and a config. Kind, code and config make its identity; its name and its machines do not."""

import contextlib
import dataclasses
import importlib
import operator
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic import BaseModel

from marin_dag.code.fingerprint import source_of
from marin_dag.errors import UserError
from marin_dag.graph.background import Background
from marin_dag.graph.context import StepContext, StepStopped
from marin_dag.graph.cost import Cost
from marin_dag.graph.declared import Declared, declared_by_caller
from marin_dag.graph.inputs import Input
from marin_dag.graph.kind import Kind, KindOptions
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.overrides import active
from marin_dag.graph.resources import Resources
from marin_dag.identity.code_identity import Policy, code_of
from marin_dag.identity.identity import Identity, identity_of
from marin_dag.record_key import key_of
from marin_dag.values.changes import Change, changed, value_at, value_change, value_changes
from marin_dag.values.fields import Added, Once, Runtime, StopAt, once_fields
from marin_dag.values.typed_values import wrong_value_in
from marin_dag.values.walk import references_in

__all__ = [
    "Added",
    "Cost",
    "Input",
    "Once",
    "OutputRef",
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

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")
MAX_PART_LENGTH = 200
"""File systems take 255 bytes; the folder of an output adds a digest and a suffix to the step's name."""
MAX_SHOWN = 40
"""Characters of a name that is too long."""


class StepKind(Kind[ConfigT, ResultT]):
    """A kind of step: call it with a name and a config to get a step."""

    def __reduce__(self) -> Any:
        # By name, so that a worker imports it. Only a kind that no import finds (in a script, in a test function)
        # travels by value, and takes the globals of its module along.
        module, qualname = self.function.__module__, self.function.__qualname__
        with contextlib.suppress(AttributeError):
            if module != "__main__" and _kind_named(module, qualname) is self:
                return _kind_named, (module, qualname)
        return super().__reduce__()

    def __call__(
        self,
        name: str,
        config: ConfigT,
        *,
        policy: Policy | None = None,
        version: str | None = None,
        resources: Resources | None = None,
    ) -> "Step[ResultT]":
        """Return a step; a recipe may choose another policy and other resources than the kind declares."""
        declared = declared_by_caller()
        if not isinstance(config, self.config_type):
            raise UserError(
                f"{name}: a {self.name} step takes {self.config_type.__qualname__}, not {type(config).__qualname__}."
            )
        return Step(
            kind=self,
            name=name,
            config=changed(config, active().of(name, self.config_type), owner=name),
            policy=policy or self.policy,
            version=version or self.version,
            resources=resources or self.resources,
            declared=declared,
            version_declared=declared if version else None,
            written_until=None if self.stop_field is None else getattr(config, self.stop_field),
        )


def _kind_named(module: str, qualname: str) -> Any:
    return operator.attrgetter(qualname)(importlib.import_module(module))


class step(KindOptions):  # noqa: N801 -- a decorator
    """Declare a kind of step: `@step(policy="tracked")` above a function of a config and a `StepContext`."""

    def __call__(self, function: Callable[[ConfigT, StepContext], ResultT]) -> StepKind[ConfigT, ResultT]:
        return StepKind(function=function, **vars(self))


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class Step(Generic[ResultT]):
    """A node of the graph. Immutable; compare by `key`, not by name."""

    kind: StepKind[Any, ResultT]
    name: str
    config: Any
    policy: Policy
    version: str | None
    resources: Resources
    base: "Step[ResultT] | None" = None
    """The step that `fork` or `then` started from; None for a step written out in full."""
    derivation: Literal["fork", "then"] | None = None
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Dotted field to value: the differences from `base` by `fork`, `then` or `--set`."""
    declared: Declared | None = None
    """The line that made this step; None for one made on the command line."""
    version_declared: Declared | None = None
    """The line that set the version; None where the version comes from the kind, or is inherited."""
    written_until: int | None = None
    """The stop as the recipe has it, without `--set`."""
    background: Background | None = None
    """How the step yields to other steps; None for a step of the run itself."""
    _identity: Identity | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UserError(f"step name {self.name!r}: use letters, digits, '_', '-', '.' and '/' between parts.")
        if (longest := max(map(len, self.name.split("/")))) > MAX_PART_LENGTH:
            shown = f"{self.name[:MAX_SHOWN]}…"
            raise UserError(f"step name {shown}: a part has {longest} characters; use at most {MAX_PART_LENGTH}.")
        if self.policy == "versioned" and not self.version:
            raise UserError(f'{self.name}: a versioned step needs a version; pass version="1" or use policy="tracked".')
        if not isinstance(self.resources, Resources):
            raise UserError(
                f'{self.name}: resources are {self.resources!r}; write Cpu(2), Gpu("H100", 8) or Tpu("v4-8").'
            )
        if wrong := wrong_value_in(self.config):
            raise UserError(f"{f'{self.declared}: ' if self.declared else ''}{self.name}{wrong}")
        self._check_stop()
        active().add(self)

    def _check_stop(self) -> None:
        start = self.predecessor
        if start is not None and start.milestone is not None and (self.until or 0) <= start.milestone:
            raise UserError(
                f"{self.name}.{self.kind.stop_field}: {self.until} is not after the start ({start.name} at "
                f"{start.milestone}). Use a value above {start.milestone}, or start from an earlier milestone."
            )

    # Cached, as are the digest and the key: a plan asks twenty times for each.
    @cached_property
    def until(self) -> int | None:
        """The milestone at which this step stops; None for a kind without milestones."""
        return None if self.kind.stop_field is None else cast(int, getattr(self.config, self.kind.stop_field))

    @property
    def predecessor(self) -> "OutputRef[Step[Any]] | None":
        """The output whose run this step continues."""
        if self.kind.continues is None:
            return None
        start = getattr(self.config, self.kind.continues)
        return start if isinstance(start, OutputRef) else None

    @cached_property
    def inputs(self) -> "tuple[tuple[str, OutputRef[Step[Any]]], ...]":
        """Dotted field and reference, in field order."""
        return tuple((field, item) for field, item in references_in(self.config) if isinstance(item, OutputRef))

    @property
    def identity(self) -> dict[str, Any]:
        """The whole identity document, stored with the output."""
        return self.computed_identity.document

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the identity document (of the run, for a step that continues one unchanged)."""
        return self.computed_identity.digest

    @cached_property
    def key(self) -> str:
        """Name of this step's record: the digest, and the milestone at which the step stops."""
        return key_of(self.digest, self.until)

    @property
    def computed_identity(self) -> Identity:
        """Digest and document, computed once."""
        if self._identity is None:
            # Inputs first and by a stack of our own: a graph may be deeper than Python's.
            below: list[Step[Any]] = [self]
            while below:
                missing = [item.step for _, item in below[-1].inputs if item.step._identity is None]
                if missing:
                    below.extend(missing)
                else:
                    step = below.pop()
                    step._identity = step._identity or step._compute_identity()
        assert self._identity is not None
        return self._identity

    def _compute_identity(self, counts_as: str = "") -> Identity:
        kind, start = self.kind, self.predecessor
        code = code_of(kind.function, self.config, policy=self.policy, version=self.version, packages=kind.packages)
        code = code._replace(counts_as=counts_as)
        continued = None if start is None or start.subpath else start.step._identity
        return identity_of(kind.function, code, self.config, name=self.name, continues=kind.continues, start=continued)

    def count_as(self, fingerprint: str, digest: str) -> bool:
        """Let the code count as that of `fingerprint` if the step then has this digest; return whether it has."""
        identity = self._compute_identity(fingerprint)
        if identity.digest != digest:
            return False
        self.forget_identity()
        self._identity = identity
        return True

    def forget_identity(self) -> None:
        """Forget the identity, since that of an input has changed; it is computed again when it is needed."""
        self._identity = None
        for name in ("digest", "key"):
            self.__dict__.pop(name, None)

    def source(self) -> dict[str, str]:
        """Return the readable source of every definition in the fingerprint."""
        return source_of(self.kind.function, self.config)

    def as_input(self) -> "OutputRef[Step[ResultT]]":
        """Return this step as the value of an `Input` field."""
        return OutputRef(self)

    def at(self, *, step: int) -> "OutputRef[Step[ResultT]]":
        """Return an earlier (or later) milestone of this step's run, as an input of another step."""
        if self.kind.stop_field is None:
            raise UserError(f"{self.name}: a {self.kind.name} step has no milestones; use the step itself.")
        return OutputRef(self, at=step)

    def growing(self) -> "OutputRef[Step[ResultT]]":
        """Return this step as an input that is ready with its first part.

        The input's identity is that of the whole output, so the reader's output must not depend on when it starts.
        """
        if not self.kind.parts:
            raise UserError(f"{self.name}: a {self.kind.name} step publishes no parts; use the step itself.")
        return OutputRef(self, is_growing=True)

    def folder(self, subpath: str) -> "OutputRef[Step[ResultT]]":
        return OutputRef(self).folder(subpath)

    def fork(self, name: str, **changes: Any) -> "Step[ResultT]":
        """Return a step of the same config with `changes`; dotted paths go in as `**{"rule.size": 2}`."""
        return self.forked(name, value_changes(changes), declared_by_caller())

    def forked(self, name: str, changes: Sequence[Change], declared: Declared | None = None) -> "Step[ResultT]":
        return self._derived(name, "fork", changes, declared)

    def then(self, name: str, **changes: Any) -> "Step[ResultT]":
        """Return the next step of this run: it starts where this one stops, and inherits all but `changes`."""
        return self.then_from(OutputRef(self), name, changes, declared_by_caller())

    def then_from(
        self, start: "OutputRef[Step[ResultT]]", name: str, changes: dict[str, Any], declared: Declared
    ) -> "Step[ResultT]":
        if self.kind.continues is None:
            raise UserError(f"{self.name}: a {self.kind.name} step cannot be continued; use fork.")
        config_type: Any = self.kind.config_type
        implied = {self.kind.continues: start, **once_fields(config_type)}
        leading = [value_change(field, value, is_implied=True) for field, value in implied.items()]
        return self._derived(name, "then", [*leading, *value_changes(changes)], declared)

    def _derived(
        self, name: str, derivation: Literal["fork", "then"], changes: Sequence[Change], declared: Declared | None
    ) -> "Step[ResultT]":
        every = [*changes, *active().of(name, self.kind.config_type)]
        config = changed(self.config, every, owner=name)
        stop = self.kind.stop_field or ""
        written = next((change.read(int) for change in reversed(changes) if change.path == stop), self.written_until)
        start = getattr(config, self.kind.continues or "", None)
        begin = (start.milestone or 0) if isinstance(start, OutputRef) else -1
        is_inherited = stop and written != self.until and stop not in {change.path for change in every}
        if is_inherited and begin >= getattr(config, stop):
            # `--set` moved the stop of the base to before this step's start, and is not meant for this step.
            config = changed(config, [value_change(stop, written, is_implied=True)], owner=name)
        own = [change.path for change in every if not change.is_implied]
        return dataclasses.replace(
            self,
            name=name,
            config=config,
            base=self,
            derivation=derivation,
            changes={path: value_at(config, path) for path in own},
            declared=declared,
            version_declared=None,
            written_until=written,
        )

    def on(self, resources: Resources) -> "Step[ResultT]":
        """Return the same step on other resources; its output does not change."""
        return dataclasses.replace(self, resources=resources)

    def in_background(self, background: Background) -> "Step[ResultT]":
        """Return the same step in the background of a run; its digest and output do not change."""
        return dataclasses.replace(self, background=background)

    def with_version(self, version: str) -> "Step[ResultT]":
        """Return the same step under another declared version, which steps derived from it inherit."""
        return dataclasses.replace(self, version=version, version_declared=declared_by_caller())

    def __repr__(self) -> str:
        return f"Step({self.name})"
