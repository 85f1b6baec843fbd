"""The graph of steps: chains of sources as rows and stages as columns, then the phases as a spine with branches.

A layered drawing of all edges is unreadable at a hundred steps, since each phase reads each token cache. Here the
edges inside a row are drawn, the edges between phases are the spine, the many from caches to phases are one
bus, and the rest shows when a step is pointed at: its inputs and what reads it light up.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from runtime.report.contents import Node
from runtime.report.markup import Markup, element, joined
from runtime.report.plots import TEXT_SIZE, drawing, path_of, straight, text
from runtime.report.scales import counted, fitted, text_width

SPINE_KIND = "train_phase"
STATES = ("done", "this", "running", "missing", "stale", "drifted", "failed", "blocked", "unknown")
_ROW = 21.0
_HEADER = 84.0
_LANE = 15.0
_RADIUS = 5.5

Mark = Callable[[Node, float, float], Markup]
"""Draws a step at a point."""
Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """A chain: the steps of one group, by kind."""

    name: str
    nodes: tuple[Node, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Rows of chains with their columns, rows of phases with theirs, and the lane of each phase."""

    chains: tuple[Row, ...]
    chain_kinds: tuple[str, ...]
    spine: tuple[Row, ...]
    spine_kinds: tuple[str, ...]
    lanes: Mapping[str, int]
    """Lane of each row of the spine, by the name of its group; 0 is the main line."""
    parents: Mapping[str, str]
    """Group of a phase: group of the phase that it starts from."""


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
    while remaining:
        ready = [node for node in remaining.values() if all(name in found for name in node.inputs)]
        if not ready:
            raise ValueError(f"graph: {sorted(remaining)} read each other in a circle; a graph of steps has none.")
        for node in ready:
            del remaining[node.name]
        found |= {node.name: 1 + max((found[name] for name in node.inputs), default=-1) for node in ready}
    return found


def layout(nodes: Sequence[Node], main_line: Sequence[str]) -> Layout:
    """Sorts steps into rows and columns; `main_line` names the groups of the phases in lane 0."""
    depth = depths(nodes)
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.group or node.name, []).append(node)
    spine_of = {node.name: group for group, members in groups.items() for node in members if node.kind == SPINE_KIND}
    parents: dict[str, str] = {}
    for members in groups.values():
        for node in members:
            above = [spine_of[name] for name in node.inputs if name in spine_of]
            if node.kind == SPINE_KIND and above:
                parents[spine_of[node.name]] = above[0]
    order = _spine_order([group for group in groups if group in spine_of.values()], parents, main_line)
    below = _below(nodes, spine_of)
    # What is made of the phases, such as this page, stands under them.
    order += [group for group in groups if group not in order and any(node.name in below for node in groups[group])]
    read = {name for node in nodes if node.kind == SPINE_KIND for name in node.inputs}
    # Sources first, what only helps to prepare them after.
    chains = sorted(
        (group for group in groups if group not in order),
        key=lambda group: not any(node.name in read for node in groups[group]),
    )
    return Layout(
        tuple(Row(group, tuple(sorted(groups[group], key=lambda node: depth[node.name]))) for group in chains),
        _kinds([node for group in chains for node in groups[group]], depth),
        tuple(Row(group, tuple(sorted(groups[group], key=lambda node: depth[node.name]))) for group in order),
        _kinds([node for group in order for node in groups[group]], depth),
        _lanes(order, parents, main_line),
        parents,
    )


def _below(nodes: Sequence[Node], spine_of: Mapping[str, str]) -> set[str]:
    """Return names of the steps that read a phase, directly or not."""
    found: set[str] = set()
    size = -1
    while size != len(found):
        size = len(found)
        found |= {node.name for node in nodes if any(name in spine_of or name in found for name in node.inputs)}
    return found


def _kinds(nodes: Sequence[Node], depth: Mapping[str, int]) -> tuple[str, ...]:
    deepest: dict[str, int] = {}
    for node in nodes:
        deepest[node.kind] = max(deepest.get(node.kind, 0), depth[node.name])
    return tuple(sorted(deepest, key=lambda kind: (deepest[kind], kind)))


def _spine_order(groups: Sequence[str], parents: Mapping[str, str], main_line: Sequence[str]) -> list[str]:
    """Return each phase, then the branches that leave it, then the phase of the main line that follows."""
    order: list[str] = []

    def visit(group: str) -> None:
        order.append(group)
        children = [child for child in groups if parents.get(child) == group]
        for child in sorted(children, key=lambda child: child in main_line):
            visit(child)

    for group in groups:
        if parents.get(group) is None:
            visit(group)
    return order


