"""`Added`: a later field moves no digest at the value that the class meant before, and counts at any other."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model

from marin_dag.code.fingerprint import value_types
from marin_dag.graph.step import Input, Once, Runtime, Step, StepContext, StopAt, step
from marin_dag.identity.canonical import canonical, sha256
from marin_dag.identity.diff import FieldChanged, differences
from marin_dag.values.fields import Added
from tests.catalogue import expect_error
from tests.marin_dag.workbench import Workbench

PLAIN = st.sampled_from([None, True, False, 0, 1, 300, 0.0, -0.0, 1.0, "", "0", "None", ()])


@dataclasses.dataclass(frozen=True)
class Rule:
    sigma: float
    least: Annotated[int | None, Added(without=None)] = None


class Done(BaseModel, frozen=True, extra="forbid"):
    total: int


class LegConfig(BaseModel, frozen=True, extra="forbid"):
    start: Input[Done] | None = None
    until: StopAt[int] = 10
    size: int = 1
    rule: Rule = Rule(6.0)
    restore: Once[str] = "everything"
    leave_out: Once[Annotated[int, Added(without=0)]] = Field(default=0, ge=0)


@step(policy="versioned", version="1", continues="start")
def leg(config: LegConfig, context: StepContext) -> Done:
    return Done(total=config.size)


def before_and_after(without: Any, **fields: Any) -> tuple[type[BaseModel], type[BaseModel]]:
    """Return a class as it was, and with a later field."""
    options = {"frozen": True, "extra": "forbid"}
    old: Any = create_model("Config", __config__=options, size=(int, 1), **fields)
    later = (Annotated[Any, Added(without=without)], without)
    new: Any = create_model("Config", __config__=options, size=(int, 1), later=later, **fields)
    return old, new


def digest(value: Any) -> str:
    return sha256(canonical(value, "value"))


def kept(value: Any) -> str:
    """Return a key that is equal for plain values that count as equal, computed independently of the engine."""
    return f"{type(value).__name__} {value!r}"


@given(without=PLAIN, one=PLAIN, other=PLAIN)
def test_the_digest_is_that_of_before_if_and_only_if_the_value_is_what_was_meant_then(without, one, other):
    old, new = before_and_after(without)
    assert (digest(new(later=one)) == digest(old())) == (kept(one) == kept(without))
    assert (digest(new(later=one)) == digest(new(later=other))) == (kept(one) == kept(other))


@given(without=PLAIN, value=PLAIN, size=st.integers(0, 2))
def test_so_it_is_however_deep_the_class_lies(without, value, size):
    old, new = before_and_after(without)
    for around in (lambda x: [x], lambda x: {"a": (1, x)}, lambda x: before_and_after(0, inner=(Any, ...))[1](inner=x)):
        same = digest(around(new(size=size, later=value))) == digest(around(old(size=size)))
        assert same == (kept(value) == kept(without))


def test_it_holds_in_a_dataclass_and_a_numpy_scalar_is_its_python_value():
    _, *fields = canonical(Rule(6.0), "rule")
    assert fields == [f"{__name__}.Rule", ["sigma", 6.0]]
    assert canonical(Rule(6.0, 8), "rule")[2:] == [["least", 8], ["sigma", 6.0]]
    _, new = before_and_after(0)
    assert digest(new(later=np.int64(0))) == digest(new()) and digest(new(later=np.float64(0))) != digest(new())


def test_another_default_is_another_identity_for_who_does_not_write_it():
    old, _ = before_and_after(0)
    later = (Annotated[int, Added(without=0)], 5)
    options = {"frozen": True, "extra": "forbid"}
    changed: Any = create_model("Config", __config__=options, size=(int, 1), later=later)
    assert digest(changed(later=0)) == digest(old())
    assert digest(changed()) == digest(before_and_after(0)[1](later=5)) != digest(old())


def test_no_class_enters_the_fingerprint_of_the_code_with_it():
    assert {kind for kind, _ in value_types(LegConfig())} == {LegConfig, Rule}


def as_before(step: Step[Any]) -> dict[str, Any]:
    """Return the document as stored when the class had neither field, which is exactly what is stored now."""
    text = json.dumps(step.identity)
    assert "leave_out" not in text and "least" not in text
    return json.loads(text)


def test_only_another_value_than_the_former_meaning_differs_from_an_older_document():
    old = as_before(leg("now", LegConfig()))
    assert differences(old, leg("now", LegConfig()).identity) == ()
    now = leg("now", LegConfig(leave_out=300, rule=Rule(6.0, 8))).identity
    assert differences(old, now) == (FieldChanged("leave_out", "0", "300"), FieldChanged("rule.least", "null", "8"))
    assert differences(now, old) == (FieldChanged("leave_out", "300", "0"), FieldChanged("rule.least", "8", "null"))


def test_the_meaning_of_an_unknown_class_without_a_field_is_not_guessed():
    old, new = ({"config": ["model", "gone.Config", *fields]} for fields in ([], [["size", 1]]))
    rest = {"schema": 2, "kind": "k", "code": leg("now", LegConfig()).identity["code"]}
    assert differences(old | rest, new | rest) == (FieldChanged("size", "(absent)", "1"),)


def test_an_output_older_than_the_field_is_done_and_why_shows_another_value_with_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    bench = Workbench(tmp_path, capsys)
    assert bench()[0] == 0
    came = "    least: int = 1\n    leave_out: Annotated[int, Added(without=0)] = Field(default=0, ge=0)\n"
    bench.edit("    least: int = 1\n", came)
    bench.edit("import BaseModel\n", "import BaseModel, Field\nfrom typing import Annotated\n")
    bench.edit("import Input, StopAt, step", "import Added, Input, StopAt, step")
    assert set(bench.verdicts().values()) == {"done"}
    assert bench.verdicts("--set", "count.leave_out=300")["count"] == "stale"
    assert "leave_out: 0 -> 300" in bench("why", "third", "--set", "count.leave_out=300")[1]


def test_a_phase_with_another_one_time_value_starts_another_trajectory_that_the_next_continues():
    first = leg("first", LegConfig())
    assert first.then("second", until=20).digest == first.digest
    again = first.at(step=5).then("again", until=20, leave_out=3)
    assert again.digest != first.digest
    after = again.then("after", until=30)
    assert (after.config.leave_out, after.digest) == (0, again.digest)
    assert first.fork("same", leave_out=0).digest == first.digest != first.fork("other", leave_out=1).digest


def wrong(**fields: Any) -> Any:
    config: Any = create_model("Wrong", __config__={"frozen": True, "extra": "forbid"}, **fields)

    def made(config: config, context: StepContext) -> Done:  # type: ignore[valid-type]
        return Done(total=1)

    return lambda: step()(made)


class Inner(BaseModel, frozen=True, extra="forbid"):
    size: Annotated[int, Added(without=0)]


@dataclasses.dataclass(frozen=True)
class InnerDataclass:
    size: Annotated[int, Added(without=0)]


@pytest.mark.parametrize(
    "declare",
    [
        wrong(size=(Annotated[int, Added(without=0)], ...)),
        wrong(size=(Runtime[Annotated[int, Added(without=0)]], 0)),
        wrong(size=(StopAt[Annotated[int, Added(without=0)]], 0)),
        wrong(size=(Annotated[int, Added(without=0), Added(without=1)], 0)),
        wrong(inner=(dict[str, tuple[Inner, ...]], ...)),
        wrong(inner=(InnerDataclass | None, None)),
        lambda: Added(without=float("nan")),
        lambda: Added(without=[]),  # type: ignore[arg-type]
        lambda: Added(without=(1,)),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_added_field_is_refused_where_the_kind_is_declared(declare):
    with expect_error(TypeError):
        declare()
