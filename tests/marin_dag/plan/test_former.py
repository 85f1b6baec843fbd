"""Former configs: what a record was made with, in today's types, or nothing."""

import dataclasses
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, Runtime, Step, StepContext, StopAt, step
from marin_dag.ledger.records import Record
from marin_dag.plan.former import former_config


class Shape(Enum):
    ROUND = "round"
    SQUARE = "square"


@dataclasses.dataclass(frozen=True)
class Decay:
    rate: float


class Constant(BaseModel, frozen=True, extra="forbid"):
    value: float


class Made(BaseModel, frozen=True, extra="forbid"):
    total: int


class MakeConfig(BaseModel, frozen=True, extra="forbid"):
    start: Input[Made] | None = None
    until: StopAt[int] = 10
    size: int = Field(default=1, ge=1)
    shape: Shape = Shape.ROUND
    schedule: Decay | Constant | None = None
    parts: tuple[Constant, ...] = ()
    weights: dict[str, float] = {}
    workers: Runtime[int] = 2


@step(continues="start")
def make(config: MakeConfig, context: StepContext) -> Made:
    return Made(total=config.size)


def record(made: Step[Any], **config: Any) -> Record:
    """Of `made`; `config` replaces nodes of its document."""
    kind, owner, *fields = made.identity["config"]
    node = [kind, owner, *([name, config.get(name, value)] for name, value in fields)]
    return Record.model_construct(identity={**made.identity, "config": node}, milestone=made.until)


NOW = make("now", MakeConfig(until=30, size=5, shape=Shape.SQUARE, parts=(Constant(value=1),), workers=7))


@pytest.mark.parametrize(
    "fields",
    [
        {"size": 3, "until": 4},
        {"shape": Shape.ROUND, "schedule": Decay(0.5)},
        {"schedule": Constant(value=2.0), "parts": (Constant(value=3), Constant(value=4))},
        {"weights": {"web": 0.5, "code": 0.5}, "parts": ()},
    ],
)
def test_a_config_comes_back_as_it_was_but_for_what_is_execution(fields: dict[str, Any]) -> None:
    then = MakeConfig(**fields)
    assert former_config(NOW, record(make("then", then))) == then.model_copy(update={"workers": 7})


def test_a_leg_begins_where_it_began_then() -> None:
    first = make("first", MakeConfig(until=10))
    then, now = first.then("leg", until=20, size=2), first.at(step=15).then("leg", until=40, size=3)
    former = former_config(now, record(then))
    assert isinstance(former, MakeConfig) and former.start is not None
    assert (former.start.milestone, former.until, former.size) == (10, 20, 2)


def test_a_leg_that_changes_nothing_begins_where_it_begins_and_not_where_its_trajectory_does() -> None:
    first = make("first", MakeConfig(until=10))
    leg = first.then("leg", until=20)
    former = former_config(leg, record(leg))
    assert isinstance(former, MakeConfig) and former.start is not None
    assert (former.start.milestone, former.until) == (10, 20)


@pytest.mark.parametrize(
    "config",
    [
        {"size": 0},
        {"size": ["decimal", 0, "1", 0]},
        {"shape": ["enum", f"{__name__}.Shape", "OVAL"]},
        {"schedule": ["dataclass", "gone.Schedule", ["rate", 0.5]]},
        {"schedule": ["dataclass", f"{__name__}.Gone", ["rate", 0.5]]},
        {"schedule": ["dataclass", f"{__name__}.Decay"]},
        {"start": ["input", "0" * 64, 10, ""]},
    ],
)
def test_what_todays_types_cannot_hold_is_no_config(config: dict[str, Any]) -> None:
    assert former_config(NOW, record(NOW, **config)) is None
