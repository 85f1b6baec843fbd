"""The figure of the graph: each step once, branches below the phase they leave, inputs and readers in the tips."""

import dataclasses

from runtime.report.graph_plot import STATES, graph
from runtime.report.recipe import Node
from tests.runtime.report.drawn import panels

MAIN = ["kestrel", "ocelot", "jellyfish", "phoenix", "starling", "deeper_starling"]


def rows(panel) -> list[str]:
    """From top to bottom."""
    return list(reversed(panel.y_range["factors"]))


def test_every_step_is_drawn_once_and_no_two_at_one_place(report):
    drawn = panels(graph(report.graph, MAIN, ""))
    tips = [tip for panel in drawn for tip in panel.tips]
    assert sorted(tip.split(" (")[0] for tip in tips) == sorted(node.name for node in report.graph)
    for panel in drawn:
        places = [(tuple(x), y) for mark in panel.marks for x, y in zip(mark.data["x"], mark.data["y"], strict=True)]
        assert len(set(places)) == len(places)


def test_branches_stand_between_their_phase_and_the_next_further_right(report):
    _, spine = panels(graph(report.graph, MAIN, ""))
    order = rows(spine)
    assert order.index("jellyfish") < order.index("↳ raccoon_soft") < order.index("phoenix")
    assert order[order.index("↳ raccoon_soft") + 1] == "↳ ↳ raccoon_softer"


def test_what_reads_the_phases_stands_below_them(report):
    chains, spine = panels(graph(report.graph, MAIN, ""))
    assert rows(spine)[-1] == "report" and "report" not in rows(chains)


def test_stages_stand_in_the_order_of_the_graph(report):
    chains, _ = panels(graph(report.graph, MAIN, ""))
    stages = ["download", "extract", "filter", "dedup", "decontaminate", "train_tokenizer", "tokenize"]
    assert [kind for kind in chains.x_range["factors"] if kind in stages] == stages


def test_a_step_names_its_inputs_and_its_readers(report):
    chains, _ = panels(graph(report.graph, MAIN, ""))
    assert "dedup/code (dedup): done; reads filter/code; read by decontaminate/code" in chains.tips
    (tip,) = (tip for tip in chains.tips if tip.startswith("tokenize/code "))
    assert tip.endswith(" and 24 more"), "32 phases and evaluations read it"


def test_rows_that_feed_the_phases_stand_above_those_that_do_not(report):
    chains, _ = panels(graph(report.graph, MAIN, ""))
    assert rows(chains)[-2:] == ["evaluation items", "tokenizer"]


def test_a_graph_without_phases_is_drawn():
    (panel,) = panels(graph([Node("download/web", "download", (), "web", "unknown")], [], ""))
    assert panel.tips == ["download/web (download): not needed by this page"]


def test_every_state_has_a_look_of_its_own():
    node = Node("a", "x", (), "a")
    looks = {graph([dataclasses.replace(node, state=state)], [], "").replace(state, "") for state in STATES}
    assert len(looks) == len(STATES)
