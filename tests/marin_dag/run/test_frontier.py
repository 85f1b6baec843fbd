"""Frontier: it finds what a search of the whole graph would find."""

import random
from pathlib import Path

import pytest

from marin_dag.graph.resources import Cpu
from marin_dag.run.frontier import Frontier, Node
from tests.marin_dag.growing_steps import FollowConfig, GrowConfig, follow, grow
from tests.marin_dag.run.test_driver import run
from tests.marin_dag.toy_steps import CountConfig, JoinConfig, WriteConfig, count, join, write


def nodes() -> list[Node]:
    """Two texts and their join; a run in three legs, a branch from the middle of it, and one from past its end."""
    a, b = (write(name, WriteConfig(text=name)) for name in "ab")
    both = join("both", JoinConfig(texts=(a, b)))
    first = count("first", CountConfig(stride=1, until_step=5))
    second = first.then("second", until_step=10)
    third = second.then("third", until_step=20)
    branch = count("branch", CountConfig(stride=2, until_step=9, start=second.at(step=7)))
    lost = count("lost", CountConfig(stride=3, until_step=40, start=third.at(step=30)))
    return [
        Node(step) for step in (a, b, both, first, second, third, branch, lost, join("last", JoinConfig(texts=(both,))))
    ]


def growing_nodes() -> list[Node]:
    """A step that publishes parts, a reader of the first part, and a reader of the whole."""
    grown = grow("grown", GrowConfig(num_pieces=3))
    follower = follow("follower", FollowConfig(pieces=grown.growing()))
    return [
        Node(step)
        for step in (grown, follower, follow("patient", FollowConfig(pieces=grown), policy="versioned", version="2"))
    ]


def expected(frontier: Frontier, every: list[Node]) -> list[str]:
    """Names of the steps that may start, by definition."""

    def is_in_the_way(other: Node, node: Node) -> bool:
        is_earlier = other.state == "waiting" and (other.step.until or 0) < (node.step.until or 0)
        return other is not node and other.step.digest == node.step.digest and (other.state == "running" or is_earlier)

    return [
        node.step.name
        for node in every
        if node.state == "waiting"
        and all(frontier.committed.intersection(item.keys) for _, item in node.step.inputs)
        and not any(is_in_the_way(other, node) for other in every)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_after_any_history_the_frontier_equals_a_search_of_the_whole_graph(seed: int):
    chance = random.Random(seed)
    every = nodes()
    frontier = Frontier(every)
    while not frontier.is_finished:
        while suspects := frontier.take_suspects():
            for node in suspects:
                if frontier.obstacle(node.step, is_stopping=False) is not None:
                    frontier.move(node, "blocked")
        stuck = [
            node.step.name
            for node in every
            if node.state == "waiting" and frontier.obstacle(node.step, is_stopping=False)
        ]
        assert stuck == []
        ready = list(frontier.ready(0.0))
        assert [node.step.name for node in ready] == expected(frontier, every)
        assert list(frontier.running.values()) == sorted(frontier.running.values(), key=lambda node: node.submitted)
        running = list(frontier.running.values())
        if ready and (not running or chance.random() < 0.5):
            node = chance.choice(ready)
            node.submitted = max((other.submitted for other in every), default=0.0) + 1.0
            frontier.move(node, "running")
        elif running:
            node = chance.choice(running)
            end = chance.choice(["done", "done", "waiting", "failed", "published"])
            if end == "published" and node.step.digest == every[4].step.digest:
                frontier.commit(f"{node.step.digest}@7")
            elif end != "published":
                if end == "done":
                    frontier.commit(node.step.key)
                frontier.move(node, end)  # type: ignore[arg-type]
    assert not frontier.running
    assert {node.step.name: node.state for node in every}["lost"] == "blocked"


def test_a_part_is_enough_to_start_while_another_step_makes_the_rest():
    grown, follower, patient = every = growing_nodes()
    frontier = Frontier(every)
    frontier.move(grown, "running")
    assert not list(frontier.ready(0.0))
    frontier.commit(f"{grown.step.digest}@1")
    assert list(frontier.ready(0.0)) == [follower]
    frontier.move(grown, "waiting")  # it is retried
    assert list(frontier.ready(0.0)) == [grown]
    grown.is_elsewhere = True
    assert follower in list(frontier.ready(0.0))
    grown.is_elsewhere = False
    frontier.move(grown, "running")
    frontier.move(grown, "failed")
    assert not list(frontier.ready(0.0))
    assert frontier.take_suspects() == [follower, patient]
    assert frontier.obstacle(follower.step, is_stopping=False) == "by grown"


def test_a_part_whose_maker_is_not_selected_is_enough():
    _, follower, _ = growing_nodes()
    frontier = Frontier([follower])
    digest = follower.step.inputs[0][1].digest
    frontier.commit(f"{digest}@1")
    assert list(frontier.ready(0.0)) == [follower]
    frontier.commit(digest)
    assert frontier.key_there(follower.step.inputs[0][1]) == digest


def test_a_node_is_not_ready_before_its_pause_is_over():
    every = nodes()
    frontier = Frontier(every)
    every[0].not_before = 5.0
    assert [node.step.name for node in frontier.ready(4.9)] == ["b", "first"]
    assert [node.step.name for node in frontier.ready(5.0)] == ["a", "b", "first"]


def test_a_node_that_becomes_ready_during_iteration_is_yielded():
    every = nodes()
    frontier = Frontier(every)
    seen = []
    for node in frontier.ready(0.0):
        seen.append(node.step.name)
        frontier.commit(node.step.key)  # another driver has made it meanwhile
        frontier.move(node, "done")
    assert seen == ["a", "b", "both", "first", "second", "third", "last"]


def test_steps_on_full_resources_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    in_turn = Frontier._is_in_turn_behind
    monkeypatch.setattr(
        Frontier, "_is_in_turn_behind", lambda self, node: (looks.append(node.step.name), in_turn(self, node))[1]
    )
    every = [
        Node(write(f"{kind}{number}", WriteConfig(text=f"{kind}{number}"), resources=resources))
        for number in range(100)
        for kind, resources in (("wide", Cpu(2)), ("narrow", Cpu(1)))
    ]
    frontier = Frontier(every, max_alike=2)
    for node in frontier.ready(0.0):
        frontier.move(node, "running")
    assert [node.step.name for node in frontier.running.values()] == ["wide0", "narrow0", "wide1", "narrow1"] == looks
    looks.clear()
    frontier.move(every[0], "done")
    assert [node.step.name for node in frontier.ready(0.0)][:2] == ["wide2", "wide3"]
    assert not any(name.startswith("narrow") for name in looks)


def test_each_step_of_a_chain_costs_a_fixed_number_of_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    looks: list[str] = []
    obstacle = Frontier.obstacle
    monkeypatch.setattr(
        Frontier,
        "obstacle",
        lambda self, step, **options: (looks.append(step.name), obstacle(self, step, **options))[1],
    )
    last = write("0", WriteConfig(text="0"))
    chain = [last]
    for number in range(1, 8):
        last = join(str(number), JoinConfig(texts=(last,)))
        chain.append(last)
    code, display = run(str(tmp_path), chain)
    assert code == 0, display.text
    assert len(looks) <= 2 * len(chain)
