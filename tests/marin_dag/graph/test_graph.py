"""Graph: order, names, overrides that derived steps inherit, and selections."""

from argparse import Namespace
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from marin_dag.errors import UserError
from marin_dag.graph.assignments import build_graph
from marin_dag.graph.graph import Graph, GraphError, Selection
from marin_dag.graph.overrides import AssignmentError
from marin_dag.graph.step import Input, StepContext, step
from marin_dag.values.changes import ChangeError
from tests.catalogue import check_message, expect_error
from tests.marin_dag.toy import CountConfig, TextConfig, TrainConfig, build, count, text, train


class Goat(BaseModel, frozen=True, extra="forbid"):
    """A result that no step of the toy returns."""


class GoatConfig(BaseModel, frozen=True, extra="forbid"):
    data: Input[Goat]


class GroupConfig(BaseModel, frozen=True, extra="forbid"):
    b: dict[str, int]


@step()
def group(config: GroupConfig, context: StepContext) -> Goat:
    return Goat()


@pytest.fixture
def graph() -> Graph:
    return Graph(build(Namespace()))


def field(graph: Graph, name: str, key: str) -> Any:
    return getattr(graph.step(name).config, key)


def test_inputs_come_first(graph: Graph) -> None:
    position = {name: index for index, name in enumerate(graph.names)}
    for each in graph.steps:
        assert all(position[item.step.name] < position[each.name] for _, item in each.inputs)


def test_a_chain_of_ten_thousand_steps_is_a_graph() -> None:
    last = text("text", TextConfig(text="x"))
    for index in range(10_000):
        last = count(f"count/{index}", CountConfig(texts={"x": last}))  # type: ignore[dict-item]
    assert last.digest, "asked for before any below it"
    graph = Graph([last])
    assert len(graph.steps) == 10_001
    assert len({each.digest for each in graph.steps}) == 10_001


def test_a_name_that_no_file_system_takes_is_refused_before_anything_runs() -> None:
    assert text(f"{'x' * 200}/{'y' * 200}", TextConfig(text="x")).name
    with expect_error(UserError):
        text(f"a/{'x' * 201}", TextConfig(text="x"))
    with expect_error(UserError):
        text("a b", TextConfig(text="x"))


def test_two_steps_of_one_name_are_refused() -> None:
    with expect_error(GraphError):
        Graph([text("a", TextConfig(text="x")), text("a", TextConfig(text="y"))])


def test_a_circle_is_named() -> None:
    one = text("one", TextConfig(text="x"))
    two = count("two", CountConfig(texts={"one": one}))  # type: ignore[dict-item]
    one.config = two.config  # steps are immutable by convention; nothing else can close a circle
    two.config = CountConfig(texts={"two": two})  # type: ignore[dict-item]
    with expect_error(GraphError):
        Graph([two])


def overridden(*texts: str) -> Graph:
    return build_graph(lambda: Graph(build(Namespace())), texts)


def test_an_override_is_inherited_by_what_is_derived_and_by_nothing_else(graph: Graph) -> None:
    new = overridden("ocelot.z_loss=3")
    assert [field(new, name, "z_loss") for name in ("kestrel", "ocelot", "phoenix")] == [0.0, 3.0, 3.0]
    assert new.step("kestrel").digest == graph.step("kestrel").digest


def test_a_derived_steps_own_value_wins_over_an_override_above_it() -> None:
    assert field(overridden("kestrel.z_loss=7"), "ocelot", "z_loss") == 1e-4


def test_overrides_of_one_step_add_up() -> None:
    new = overridden("ocelot.z_loss=3", "ocelot.until_step=25")
    assert (field(new, "ocelot", "z_loss"), field(new, "ocelot", "until_step")) == (3.0, 25)
    assert new.step("phoenix").predecessor is not None
    assert new.step("phoenix").predecessor.milestone == 25  # type: ignore[union-attr]


def test_a_named_milestone_stays_when_the_stop_moves() -> None:
    def branching() -> Graph:
        data = text("t", TextConfig(text="x"))
        kestrel = train("kestrel", TrainConfig(start=None, until_step=10, data=data))  # type: ignore[arg-type]
        return Graph([kestrel.at(step=5).then("branch", until_step=9)])

    new = build_graph(branching, ["kestrel.until_step=12"])
    assert new.step("branch").predecessor.milestone == 5  # type: ignore[union-attr]