def _lanes(order: Sequence[str], parents: Mapping[str, str], main_line: Sequence[str]) -> dict[str, int]:
    """Return a branch stands one lane right of the phase it leaves."""
    lanes: dict[str, int] = {}
    for group in order:
        parent = parents.get(group)
        if group in main_line or parent is None:
            lanes[group] = 0
        else:
            lanes[group] = lanes[parent] + 1
    return lanes


def graph(nodes: Sequence[Node], main_line: Sequence[str], width: float) -> Markup:
    """Chains left and phases right on a wide page, one above the other on a narrow one."""
    plan = layout(nodes, main_line)
    index = {node.name: position for position, node in enumerate(nodes)}
    readers = {node.name: [other.name for other in nodes if node.name in other.inputs] for node in nodes}

    def mark(node: Node, x: float, y: float) -> Markup:
        near = [index[name] for name in (*node.inputs, *readers[node.name])]
        tip = f"{node.name} ({node.kind}): {state_text(node.state)}"
        return step_mark(
            node.state, x, y, data_tip=tip, data_step=str(index[node.name]), data_near=" ".join(map(str, sorted(near)))
        )

    is_wide = width > 600
    half = (width - 40) / 2 if is_wide else width
    chain_parts, chain_height, bus = _chains(plan, 0, 0, half, mark)
    top = 0.0 if is_wide else chain_height + 26
    spine_left = half + 40 if is_wide else 0.0
    spine_parts, spine_height, first = _spine(plan, spine_left, top, width - spine_left, mark)
    parts = [chain_parts]
    if plan.chains and plan.spine:
        parts.append(_bus(bus, first, half + 14 if is_wide else 6.0, is_wide, chain_height))
    height = max(chain_height, spine_height) if is_wide else top + spine_height
    return drawing(width, height + 6, f"Graph of {len(nodes)} steps", *parts, spine_parts)


def _bus(
    ends: Sequence[tuple[float, float]], first: tuple[float, float], x: float, is_wide: bool, below: float
) -> Markup:
    if not ends:
        return Markup()
    label = counted(len(ends), "source")
    if not is_wide:
        right = ends[0][0] + 12
        points = [(right, ends[0][1]), (right, below + 8), (first[0], below + 8), (first[0], first[1])]
        ticks = [straight(ex + _RADIUS, ey, right, ey, "bus") for ex, ey in ends]
        named = text(label, right, below + 22, "end", "quiet")
        return joined([element("path", d=path_of(points), class_="bus"), named, *ticks])
    parts = [straight(ex + _RADIUS, ey, x, ey, "bus") for ex, ey in ends]
    lowest = max(max(y for _, y in ends), first[1])
    highest = min(min(y for _, y in ends), first[1])
    # Beside the middle of the bus where that is long enough, else from its upper end down, beside the phases.
    fits = text_width(label, TEXT_SIZE) <= lowest - highest + _ROW
    anchor, at = ("middle", (lowest + highest) / 2) if fits else ("end", highest - _ROW / 2)
    parts.append(text(label, x + 12, at, anchor, "quiet", transform=f"rotate(-90 {x + 12:.1f} {at:.1f})"))
    parts.append(straight(x, highest, x, lowest, "bus"))
    parts.append(straight(x, first[1], first[0], first[1], "bus"))
    return joined(parts)


def state_text(state: str) -> str:
    """Return a state in words."""
    return {"this": "makes this page", "unknown": "not needed by this page"}.get(state, state)


def step_mark(state: str, x: float, y: float, **more: str | None) -> Markup:
    """Return a step: a disc whose colour and sign both say the state, so that neither is needed alone."""
    if state not in STATES:
        raise ValueError(f"step state {state!r} is none of {STATES}; map it to one before drawing.")
    sign = {
        "done": [(-2.6, 0.2), (-0.8, 2.2), (2.8, -2.2)],
        "failed": [(-2.2, -2.2), (2.2, 2.2), (0.0, 0.0), (2.2, -2.2), (-2.2, 2.2)],
        "running": [(-1.8, -2.8), (2.6, 0.0), (-1.8, 2.8)],
        "blocked": [(-2.8, 0.0), (2.8, 0.0)],
    }.get(state, [])
    parts = [element("circle", cx=x, cy=y, r=_RADIUS)]
    if state in ("this", "stale", "drifted"):
        parts.append(element("circle", cx=x, cy=y, r=2.2, class_="sign-dot"))
    if sign:
        parts.append(element("path", d=path_of([(x + dx, y + dy) for dx, dy in sign]), class_="sign"))
    return element("g", *parts, class_=f"step {state}", **more)


def _header(kinds: Sequence[str], left: float, step: float, top: float) -> Markup:
    parts = []
    for column, kind in enumerate(kinds):
        x, y = left + step * (column + 0.5), top + _HEADER - 10
        parts.append(text(kind.replace("_", " "), x, y, class_="kind", transform=f"rotate(-45 {x:.1f} {y:.1f})"))
    return joined(parts)


