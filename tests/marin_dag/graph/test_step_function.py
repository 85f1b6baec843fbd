"""Step functions and kinds: a wrong signature or option is refused where it is written, with the right form."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.step import Once, StepContext, StopAt, step
from marin_dag.values.reference import InputNotReadyError
from tests.catalogue import expect_error
from tests.marin_dag.toy import CountResult, TextConfig, text


def unannotated(config, context):  # type: ignore[no-untyped-def]
    return CountResult(count=1)


def without_result(config: TextConfig, context: StepContext):  # type: ignore[no-untyped-def]
    return CountResult(count=1)


def turned_round(context: StepContext, config: TextConfig) -> CountResult:
    return CountResult(count=1)


def lonely(config: TextConfig) -> CountResult:
    return CountResult(count=1)


@pytest.mark.parametrize("function", [unannotated, without_result, turned_round, lonely])
def test_a_wrong_signature_is_refused_with_the_right_form(function: Callable[..., Any]) -> None:
    with expect_error(TypeError):
        step()(function)


class Stops(BaseModel, frozen=True, extra="forbid"):
    until: StopAt[int]


class StopsTwice(BaseModel, frozen=True, extra="forbid"):
    first: StopAt[int]
    second: StopAt[int]


class Thawed(BaseModel, extra="forbid"):
    text: str


class OnceWithoutDefault(BaseModel, frozen=True, extra="forbid"):
    start: CountResult | None = None
    until: StopAt[int]
    seed: Once[int]


def counted(config: TextConfig, context: StepContext) -> CountResult:
    return CountResult(count=1)


def stopping(config: Stops, context: StepContext) -> CountResult:
    return CountResult(count=1)


def stopping_twice(config: StopsTwice, context: StepContext) -> CountResult:
    return CountResult(count=1)


def thawed(config: Thawed, context: StepContext) -> CountResult:
    return CountResult(count=1)


def misspelt(config: "TextConfigg", context: StepContext) -> CountResult:  # type: ignore[name-defined]  # noqa: F821
    return CountResult(count=1)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (counted, {"policy": "loose"}),
        (counted, {"policy": "versioned"}),
        (counted, {"continues": "text"}),
        (stopping, {"parts": True}),
        (stopping, {"continues": "begin"}),
        (stopping_twice, {}),
        (thawed, {}),
        (misspelt, {}),
    ],
)
def test_options_and_types_that_do_not_fit_are_refused(function: Callable[..., Any], options: dict[str, Any]) -> None:
    with expect_error(TypeError):
        step(**options)(function)


def test_a_field_that_acts_once_needs_a_default_to_return_to() -> None:
    @step(continues="start")
    def once(config: OnceWithoutDefault, context: StepContext) -> CountResult:
        return CountResult(count=1)

    with expect_error(TypeError):
        once("once", OnceWithoutDefault(until=1, seed=1)).then("next", until=2)


def test_an_input_that_a_step_cannot_be_is_refused_with_what_to_use() -> None:
    web = text("web", TextConfig(text="web"))
    with expect_error(UserError):
        web.at(step=3)
    with expect_error(UserError):
        web.then("more", text="code")
    with expect_error(UserError):
        web.folder("../other")
    with expect_error(InputNotReadyError):
        OutputRef(web).result  # noqa: B018
