"""Step functions: a signature that declares no step is refused where it is written, with what one looks like."""

from collections.abc import Callable
from typing import Any

import pytest

from marin_dag.graph.step import StepContext, step
from tests.marin_dag.toy import CountResult, TextConfig


def unannotated(config, context):  # type: ignore[no-untyped-def]
    return CountResult(count=1)


def without_result(config: TextConfig, context: StepContext):  # type: ignore[no-untyped-def]
    return CountResult(count=1)


def turned_round(context: StepContext, config: TextConfig) -> CountResult:
    return CountResult(count=1)


def lonely(config: TextConfig) -> CountResult:
    return CountResult(count=1)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (unannotated, "the config type is not given; a step function is written (config: MyConfig, context: "),
        (without_result, "the result type is not given; a step function is written (config: "),
        (
            turned_round,
            "the config type is <class 'marin_dag.graph.context.StepContext'>; a step function is written (config",
        ),
        (lonely, "takes 1 arguments; a step function takes (config, context)."),
    ],
)
def test_a_signature_of_no_step_is_refused_with_one_of_a_step(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(TypeError) as refused:
        step()(function)
    assert str(refused.value).startswith(f"@step {__name__}.{function.__name__}: {said}")
