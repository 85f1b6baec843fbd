"""Typed values: a step refuses a wrong type in a dataclass of its config, and a number that no int64 holds."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.step import StepContext, step
from tests.catalogue import check_message


@dataclasses.dataclass(frozen=True)
class Range:
    least: int
    most: int | None = None
    share: float = 0.5
    words: tuple[str, ...] = ()
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    inner: "Range | None" = None
    unit: Literal["words", "lines"] = "words"


class Unknown:
    """A class that pydantic cannot check."""


@dataclasses.dataclass(frozen=True)
class Opaque:
    made_by: Callable[[], int] | None = None
    unknown: Unknown | None = None


class Config(BaseModel, frozen=True, extra="forbid"):
    rules: tuple[Range, ...] = ()
    by_name: dict[str, Range] = {}
    anything: Any = None


class Result(BaseModel, frozen=True, extra="forbid"):
    pass


@step()
def ranges(config: Config, context: StepContext) -> Result:
    return Result()


WRONG: Any = "many"


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Expect a UserError that begins with a line of this file."""
    with pytest.raises(UserError) as caught:
        yield
    place, _, message = str(caught.value).partition(": ")
    assert Path(place.rpartition(":")[0]).name == Path(__file__).name
    check_message(message)


@pytest.mark.parametrize(
    "config",
    [
        Config(rules=(Range(1), Range(WRONG))),
        Config(rules=(Range(1, most=WRONG),)),
        Config(by_name={"x": Range(1, share=WRONG)}),
        Config(rules=(Range(1, words=WRONG),)),
        Config(rules=(Range(1, inner=Range(WRONG)),)),
        Config(rules=(Range(1, inner=WRONG),)),
        Config(rules=(Range(1, unit=WRONG),)),
        Config(anything=2**63),
        Config(anything=-(2**64)),
        Config(anything={"x": [1, 10**60]}),
        Config(anything=frozenset({2**70})),
        Config(rules=(Range(10**21),)),
    ],
)
def test_a_wrong_type_or_number_is_refused_with_its_line_step_and_field(config: Config) -> None:
    with refused():
        ranges("a", config)


@pytest.mark.parametrize("text", ["5", "0.5"])
def test_a_number_as_text_is_refused_wherever_it_stands(text: Any) -> None:
    for config in (Config(rules=(Range(1, share=text),)), Config(rules=(Range(1, weights={"web": text}),))):
        with refused():
            ranges("a", config)


def test_a_value_that_fits_the_declared_type_is_kept_as_it_is() -> None:
    made_by: Any = len
    unknown = Unknown()
    rules = Range(np.int64(1), most=2, share=1, words=["a"], weights={"web": 1}, inner=Range(2), unit="lines")  # type: ignore[arg-type]
    config = Config(rules=(rules,), anything=Opaque(made_by, unknown))
    assert ranges("a", config).config is config
    assert config.rules[0].share is rules.share and config.rules[0].words == ["a"]


def test_a_fork_is_checked_as_well() -> None:
    whole = ranges("a", Config(rules=(Range(1),)))
    with refused():
        whole.fork("b", rules=(Range(WRONG),))
