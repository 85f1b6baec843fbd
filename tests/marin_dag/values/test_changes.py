"""Changes: all are applied, then validated once; a key that a config has not is answered with the nearest field."""

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel, Field, create_model, model_validator

from marin_dag.values.changes import ChangeError, changed, nearest_field, text_change, value_changes
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
        ("sigma", "skip.sigma"),
        ("skip_sigma", "skip.sigma"),
        ("skip_warmup", "skip.warmup_steps"),
    ],
)
def test_the_nearest_field_is_found_here_and_one_step_below(word: str, meant: str) -> None:
    assert nearest_field(word, Config) == f" Did you mean {meant!r}?"


def test_a_hint_is_not_buried_under_the_names_of_all_fields() -> None:
    wide = create_model("Wide", **{f"field_{number}": (int, 0) for number in range(9)})
    for config, field in ((wide(), "feild_3"), (wide(), "qqq"), (Config(), "remt")):
        with expect_error(ChangeError):
            set_text(config, field, "1", owner="phase")


def test_a_mapping_with_wrong_keys_is_answered_with_the_missing_ones_and_an_example() -> None:
    class Phase(BaseModel, frozen=True, extra="forbid"):
        skip: SkipRule | None = Field(default=None, examples=[{"sigma": 6.0, "warmup_steps": 64}])

    with expect_error(ChangeError) as refused:
        set_text(Phase(), "skip", '{"sigmas": 4, "qqq": 1}', owner="phase")
    example = str(refused.value).partition(" For example: ")[2]
    assert set_text(Phase(), "skip", example, owner="phase").skip == SkipRule(sigma=6.0, warmup_steps=64)
    with expect_error(ChangeError):
        set_text(Config(), "averages", '[{"decays": 0.9}]', owner="phase")


def test_a_value_that_a_nested_class_refuses_gives_the_reason_of_that_class() -> None:
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
    with expect_error(ChangeError):
        set_text(phase, "mixture", negative, owner="phase")
    with expect_error(ChangeError):
        set_text(phase, "mixture", negative.replace("weights", "weihgts"), owner="phase")


def test_nothing_near_is_no_advice() -> None:
    assert nearest_field("qqq", Config) == ""


def test_a_field_of_a_missing_value_is_answered_with_what_the_whole_takes() -> None:
    with expect_error(ChangeError):
        set_text(Config(), "skip.sigma", "6", owner="phase")


class Wsd(BaseModel, frozen=True, extra="forbid"):
    peak_value: float
    end_value: float

    @model_validator(mode="after")
    def _falls(self) -> "Wsd":
        if self.end_value > self.peak_value:
            raise ValueError(f"end_value {self.end_value} is above peak_value {self.peak_value}.")
        return self


class Phase(BaseModel, frozen=True, extra="forbid"):
    learning_rate: Wsd = Wsd(peak_value=1e-3, end_value=1e-4)


@pytest.mark.parametrize("order", [1, -1])
def test_two_fields_that_are_right_together_are_changed_together_in_either_order(order: int) -> None:
    values = {"learning_rate.end_value": 2e-3, "learning_rate.peak_value": 4e-3}
    changes = value_changes(dict(list(values.items())[::order]))
    assert changed(Phase(), changes, owner="phase").learning_rate == Wsd(peak_value=4e-3, end_value=2e-3)
    with expect_error(ChangeError):
        changed(Phase(), value_changes({"learning_rate.end_value": 2e-3}), owner="phase")


def test_a_whole_field_and_a_part_of_it_are_changed_whole_first() -> None:
    whole = Wsd(peak_value=1.0, end_value=0.5)
    changes = value_changes({"learning_rate.end_value": 0.25, "learning_rate": whole})
    assert changed(Phase(), changes, owner="phase").learning_rate == Wsd(peak_value=1.0, end_value=0.25)
