"""Frontier: which steps of a driver may start and which never will. Each change updates only its readers.

A search of the whole graph after each step would make a chain of n steps cost n squared.
"""

import bisect
import dataclasses
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from marin_dag.graph.background import Background
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Lease
from marin_dag.ledger.requests import Request
from marin_dag.record_key import digest_of

Keys = tuple[str, ...]
"""Keys of records, any one of which an input can start from; the best first."""
State = Literal["waiting", "running", "done", "failed", "blocked", "stopped", "skipped"]
ENDED: tuple[State, ...] = ("done", "failed", "blocked", "stopped", "skipped")


@dataclasses.dataclass
class Node:
    """A step and its state in this driver."""

    step: Step[Any]
    state: State = "waiting"
    """"running": the backend has the task, which may still wait for its resources."""
    has_started: bool = False
    submitted: float = 0.0
    is_shown_queued: bool = False
    not_before: float = 0.0
    is_elsewhere: bool = False
    """Whether another driver holds the lease."""
    requested_milestones: frozenset[int] = frozenset()
    """Milestones that people asked for, besides those that the graph needs."""
    stop_request: Request | None = None
    """The request to stop that came while the step waited for its resources."""
    has_requested: bool = False
    """Whether this driver has asked the attempt of another driver for the milestones it needs."""
    obstacle: str = ""
    """Why the step is blocked: the reason of the first blocked step above it."""
    lease: Lease | None = None
    num_attempts: int = 0
    num_postponed: int = 0
    num_without_progress: int = 0
    progress_mark: str | None = None


