"""Changes: a key that a config has not is answered with the field that is meant, whatever people call it."""

import dataclasses

import pytest
from pydantic import BaseModel

from marin_dag.changes import ChangeError, apply_text, nearest_field


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


def test_nothing_near_is_no_advice() -> None:
    assert nearest_field("qqq", Config) == ""


def test_a_field_of_what_is_not_there_says_what_to_set_instead() -> None:
    whole = r"phase\.skip\.sigma: None has no field 'sigma'; set the whole value instead: it takes \{\"sigma\": float, "
    with pytest.raises(ChangeError, match=whole):
        apply_text(Config(), "skip.sigma", "6", owner="phase")
