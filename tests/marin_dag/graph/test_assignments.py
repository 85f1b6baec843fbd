"""Assignments: every wrong form of --set is answered with the nearest right one."""

import itertools

import pytest
from pydantic import BaseModel, model_validator

from marin_dag.errors import UserError
from marin_dag.graph.assignments import AssignmentError, parse_assignment, parse_fork_settings, with_settings
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import StepContext, step
from tests.catalogue import expect_error
from tests.marin_dag import toy
from tests.marin_dag.workbench import Workbench

TORN = "no value follows; write field and value as one word:"
OWN = "a fork's settings are fields of the fork itself, without the name of a step:"


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
    ("text", "said"),
    [
        ("phoenix.z_loss", f"{TORN} --set phoenix.z_loss=VALUE. It is 0.0001 now."),
        ("phoenix.zloss", f"{TORN} --set phoenix.zloss=VALUE. Did you mean 'z_loss'?"),
        ("phoenix.z_loss:1", "an equals sign belongs between field and value: --set phoenix.z_loss=1."),
        ("phoenix", "name a field of phoenix: --set phoenix.FIELD=VALUE. Fields: start, until_step, data"),
        (
            "phoenix.resources=Cpu(1)",
            "what machines a step runs on is no field of it, and changes nothing that it makes",
        ),
        ("phoenix=1", "name a field of phoenix: --set phoenix.FIELD=1. Fields: start,"),
        ("z_loss=1", "say of which step: --set kestrel.z_loss=1. z_loss is a field of kestrel, ocelot, phoenix."),
        ("z_loss", "say of which step: --set kestrel.z_loss=VALUE."),
        ("phenix.z_loss=1", "there is no step 'phenix'. Did you mean 'phoenix'? Write STEP.FIELD=VALUE."),
        ("text.web=1", "there is no step 'text'. Did you mean 'text/web'? Write STEP.FIELD=VALUE, such as --set"),
        ("nothing=1", "there is no step 'nothing'. Write STEP.FIELD=VALUE, such as --set text/web.workers=1."),
        (".z_loss=1", "there is no step ''. Write STEP.FIELD=VALUE."),
    ],
)
def test_what_is_no_assignment_is_answered_with_the_form_that_is(graph: Graph, text: str, said: str) -> None:
    with expect_error(AssignmentError):
        parse_assignment(text, graph)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["ocelot.z_loss=1"], f"'ocelot.z_loss=1': {OWN} --set z_loss=1."),
        (["mine.z_loss=1"], f"{OWN} --set z_loss=1."),
        (["phoenix.z_loss"], f"{OWN} --set z_loss=VALUE."),
        (["ocelot=1"], f"{OWN} --set FIELD=1."),
        (["z_loss"], f"'z_loss': {TORN} --set z_loss=VALUE. It is 0.0001 now."),
        (["z_loss=1", "z_loss=2"], "z_loss: it is said to be 1 and 2; say it once."),
    ],
)
def test_a_fork_is_set_by_its_own_fields(graph: Graph, texts: list[str], said: str) -> None:
    assert parse_fork_settings(["z_loss=1", "data=count"], graph, base="ocelot", name="mine") == {
        "z_loss": "1",
        "data": "count",
    }
    with expect_error(AssignmentError):
        parse_fork_settings(texts, graph, base="ocelot", name="mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("first.rate=", "first.rate: no value follows the equals sign; it takes float. It is 0.5 now."),
        ("first.rate=fast", "unable to parse string as a number. It is 0.5 now."),
        ("count.web=first", "count.web: CountConfig has no field 'web'. Did you mean 'texts.web'?"),
    ],
)
def test_a_wrong_value_or_place_is_answered_with_what_is_there(bench: Workbench, text: str, said: str) -> None:
    code, printed = bench("--dry-run", "--set", text)
    assert (code, said in printed) == (1, True), printed


LONGER = ("kestrel.until_step=1000", "ocelot.until_step=2000", "phoenix.until_step=3000")


@pytest.mark.parametrize("texts", list(itertools.permutations(LONGER)), ids=str)
def test_settings_that_are_right_together_are_taken_in_any_order(graph: Graph, texts: tuple[str, ...]) -> None:
    assert [with_settings(graph, texts).step(name).until for name in ("kestrel", "ocelot", "phoenix")] == [
        1000,
        2000,
        3000,
    ]


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


def test_a_part_of_a_field_that_is_set_behind_the_whole_stays_behind_it() -> None:
    """Also where the whole has to wait for another setting."""
    graph = Graph([bounded("bounded", BoundedConfig(numbers=(1, 2), top=5))])
    texts = ["bounded.numbers=[7,8]", "bounded.numbers.0=3", "bounded.top=9"]
    assert with_settings(graph, texts).step("bounded").config == BoundedConfig(numbers=(3, 8), top=9)


def test_of_settings_that_are_wrong_together_the_first_that_is_refused_is_told(graph: Graph) -> None:
    with expect_error(UserError):
        with_settings(graph, [LONGER[0], LONGER[2]])
    with expect_error(AssignmentError):
        with_settings(graph, [*LONGER, "kestrel.until_step=999"])
