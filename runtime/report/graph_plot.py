"""The figure of the graph: a row a source or phase, a column a kind of step, colour and shape for the state."""

from collections.abc import Mapping, Sequence

from runtime.report.figures import figure
from runtime.report.markup import Markup
from runtime.report.panel import Panel, Series
from runtime.report.recipe import Node
from runtime.report.theme import COLOURS, GRID, MAIN

SPINE_KIND = "train_phase"
STATES = {
    "done": (Series("done", COLOURS[2]), "circle"),
    "this": (Series("makes this page", MAIN), "circle_dot"),
    "unknown": (Series("not needed by this page", GRID), "circle"),
}
"""State to its series and marker."""
_MOST_NAMES = 8
"""Inputs and readers that a tip names; the table of steps has all."""


def graph(nodes: Sequence[Node], main_line: Sequence[str], caption: str) -> Markup:
    """Return sources in one panel and phases in another; branches stand below the phase that they leave.

    `nodes` are in an order in which each comes after its inputs.
    """
    groups: dict[str, list[Node]] = {}
    readers: dict[str, list[str]] = {node.name: [] for node in nodes}
    depth: dict[str, int] = {}
    for node in nodes:
        groups.setdefault(node.group, []).append(node)
        depth[node.name] = 1 + max((depth[name] for name in node.inputs), default=-1)
        for name in node.inputs:
            readers[name].append(node.name)
    spine = _spine_rows(nodes, groups, main_line)
    read = {name for node in nodes if node.kind == SPINE_KIND for name in node.inputs}
    chains = [group for group in groups if group not in spine]
    # Sources first; steps that only help to prepare them, after.
    chains.sort(key=lambda group: not any(node.name in read for node in groups[group]))
    parts = [{group: groups[group] for group in chains}, {row: groups[group] for group, row in spine.items()}]
    panels = [_panel(part, depth, readers) for part in parts if part]
    found = {node.state for node in nodes}
    legend = {state: series for state, (series, _) in STATES.items() if state in found}
    return figure(panels, caption, legend=legend, columns=2)


def _spine_rows(
    nodes: Sequence[Node], groups: Mapping[str, Sequence[Node]], main_line: Sequence[str]
) -> dict[str, str]:
    """Return the groups of phases, and of what is made of phases, in order, with the name of their row."""
    spine_of = {node.name: node.group for node in nodes if node.kind == SPINE_KIND}
    parents: dict[str, str] = {}
    made: list[str] = []
    below = set(spine_of)
    for node in nodes:
        above = [spine_of[name] for name in node.inputs if name in spine_of]
        if node.kind == SPINE_KIND and above:
            parents[node.group] = above[0]
        if not below.isdisjoint(node.inputs):
            below.add(node.name)
            made.append(node.group)
    rows: dict[str, str] = {}

    def visit(group: str, lane: int) -> None:
        rows[group] = "↳ " * lane + group
        children = [child for child in groups if parents.get(child) == group]
        # The branches of a phase first, then the phase of the main line that follows.
        for child in sorted(children, key=lambda child: child in main_line):
            visit(child, 0 if child in main_line else lane + 1)

    for group in dict.fromkeys(spine_of.values()):
        if group not in parents:
            visit(group, 0)
    return rows | {group: group for group in made if group not in rows}


def _panel(rows: Mapping[str, Sequence[Node]], depth: Mapping[str, int], readers: Mapping[str, list[str]]) -> Panel:
    """Return a panel with a row for each name, and steps of one kind in one column."""
    deepest: dict[str, int] = {}
    for node in (node for found in rows.values() for node in found):
        deepest[node.kind] = max(deepest.get(node.kind, 0), depth[node.name])
    kinds = sorted(deepest, key=lambda kind: (deepest[kind], kind))
    panel = Panel("", kinds, list(rows), height=len(rows) * 21 + 130)
    panel.plot.xaxis.major_label_orientation = 0.8
    marks: dict[str, list[tuple[tuple[str, float], str, str]]] = {}
    for row, found in rows.items():
        for kind in kinds:
            same = [node for node in found if node.kind == kind]
            for place, node in enumerate(same):
                tip = f"{node.name} ({kind}): {STATES[node.state][0].name}"
                tip += _listed("reads", node.inputs) + _listed("read by", readers[node.name])
                offset = (place - (len(same) - 1) / 2) * 0.22
                marks.setdefault(node.state, []).append(((kind, offset), row, tip))
    for state, shown in marks.items():
        series, marker = STATES[state]
        panel.points(series, *zip(*shown, strict=True), marker=marker, size=10)
    return panel


def _listed(word: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"; {word} {', '.join(names[:_MOST_NAMES])}{more}"
