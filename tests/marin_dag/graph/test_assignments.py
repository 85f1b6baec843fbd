"""Assignments: --set by STEP.FIELD=VALUE, and the nearest right form of a wrong one."""

import functools
import itertools
from typing import NamedTuple

import pytest
from pydantic import BaseModel, model_validator

from marin_dag.errors import UserError
from marin_dag.graph.assignments import build_graph, parse_assignment, parse_fork_settings
from marin_dag.graph.graph import Graph
from marin_dag.graph.overrides import AssignmentError
from marin_dag.graph.step import StepContext, step
from marin_dag.values.changes import ChangeError
from tests.catalogue import check_message, expect_error
from tests.marin_dag import toy
from tests.marin_dag.workbench import Workbench


@pytest.fixture
def graph() -> Graph:
    return Graph(toy.build(toy.Namespace()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text/web.text=a=b", ("text/web", "text", "a=b")),
        ("phoenix.z_loss=1e-4", ("phoenix", "z_loss", "1e-4")),
        ("phoenix.nothing=", ("phoenix", "nothing", "")),
    ],
)
def test_an_assignment_is_split_at_the_longest_name(graph: Graph, text: str, expected: tuple[str, str, str]) -> None:
    assert parse_assignment(text, graph) == expected


@pytest.mark.parametrize(
    "text",
    [
        "phoenix.z_loss",
        "phoenix.zloss",
        "phoenix.z_loss:1",
        "phoenix",
        "phoenix.resources=Cpu(1)",
        "phoenix=1",
        "z_loss=1",
        "z_loss",
        "phenix.z_loss=1",
        "text.web=1",
        "nothing=1",
        ".z_loss=1",
    ],
)
def test_a_wrong_assignment_is_answered_with_the_right_form(graph: Graph, text: str) -> None:
    with expect_error(AssignmentError):
        parse_assignment(text, graph)


@pytest.mark.parametrize(
    "texts",
    [["ocelot.z_loss=1"], ["mine.z_loss=1"], ["phoenix.z_loss"], ["ocelot=1"], ["z_loss"], ["z_loss=1", "z_loss=2"]],
)
def test_a_fork_is_set_by_its_own_fields(graph: Graph, texts: list[str]) -> None:
    assert parse_fork_settings(["z_loss=1", "data=count"], graph, base="ocelot", name="mine") == {
        "z_loss": "1",
        "data": "count",
    }
    with expect_error(AssignmentError):
        parse_fork_settings(texts, graph, base="ocelot", name="mine")


@pytest.mark.parametrize("text", ["first.rate=", "first.rate=fast", "count.web=first"])
def test_a_wrong_value_or_place_is_answered_with_what_is_there(bench: Workbench, text: str) -> None:
    code, printed = bench("--dry-run", "--set", text)
    assert code == 1
    check_message(printed)


LONGER = ("kestrel.until_step=1000", "ocelot.until_step=2000", "phoenix.until_step=3000")


def with_settings(*texts: str) -> Graph:
    return build_graph(lambda: Graph(toy.build(toy.Namespace())), texts)


@pytest.mark.parametrize("texts", list(itertools.permutations(LONGER)), ids=str)
def test_settings_that_are_right_together_are_taken_in_any_order(texts: tuple[str, ...]) -> None:
    names = ("kestrel", "ocelot", "phoenix")
    assert [with_settings(*texts).step(name).until for name in names] == [1000, 2000, 3000]


class BoundedConfig(BaseModel, frozen=True, extra="forbid"):
    numbers: tuple[int, ...]
    top: int

    @model_validator(mode="after")
    def _within(self) -> "BoundedConfig":
        if max(self.numbers) > self.top:
            raise ValueError(f"top is {self.top}, and a number is {max(self.numbers)}.")
        return self


@step(policy="tracked")
def bounded(config: BoundedConfig, context: StepContext) -> toy.CountResult:
    raise NotImplementedError


class Range(NamedTuple):
    low: int
    high: int


class PairConfig(BaseModel, frozen=True, extra="forbid"):
    range: Range


@step()
def paired(config: PairConfig, context: StepContext) -> toy.CountResult:
    raise NotImplementedError


def bounded_with(*texts: str) -> BoundedConfig:
    build = functools.partial(bounded, "bounded")
    graph = build_graph(lambda: Graph([build(BoundedConfig(numbers=(1, 2), top=5))]), texts)
    config: BoundedConfig = graph.step("bounded").config
    return config


def test_the_later_setting_of_a_field_or_its_part_wins() -> None:
    whole, part, top = "bounded.numbers=[7,8]", "bounded.numbers.0=3", "bounded.top=9"
    assert bounded_with(whole, part, top) == BoundedConfig(numbers=(3, 8), top=9)
    assert bounded_with(part, whole, top) == BoundedConfig(numbers=(7, 8), top=9)


@pytest.mark.parametrize("key", ["0", "low"])
def test_a_field_of_a_named_tuple_is_set_by_its_name_or_its_index(key: str) -> None:
    def build() -> Graph:
        return Graph([paired("a", PairConfig(range=Range(1, 9)))])

    assert build_graph(build, [f"a.range.{key}=3"]).step("a").config == PairConfig(range=Range(3, 9))
    with expect_error(ChangeError):
        build_graph(build, ["a.range.lo=3"])


def test_a_fork_may_change_two_fields_that_are_right_only_together() -> None:
    step = bounded("bounded", BoundedConfig(numbers=(1, 2), top=5))
    fork = step.fork("fork", top=9, **{"numbers.1": 8})
    assert fork.config == BoundedConfig(numbers=(1, 8), top=9)


def test_a_setting_of_two_fields_that_are_wrong_together_names_both(graph: Graph) -> None:
    with expect_error(ChangeError):
        bounded_with("bounded.numbers=[7,8]", "bounded.top=6")
    with expect_error(UserError):
        with_settings(LONGER[0], LONGER[2])


def test_a_field_set_twice_is_refused(graph: Graph) -> None:
    with expect_error(AssignmentError):
        with_settings(*LONGER, "kestrel.until_step=999")
