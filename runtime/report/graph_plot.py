"""The figure of the graph: a row a source or phase, a column a kind of step, colour and shape for the state."""

from collections.abc import Mapping, Sequence

from runtime.report.contents import Node
from runtime.report.figures import figure
from runtime.report.markup import Markup
from runtime.report.panel import Panel, Series
from runtime.report.theme import BRANCH, COLOURS, GRID, MAIN, MUTED

SPINE_KIND = "train_phase"
STATES = ("done", "this", "running", "missing", "stale", "drifted", "failed", "blocked", "unknown")
_MARKS = {
    "done": (COLOURS[2], "circle"), "this": (MAIN, "circle_dot"), "running": (MAIN, "triangle"),
    "missing": (MUTED, "circle"), "stale": (COLOURS[4], "diamond"), "drifted": (COLOURS[4], "square"),
    "failed": (BRANCH, "x"), "blocked": (MUTED, "dash"), "unknown": (GRID, "circle"),
}  # fmt: skip
_MOST_NAMES = 8
"""Inputs and readers that a tip names; the table of steps has all."""


def graph(nodes: Sequence[Node], main_line: Sequence[str], caption: str) -> Markup:
    """Return sources in one panel and phases in another; branches stand below the phase that they leave."""
    depth = depths(nodes)
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.group or node.name, []).append(node)
    spine = _spine_rows(nodes, groups, main_line, depth)
    readers: dict[str, list[str]] = {node.name: [] for node in nodes}
    for node in nodes:
        for name in node.inputs:
            readers[name].append(node.name)
    read = {name for node in nodes if node.kind == SPINE_KIND for name in node.inputs}
    chains = [group for group in groups if group not in spine]
    # Sources first; steps that only help to prepare them, after.
    chains.sort(key=lambda group: not any(node.name in read for node in groups[group]))
    parts = [chains, list(spine)]
    panels = [
        _panel({spine.get(group, group): groups[group] for group in part}, depth, readers) for part in parts if part
    ]
    states = {state: Series(state_text(state), _MARKS[state][0]) for state in STATES}
    found = {node.state for node in nodes}
    return figure(panels, caption, legend={s: one for s, one in states.items() if s in found}, columns=2)


def state_text(state: str) -> str:
    """Return a state in words."""
    return {"this": "makes this page", "unknown": "not needed by this page"}.get(state, state)


def depths(nodes: Sequence[Node]) -> dict[str, int]:
    """Longest way from a step without inputs to each step.

    Raises:
        ValueError: a name is there twice, an input is not in the graph, or the graph has a cycle.
    """
    by_name = {node.name: node for node in nodes}
    if len(by_name) != len(nodes):
        twice = sorted({node.name for node in nodes if sum(other.name == node.name for other in nodes) > 1})
        raise ValueError(f"graph: {twice} is there more than once; every step has a name of its own.")
    found: dict[str, int] = {}
    remaining = dict(by_name)
    for node in nodes:
        for name in node.inputs:
            if name not in by_name:
                raise ValueError(f"graph: {node.name!r} reads {name!r}, which is not in the graph; add that step.")
        if node.state not in STATES:
            raise ValueError(f"graph: {node.name!r} has the state {node.state!r}; use one of {', '.join(STATES)}.")
    while remaining:
        ready = [node for node in remaining.values() if all(name in found for name in node.inputs)]
        if not ready:
            raise ValueError(f"graph: {sorted(remaining)} read each other in a circle; a graph of steps has none.")
        for node in ready:
            del remaining[node.name]
        found |= {node.name: 1 + max((found[name] for name in node.inputs), default=-1) for node in ready}
    return found


def _spine_rows(
    nodes: Sequence[Node],
    groups: Mapping[str, Sequence[Node]],
    main_line: Sequence[str],
    depth: Mapping[str, int],
) -> dict[str, str]:
    """Return the groups of phases, and of what is made of phases, in order, with the name of their row."""
    spine_of = {node.name: group for group, found in groups.items() for node in found if node.kind == SPINE_KIND}
    parents: dict[str, str] = {}
    for node in nodes:
        above = [spine_of[name] for name in node.inputs if name in spine_of]
        if node.kind == SPINE_KIND and above:
            parents[spine_of[node.name]] = above[0]
    rows: dict[str, str] = {}

    def visit(group: str, lane: int) -> None:
        rows[group] = "↳ " * lane + group
        children = [child for child in groups if parents.get(child) == group]
        # The branches of a phase first, then the phase of the main line that follows.
        for child in sorted(children, key=lambda child: child in main_line):
            visit(child, 0 if child in main_line else lane + 1)

    for group in dict.fromkeys(spine_of.values()):
        if parents.get(group) is None:
            visit(group, 0)
    below = set(spine_of)
    for node in sorted(nodes, key=lambda node: depth[node.name]):
        if any(name in below for name in node.inputs):
            below.add(node.name)
    made = [group for group in groups if group not in rows and any(node.name in below for node in groups[group])]
    return rows | {group: group for group in made}


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
                tip = f"{node.name} ({kind}): {state_text(node.state)}"
                tip += _listed("reads", node.inputs) + _listed("read by", readers[node.name])
                offset = (place - (len(same) - 1) / 2) * 0.22
                marks.setdefault(node.state, []).append(((kind, offset), row, tip))
    for state, shown in marks.items():
        colour, marker = _MARKS[state]
        xs, ys, tips = zip(*shown, strict=True)
        panel.points(Series(state_text(state), colour), xs, ys, tips, marker=marker, size=10)
    return panel


def _listed(word: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"; {word} {', '.join(names[:_MOST_NAMES])}{more}"