def test_a_fork_keeps_its_stop_when_an_override_stops_its_base_before_the_fork_starts() -> None:
    def forking() -> Graph:
        data = text("t", TextConfig(text="x"))
        kestrel = train("kestrel", TrainConfig(start=None, until_step=10, data=data))  # type: ignore[arg-type]
        return Graph([kestrel.fork("again", start=kestrel.at(step=5), z_loss=1.0)])

    new = build_graph(forking, ["kestrel.until_step=5"])
    assert [new.step(name).until for name in ("kestrel", "again")] == [5, 10]
    assert build_graph(forking, ["kestrel.until_step=8"]).step("again").until == 8


def test_an_override_above_reaches_inputs_below(graph: Graph) -> None:
    new = overridden("text/web.text=webb")
    moved = {name for name in graph.names if new.step(name).digest != graph.step(name).digest}
    assert moved == {"text/web", "count", "kestrel", "ocelot", "phoenix"}


def test_an_input_can_be_set_by_name_and_milestone(graph: Graph) -> None:
    new = overridden("phoenix.start=kestrel@5")
    assert new.step("phoenix").predecessor.key == f"{graph.step('kestrel').digest}@5"  # type: ignore[union-attr]


def test_an_input_cannot_be_set_to_a_step_that_the_recipe_builds_later() -> None:
    def reversed_order() -> Graph:
        reader = count("reader", CountConfig(texts={"x": text("early", TextConfig(text="x"))}))  # type: ignore[dict-item]
        return Graph([reader, text("late", TextConfig(text="y"))])

    with expect_error(GraphError):
        build_graph(reversed_order, ['reader.texts={"x": "late"}', "late.text=z"])


@pytest.mark.parametrize(
    "setting",
    [
        "phoenix.z_los=1",
        "phoenix.z_loss=many",
        "phoenix.until_step=5",
        "phoenix.start=kestril",
        "phoenix.start=none",
        "phoenix.start=kestrel@x",
        "kestrel.data=phoenix",
        "count.least.x=1",
        "phenix.z_loss=1",
    ],
)
def test_a_wrong_override_is_named_with_the_cure(setting: str) -> None:
    with expect_error(UserError):
        overridden(setting)


def test_selections_are_intersected(graph: Graph) -> None:
    assert Selection(only=("text/*",)).names(graph) == {"text/web", "text/code", "text/math", "text/books"}
    assert Selection(until=("ocelot",), starting_from=("kestrel",)).names(graph) == {"kestrel", "ocelot"}
    assert Selection().names(graph) == set(graph.names)
    texts = {"text/web", "text/code", "text/math", "text/books"}
    assert Selection(until=("text/*",)).names(graph) == texts
    assert Selection(until=("text/[wc]*", "text/math")).names(graph) == texts - {"text/books"}
    assert Selection(starting_from=("text/*",)).names(graph) == set(graph.names)
    assert Selection(only=("text/*",), force=("text/?????", "text/web")).forced(graph) == {"text/books", "text/web"}
    for wrong in (Selection(until=("txt/*",)), Selection(starting_from=("txt/*",)), Selection(force=("txt/*",))):
        with expect_error(GraphError):
            wrong.names(graph)


def test_a_selection_of_nothing_is_an_error(graph: Graph) -> None:
    with expect_error(GraphError):
        Selection(only=("txt/*",)).names(graph)


def test_a_step_of_the_wrong_kind_is_refused_as_input() -> None:
    with expect_error(ValueError):
        CountConfig(texts={"a": "x"})  # type: ignore[dict-item]


def test_text_is_read_by_the_type_of_its_field() -> None:
    new = overridden("text/web.text=12", "phoenix.until_step=1_000")
    assert field(new, "text/web", "text") == "12"
    assert field(new, "phoenix", "until_step") == 1000


def test_a_change_that_a_derived_step_can_no_longer_make_names_both() -> None:
    with expect_error(ChangeError):
        text("a", TextConfig(text="x")).fork("b", nothing=1)


def test_a_versioned_step_needs_a_version() -> None:
    with expect_error(UserError):
        text("a", TextConfig(text="x"), policy="versioned")


def test_a_step_that_returns_something_else_is_refused_as_input() -> None:
    with pytest.raises(ValidationError) as caught:
        GoatConfig(data=text("a", TextConfig(text="x")))  # type: ignore[arg-type]
    check_message(caught.value.errors()[0]["msg"])


def test_an_override_that_two_steps_take_is_refused() -> None:
    def nested() -> Graph:
        whole = group("a", GroupConfig(b={"text": 1}))
        return Graph([whole, text("a.b", TextConfig(text="x"))])

    with expect_error(AssignmentError):
        build_graph(nested, ["a.b.text=2"])