class Frontier:
    """The nodes of one driver, in the graph's order, and the committed keys.

    `move` changes states, `commit` adds committed keys.
    """

    def __init__(self, nodes: Iterable[Node], max_alike: int = sys.maxsize) -> None:
        self._max_alike = max_alike
        self.committed: set[str] = set()
        """Keys that have a record, as far as this driver has seen."""
        self.running: dict[str, Node] = {}
        """Running nodes by key, in the order in which they were submitted."""
        self._num_running_on: Counter[Resources] = Counter()
        self.nodes = list(nodes)
        self._index = {node.step.key: index for index, node in enumerate(self.nodes)}
        self._by_digest: dict[str, list[Node]] = defaultdict(list)
        self._readers: dict[str, list[tuple[Keys, Node]]] = defaultdict(list)
        self._missing: dict[str, set[Keys]] = {}
        for node in self.nodes:
            key = node.step.key
            self._by_digest[node.step.digest].append(node)
            wanted = {item.keys: item.digest for _, item in node.step.inputs}
            self._missing[key] = set(wanted)
            for keys, digest in wanted.items():
                self._readers[digest].append((keys, node))
        # By resources: `ready` skips all nodes of resources that are full at once.
        self._complete: dict[Resources, list[int]] = defaultdict(list)
        for index, node in enumerate(self.nodes):
            if not self._missing[node.step.key]:
                self._complete[node.step.resources].append(index)
        self._suspects = list(self.nodes)
        self._num_unfinished = len(self.nodes)

    @property
    def is_finished(self) -> bool:
        return not self._num_unfinished

    def move(self, node: Node, state: State) -> None:
        before, node.state = node.state, state
        self._num_unfinished += (before in ENDED) - (state in ENDED)
        key = node.step.key
        if self.running.pop(key, None) is not None:
            self._num_running_on[node.step.resources] -= 1
        if state == "running":
            self.running[key] = node
            self._num_running_on[node.step.resources] += 1
        self._note_complete(node)
        if state in ENDED:
            readers = self._readers[node.step.digest]
            self._suspects += [reader for keys, reader in readers if keys[0] not in self.committed]

    def commit(self, key: str) -> None:
        if key in self.committed:
            return
        self.committed.add(key)
        for keys, reader in self._readers[digest_of(key)]:
            if key in keys:
                self._missing[reader.step.key].discard(keys)
                self._note_complete(reader)

    def key_there(self, item: OutputRef[Step[Any]]) -> str | None:
        """Return the key of the best record that `item` can start from; None if there is none yet.

        A part is enough only while another step makes the rest. Otherwise its reader would hold its resources and wait.
        """
        if item.key in self.committed or not item.is_growing:
            return item.key if item.key in self.committed else None
        makers = self._by_digest.get(item.digest, ())
        if makers and not any(maker.state == "running" or maker.is_elsewhere for maker in makers):
            return None
        return next((key for key in item.keys if key in self.committed), None)

    def ready(self, now: float) -> Iterator[Node]:
        """Yield the nodes that may start.

        Their inputs are committed, their pause is over, no earlier phase of the same run is in the way, and fewer than
        `max_alike` nodes run on the same resources. Each is checked when it is yielded, not when iteration begins.
        Background nodes come last, the highest rank first, and none while another node is queued in its way.
        """
        index = -1
        behind: list[tuple[int, Node]] = []
        while (after := self._complete_after(index)) is not None:
            index = after
            node = self.nodes[index]
            growing = (item for _, item in node.step.inputs if item.is_growing)
            is_due = node.state == "waiting" and node.not_before <= now and not self._is_in_turn_behind(node)
            if is_due and all(self.key_there(item) is not None for item in growing):
                if node.step.background is None:
                    yield node
                else:
                    behind.append((node.step.background.rank, node))
        for _, node in sorted(behind, key=lambda each: each[0], reverse=True):
            if node.state == "waiting" and not self._is_queue_before(node):
                yield node

    def fallen_behind(self) -> list[Node]:
        """Return the background nodes that wait behind the `max_waiting` nodes of highest rank in their group."""
        ready: dict[str, set[int]] = defaultdict(set)
        waiting: list[tuple[Node, Background]] = []
        for node in self.nodes:
            if node.step.background is not None and node.state == "waiting":
                waiting.append((node, node.step.background))
                if not self._missing[node.step.key]:
                    ready[node.step.background.group].add(node.step.background.rank)
        found = []
        for node, its in waiting:
            newer = sum(rank > its.rank for rank in ready[its.group])
            if its.max_waiting is not None and its.rank in ready[its.group] and newer >= its.max_waiting:
                found.append(node)
        return found

    def take_suspects(self) -> list[Node]:
        """Return the waiting nodes that may have lost the maker of an input since the last call."""
        suspects, self._suspects = self._suspects, []
        return [node for node in {node.step.key: node for node in suspects}.values() if node.state == "waiting"]

    def obstacle(self, step: Step[Any], *, is_stopping: bool) -> str | None:
        """Return why a step will never get its inputs in this driver; None if it may get them."""
        for _, item in step.inputs:
            if self.key_there(item) is not None:
                continue
            makers = [
                node
                for node in self._by_digest.get(item.digest, ())
                if node.step.key != step.key and _makes(node.step, item)
            ]
            if any(maker.state not in ENDED for maker in makers):
                continue
            if is_stopping and any(maker.state == "stopped" for maker in makers):
                continue  # the next driver continues both
            for maker in makers:
                if maker.state != "done":
                    return maker.obstacle or f"by {maker.step.name}"
            if makers:
                return f"{item.name} is done but has published no milestone {item.milestone}{_publishing(item)}"
            return _unmade(item)
        return None

    def _is_in_turn_behind(self, node: Node) -> bool:
        """Return whether another phase of its run comes first: a running one, or an earlier one with all its inputs."""
        for other in self._by_digest[node.step.digest]:
            is_earlier = (other.step.until or 0) < (node.step.until or 0)
            could_run = other.state == "waiting" and not self._missing[other.step.key]
            if other is not node and (other.state == "running" or (could_run and is_earlier)):
                return True
        return False

    def _is_queue_before(self, node: Node) -> bool:
        """Return whether a step of the run is queued, or a background step for the same resources."""
        queued = [other.step for other in self.running.values() if not other.has_started]
        return any(step.background is None or step.resources == node.step.resources for step in queued)

    def _complete_after(self, index: int) -> int | None:
        candidates = []
        for resources, indices in self._complete.items():
            place = bisect.bisect_right(indices, index)
            if place < len(indices) and self._num_running_on[resources] < self._max_alike:
                candidates.append(indices[place])
        return min(candidates, default=None)

    def _note_complete(self, node: Node) -> None:
        """Update the list of waiting nodes with all inputs committed."""
        index = self._index[node.step.key]
        indices = self._complete[node.step.resources]
        place = bisect.bisect_left(indices, index)
        is_listed = place < len(indices) and indices[place] == index
        belongs = node.state == "waiting" and not self._missing[node.step.key]
        if belongs and not is_listed:
            indices.insert(place, index)
        elif is_listed and not belongs:
            del indices[place]


def _unmade(item: OutputRef[Step[Any]]) -> str:
    if item.milestone in (None, item.step.until):
        return f"{item.name} is not committed and not selected"
    return f"no selected step publishes {item.name}@{item.milestone}{_publishing(item)}"


def _publishing(item: OutputRef[Step[Any]]) -> str:
    step = item.step
    if item.milestone is None or step.kind.stop_field is None:
        return ""
    return f"; to publish it: `--set {step.name}.{step.kind.stop_field}={item.milestone} --until {step.name}`"


def _makes(step: Step[Any], item: OutputRef[Step[Any]]) -> bool:
    """Return whether `step` may commit what `item` reads; a phase commits the milestones between its start and end."""
    if step.digest != item.digest:
        return False
    if item.milestone is None or step.until is None:
        return True
    start = step.predecessor
    begins = start.milestone if start is not None and start.digest == step.digest else None
    return (begins is None or begins < item.milestone) and item.milestone <= step.until
