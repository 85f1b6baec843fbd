"""Step functions: a wrong signature is refused where it is written, with the right form."""

from collections.abc import Callable
from typing import Any

import pytest

from marin_dag.graph.step import StepContext, step
from tests.catalogue import expect_error
from tests.marin_dag.toy import CountResult, TextConfig


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
