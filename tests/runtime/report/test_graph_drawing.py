"""The drawing of the graph: each step once, branches beside the phase they leave, nothing over anything else."""

import itertools
import re

import pytest

from runtime.report.contents import Node
from runtime.report.graph_drawing import STATES, depths, graph, layout, step_mark
from tests.catalogue import expect_error

MAIN = ["kestrel", "ocelot", "jellyfish", "phoenix", "starling", "deeper_starling"]


def test_every_step_is_drawn_once(report):
    drawn = graph(report.graph, MAIN, 1040)
    assert sorted(map(int, re.findall(r'data-step="(\d+)"', drawn))) == list(range(len(report.graph)))


@pytest.mark.parametrize("width", [358.0, 1040.0])
def test_no_two_steps_touch_and_all_lie_inside(report, width):
    drawn = graph(report.graph, MAIN, width)
    height = float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawn).group(1))
    marks = re.findall(r'<g class="step[^>]*><circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    places = [(float(x), float(y)) for x, y in marks]
    assert len(places) == len(report.graph)
    for index, (x, y) in enumerate(places):
        assert 5 <= x <= width - 5
        assert 5 <= y <= height - 5
        for other_x, other_y in places[index + 1 :]:
            assert (x - other_x) ** 2 + (y - other_y) ** 2 >= 12**2


def test_branches_stand_between_their_phase_and_the_next_one_lane_further_right(report):
    plan = layout(report.graph, MAIN)
    order = [row.name for row in plan.spine]
    assert order.index("jellyfish") < order.index("raccoon_soft") < order.index("phoenix")
    assert order[order.index("raccoon_soft") + 1] == "raccoon_softer"
    assert [plan.lanes[name] for name in ("jellyfish", "raccoon_soft", "raccoon_softer", "phoenix")] == [0, 1, 2, 0]


def test_what_reads_the_phases_stands_below_them(report):
    plan = layout(report.graph, MAIN)
    assert plan.spine[-1].name == "report"
    assert "report" not in [row.name for row in plan.chains]


def test_stages_stand_in_the_order_of_the_graph(report):
    kinds = layout(report.graph, MAIN).chain_kinds
    stages = ["download", "extract", "filter", "dedup", "decontaminate", "train_tokenizer", "tokenize"]
    assert [kind for kind in kinds if kind in stages] == stages


def test_a_step_names_its_inputs_and_its_readers(report):
    drawn = graph(report.graph, MAIN, 1040)
    index = {node.name: number for number, node in enumerate(report.graph)}
    near = re.search(rf'data-step="{index["dedup/code"]}" data-near="([\d ]*)"', drawn).group(1)
    assert sorted(map(int, near.split())) == sorted([index["filter/code"], index["decontaminate/code"]])


@pytest.mark.parametrize("num_sources", [1, 2, 3, 7])
def test_the_name_of_the_sources_stays_inside_the_drawing_however_few_there_are(num_sources):
    sources = [Node(f"tokenize/{i}", "tokenize", (), str(i), "done") for i in range(num_sources)]
    phases = [Node("kestrel", "train_phase", tuple(node.name for node in sources), "kestrel", "done")]
    phases += [Node(name, "train_phase", (before,), name, "done") for before, name in itertools.pairwise(MAIN)]
    drawn = graph([*sources, *phases], MAIN, 1040)
    found = re.search(r'<text x="[\d.]+" y="([\d.]+)" text-anchor="(\w+)" class="quiet"[^>]*>([^<]+)</text>', drawn)
    y, length = float(found.group(1)), 0.56 * 11 * len(found.group(3))
    assert found.group(3) == f"{num_sources} source{'' if num_sources == 1 else 's'}"
    # Turned by a quarter to the left: what stands at the end lies above, at the beginning below.
    top, bottom = (y, y + length) if found.group(2) == "end" else (y - length / 2, y + length / 2)
    height = float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawn).group(1))
    assert top >= 84 - 21 / 2 and bottom <= height, "over the headings, or under the last row"


def test_an_input_that_is_not_there_is_named():
    with expect_error(ValueError):
        depths([Node("b", "x", ("a",), "", "done")])


def test_a_circle_is_named():
    with expect_error(ValueError):
        depths([Node("a", "x", ("b",), "", "done"), Node("b", "x", ("a",), "", "done")])


def test_a_name_twice_is_named():
    with expect_error(ValueError):
        depths([Node("a", "x", (), "", "done"), Node("a", "x", (), "", "done")])


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_a_sign_of_its_own(state):
    others = {step_mark(other, 0, 0).replace(other, "") for other in STATES if other != state}
    drawn = step_mark(state, 0, 0).replace(state, "")
    # Missing and unknown are told apart by the outline, stale and drifted by the plan's reasons.
    if state not in ("missing", "unknown", "stale", "drifted", "this"):
        assert drawn not in others


def test_an_unknown_state_is_refused():
    with expect_error(ValueError):
        step_mark("finished", 0, 0)


def test_a_graph_without_phases_is_drawn():
    assert "download/web" in graph([Node("download/web", "download", (), "web", "missing")], [], 1040)


def test_rows_that_feed_the_phases_stand_above_those_that_do_not(report):
    rows = [row.name for row in layout(report.graph, MAIN).chains]
    assert rows[-2:] == ["evaluation items", "tokenizer"]
