"""Changes: a key that a config has not is answered with the field that is meant, whatever people call it."""

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel, Field, create_model

from marin_dag.values.changes import ChangeError, changed, nearest_field, text_change
from tests.catalogue import expect_error


@dataclasses.dataclass(frozen=True)
class Ema:
    decay: float


@dataclasses.dataclass(frozen=True)
class SkipRule:
    sigma: float
    warmup_steps: int


class Config(BaseModel, frozen=True, extra="forbid"):
    learning_rate: float = 0.0
    remat: bool = False
    averages: tuple[Ema, ...] = ()
    skip: SkipRule | None = None


def set_text(config: BaseModel, path: str, text: str, *, owner: str) -> Any:
    return changed(config, [text_change(path, text)], owner=owner)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("learning_rte", "learning_rate"),
        ("lr", "learning_rate"),
        ("ema", "averages"),
        ("skip_rule", "skip"),
        ("skip_sigma", "skip.sigma"),
        ("skip_warmup", "skip.warmup_steps"),
        ("skip_qqq", "skip"),
    ],
)
def test_a_field_is_found_by_what_people_call_it(word: str, meant: str) -> None:
    assert nearest_field(word, Config) == f" Did you mean {meant!r}?"


def test_a_hint_is_not_buried_under_the_names_of_all_fields() -> None:
    wide = create_model("Wide", **{f"field_{number}": (int, 0) for number in range(9)})
    with pytest.raises(ChangeError) as refused:
        set_text(wide(), "feild_3", "1", owner="phase")
    assert str(refused.value) == "phase.feild_3: Wide has no field 'feild_3'. Did you mean 'field_3'?"
    with expect_error(ChangeError):
        set_text(wide(), "qqq", "1", owner="phase")
    with expect_error(ChangeError):
        set_text(Config(), "remt", "1", owner="phase")


def test_a_value_with_a_key_that_is_none_is_answered_with_the_key_that_is_meant_and_a_value_to_copy() -> None:
    class Phase(BaseModel, frozen=True, extra="forbid"):
        skip: SkipRule | None = Field(default=None, examples=[{"sigma": 6.0, "warmup_steps": 64}])

    with pytest.raises(ChangeError) as refused:
        set_text(Phase(), "skip", '{"sigmas": 4, "qqq": 1}', owner="phase")
    said = str(refused.value)
    assert "SkipRule has no field 'sigmas' (did you mean 'sigma'?), SkipRule has no field 'qqq'; it lacks" in said
    example = said.partition(" For example: ")[2]
    assert set_text(Phase(), "skip", example, owner="phase").skip == SkipRule(sigma=6.0, warmup_steps=64)
    with expect_error(ChangeError):
        set_text(Config(), "averages", '[{"decays": 0.9}]', owner="phase")


def test_a_value_that_is_wrong_inside_a_form_that_is_right_is_not_said_to_have_keys_that_are_none() -> None:
    @dataclasses.dataclass(frozen=True)
    class Segment:
        start_step: int
        weights: dict[str, float]

        def __post_init__(self) -> None:
            if min(self.weights.values()) < 0:
                raise ValueError(f"Segment.weights is {self.weights}; a weight is not below zero.")

    @dataclasses.dataclass(frozen=True)
    class Mixture:
        segments: tuple[Segment, ...]

    phase = create_model(
        "Phase", __config__={"extra": "forbid"}, mixture=(Mixture, Mixture((Segment(0, {"a": 1.0}),)))
    )()
    negative = '{"segments": [{"start_step": 0, "weights": {"web": -1}}]}'
    with expect_error(ChangeError) as refused:
        set_text(phase, "mixture", negative, owner="phase")
    assert "has no field" not in str(refused.value)
    with expect_error(ChangeError):
        set_text(phase, "mixture", negative.replace("weights", "weihgts"), owner="phase")


def test_nothing_near_is_no_advice() -> None:
    assert nearest_field("qqq", Config) == ""


def test_a_field_of_what_is_not_there_says_what_to_set_instead() -> None:
    with expect_error(ChangeError):
        set_text(Config(), "skip.sigma", "6", owner="phase")