def _cells(row: Row, kinds: Sequence[str], left: float, step: float, y: float, mark: Mark) -> Markup:
    """Return steps of a row in their columns, those of one kind side by side, joined by a line."""
    places: list[tuple[Node, float]] = []
    for column, kind in enumerate(kinds):
        found = [node for node in row.nodes if node.kind == kind]
        for position, node in enumerate(found):
            places.append((node, left + step * (column + 0.5) + (position - (len(found) - 1) / 2) * 13))
    joints = straight(places[0][1], y, places[-1][1], y, "chain") if len(places) > 1 else Markup()
    return joined([joints, *(mark(node, x, y) for node, x in places)])


def _name_width(names: Sequence[str], limit: float) -> float:
    return min(max((text_width(name, TEXT_SIZE) for name in names), default=0) + 14, limit)


def _chains(plan: Layout, left: float, top: float, width: float, mark: Mark) -> tuple[Markup, float, list[Point]]:
    names = _name_width([row.name for row in plan.chains], width * 0.45)
    step = min(58.0, (width - names - (30 if width < 600 else 12)) / max(len(plan.chain_kinds), 1))
    parts: list[str] = [_header(plan.chain_kinds, left + names, step, top)]
    ends: list[tuple[float, float]] = []
    spine_inputs = {name for row in plan.spine for node in row.nodes if node.kind == SPINE_KIND for name in node.inputs}
    for position, row in enumerate(plan.chains):
        y = top + _HEADER + _ROW * (position + 0.5)
        if position % 2 == 0:
            shape = {"x": left, "y": y - _ROW / 2, "width": names + step * len(plan.chain_kinds), "height": _ROW}
            parts.append(element("rect", class_="stripe", **shape))
        parts.append(text(fitted(row.name, names - 8, TEXT_SIZE), left + 4, y + 3.8, class_="name"))
        parts.append(_cells(row, plan.chain_kinds, left + names, step, y, mark))
        for node in row.nodes:
            if node.name in spine_inputs:
                ends.append((left + names + step * (plan.chain_kinds.index(node.kind) + 0.5), y))
    return joined(parts), _HEADER + _ROW * len(plan.chains), ends


def _spine(plan: Layout, left: float, top: float, width: float, mark: Mark) -> tuple[Markup, float, Point]:
    lanes = max(plan.lanes.values(), default=0) + 1
    lane_width = lanes * _LANE + 6
    names = _name_width([row.name for row in plan.spine], width * 0.45)
    kinds = [kind for kind in plan.spine_kinds if kind != SPINE_KIND]
    columns = left + lane_width + names
    step = min(58.0, (width - lane_width - names - 30) / max(len(kinds), 1))
    parts: list[str] = [_header(kinds, columns, step, top)]
    places: dict[str, tuple[float, float]] = {}
    for position, row in enumerate(plan.spine):
        y = top + _HEADER + _ROW * (position + 0.5)
        places[row.name] = (left + _LANE * (plan.lanes[row.name] + 0.5), y)
        if position % 2 == 0:
            shape = {"x": left, "y": y - _ROW / 2, "width": lane_width + names + step * len(kinds), "height": _ROW}
            parts.append(element("rect", class_="stripe", **shape))
    # The main line last: where it runs beside the stem of a branch, it is the one to be seen.
    for group, parent in sorted(plan.parents.items(), key=lambda pair: plan.lanes[pair[0]] == 0):
        (x, y), (from_x, from_y) = places[group], places[parent]
        points = (
            [(from_x, from_y), (from_x, y)] if x == from_x else [(from_x, from_y), (from_x, y - 7), (x - 7, y), (x, y)]
        )
        kind = "main" if plan.lanes[group] == 0 else "branch"
        parts.append(element("path", d=path_of(points), class_=f"spine {kind}"))
    for row in plan.spine:
        x, y = places[row.name]
        rest = Row(row.name, tuple(node for node in row.nodes if node.kind != SPINE_KIND))
        legs = [node for node in row.nodes if node.kind == SPINE_KIND]
        class_ = "name strong" if legs and plan.lanes[row.name] == 0 else "name"
        parts.append(
            text(
                fitted(row.name, (names - 8) / (1.1 if "strong" in class_ else 1.0), TEXT_SIZE),
                left + lane_width,
                y + 3.8,
                class_=class_,
            )
        )
        if rest.nodes:
            parts.append(_cells(rest, kinds, columns, step, y, mark))
        parts += [mark(node, x, y) for node in legs]
    start = next(iter(places.values()), (left, top))
    return joined(parts), _HEADER + _ROW * len(plan.spine), start
