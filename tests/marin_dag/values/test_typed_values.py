"""Typed values: a wrong type in a dataclass of a config, or a number of no int64, is refused where its step is made,
with field and cure."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.step import StepContext, step
from tests.catalogue import expect_error


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
    """Of this pydantic knows nothing."""


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


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Config(rules=(Range(1), Range(WRONG))), "a.rules.1.least: 'many' is refused; Range(least=...) takes int."),
        (Config(rules=(Range(1, most=WRONG),)), "a.rules.0.most: 'many' is refused; Range(most=...) takes int | None."),
        (
            Config(by_name={"x": Range(1, share=WRONG)}),
            "a.by_name.x.share: 'many' is refused; Range(share=...) takes fl",
        ),
        (
            Config(rules=(Range(1, words=WRONG),)),
            "a.rules.0.words: 'many' is refused; Range(words=...) takes tuple[str",
        ),
        (Config(rules=(Range(1, inner=Range(WRONG)),)), "a.rules.0.inner.least: 'many' is refused; Range(least=...)"),
        (Config(rules=(Range(1, inner=WRONG),)), "a.rules.0.inner: 'many' is refused; Range(inner=...) takes "),
        (Config(rules=(Range(1, unit=WRONG),)), "a.rules.0.unit: 'many' is refused; "),
        (Config(anything=2**63), "a.anything: 9223372036854775808 is refused; a whole number is at most 9,223,372,0"),
        (Config(anything=-(2**64)), "a.anything: -18446744073709551616 is refused; a whole number is at least -9,223"),
        (Config(anything={"x": [1, 10**60]}), "a.anything.x.1: 1000000000"),
        (Config(rules=(Range(10**21),)), "a.rules.0.least: 1000000000000000000000 is refused; a whole number is at mo"),
    ],
)
def test_a_wrong_type_or_number_is_refused_with_its_line_step_and_field(config: Config, said: str) -> None:
    with expect_error(UserError):
        ranges("a", config)


@pytest.mark.parametrize("text", ["5", "0.5"])
def test_a_number_that_is_a_text_is_none_wherever_it_stands(text: Any) -> None:
    for config in (Config(rules=(Range(1, share=text),)), Config(rules=(Range(1, weights={"web": text}),))):
        with expect_error(UserError):
            ranges("a", config)


def test_what_python_takes_for_the_declared_type_is_taken_as_it_is() -> None:
    made_by: Any = len
    unknown = Unknown()
    rules = Range(np.int64(1), most=2, share=1, words=["a"], weights={"web": 1}, inner=Range(2), unit="lines")  # type: ignore[arg-type]
    config = Config(rules=(rules,), anything=Opaque(made_by, unknown))
    assert ranges("a", config).config is config
    assert config.rules[0].share is rules.share and config.rules[0].words == ["a"]


def test_a_fork_is_held_to_it_too() -> None:
    whole = ranges("a", Config(rules=(Range(1),)))
    with expect_error(UserError):
        whole.fork("b", rules=(Range(WRONG),))
