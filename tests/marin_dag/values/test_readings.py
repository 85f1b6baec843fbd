"""Readings: text is read by the field's type, or refused with what the field takes."""

import dataclasses
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel

from marin_dag.values.readings import RefusedValueError, read_text, shape, validated
from tests.catalogue import expect_error


@dataclasses.dataclass(frozen=True)
class Constant:
    value: float
    kind: Literal["constant"] = "constant"


@dataclasses.dataclass(frozen=True)
class Ramp:
    steps: int
    kind: Literal["ramp"] = "ramp"


class Mixture(BaseModel, frozen=True, extra="forbid"):
    weights: dict[str, float]


Schedule = Constant | Ramp


def _above_zero(value: str) -> str:
    if value.startswith("-"):
        raise ValueError("it lies above 0.")
    return value


Positive = Annotated[str, AfterValidator(_above_zero)]


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "3", 3),
        (float, "1e-3", 1e-3),
        (str, "1", "1"),
        (str, "web", "web"),
        (bool, "true", True),
        (bool, "False", False),
        (bool | int, "true", True),
        (int | None, "null", None),
        (tuple[str, ...], '["a", "b"]', ("a", "b")),
        (dict[str, int], "{'a': 1}", {"a": 1}),
        (Schedule, '{"kind": "ramp", "steps": 4}', Ramp(4)),
        (dict[str, bool], '{"a": true}', {"a": True}),
    ],
)
def test_a_text_is_read_by_the_type_of_its_field(hint: Any, text: str, value: object) -> None:
    found = read_text(hint, text, None)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int, "true"),
        (int, "True"),
        (float, "false"),
        (int | None, "true"),
        (dict[str, float], '{"web": true}'),
        (tuple[int, ...], "[1, true]"),
        (Schedule, '{"kind": "constant", "value": true}'),
        (Mixture, '{"weights": {"web": false}}'),
    ],
)
def test_a_truth_value_is_never_taken_for_a_number(hint: Any, text: str) -> None:
    with expect_error(RefusedValueError):
        read_text(hint, text, None)


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (Ramp | None, '{"kind": "ramp"}'),
        (Ramp, '{"steps": 4, "step": 5}'),
        (Schedule, '{"value": 4, "steps": 5}'),
        (tuple[Ramp, ...], '[{"steps": 4, "step": 5}]'),
        (Schedule | None, "1e-3"),
    ],
)
def test_a_refused_mapping_is_answered_with_what_the_field_takes(hint: Any, text: str) -> None:
    with expect_error(RefusedValueError):
        read_text(hint, text, None)
    assert shape(Mixture) == '{"weights": {str: float, ...}}'


def test_a_plain_field_gives_the_reason_for_the_refusal() -> None:
    with expect_error(RefusedValueError):
        read_text(int, "x", None)


def test_a_refusal_ends_with_one_full_stop_whether_the_types_own_message_has_one_or_not() -> None:
    with expect_error(RefusedValueError):
        read_text(Positive, "-a", None)


@pytest.mark.parametrize("hint", [tuple[Ramp, ...], tuple[str, ...], dict[str, int]])
def test_a_container_field_shows_the_form_of_its_items(hint: Any) -> None:
    with expect_error(RefusedValueError):
        read_text(hint, "Ramp(1)", None)


@pytest.mark.parametrize("text", ["none", "NONE"])
def test_none_in_other_letters_is_answered_with_null_where_null_is_allowed(text: str) -> None:
    assert read_text(Ramp | None, "None", None) is None
    for hint in (Ramp | None, Ramp):
        with expect_error(RefusedValueError):
            read_text(hint, text, None)


def test_a_dataclass_with_slots_is_read_as_any_other():
    @dataclasses.dataclass(frozen=True, slots=True)
    class Slotted:
        x: int

    assert validated(Slotted, {"x": 1}) == Slotted(1)
    with expect_error(RefusedValueError):
        validated(Slotted, {"x": 1, "y": 2})
