"""Obituary: what a user is told when a step has failed for good, and when a run ends with steps that are not done."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import get_args

from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Failure
from marin_dag.quantities import counted
from marin_dag.run.live import ENDINGS
from marin_dag.run.node import Node, State
from marin_dag.store.store import Store


def headline(failure: Failure) -> str:
    """The error in one line."""
    return f"{failure.error_type}: {failure.error.splitlines()[0] if failure.error else ''}"


def last_words(
    nodes: Sequence[Node],
    failures: Mapping[str, Failure],
    store: Store,
    command: str,
    command_to_force: Callable[[str], str],
) -> Iterator[str]:
    """What a run ends with: each failure, then, unless all is done, how many are not, and what to type.

    Args:
        failures: of steps that failed for good, by key, in the order in which they did.
        command: goes on with what is not done.
        command_to_force: makes the output of a step again, by its name.
    """
    by_key = {node.step.key: node for node in nodes}
    for key, failure in failures.items():
        yield _obituary(by_key[key].step.name, by_key[key].num_attempts, failure, store)
    states = [node.state for node in nodes]
    if any(state != "done" for state in states):
        yield _summary(states)
        damaged = {name for failure in failures.values() for name in failure.steps_to_force}
        above = Graph(by_key[key].step for key in failures).names if damaged else ()
        yield from _ways_on([name for name in above if name in damaged], command, command_to_force)


def _obituary(name: str, num_attempts: int, failure: Failure, store: Store) -> str:
    """The first lines of the error, and where the rest is."""
    again = f" ({num_attempts} attempts)" if num_attempts > 1 else ""
    lines = [f"\n{name} failed{again}: {failure.error_type}: {failure.error}"]
    if store.exists(failure.log_path):  # not if the attempt never began
        lines.append(f"  log:  {store.url(failure.log_path)}")
    return "\n".join(lines)


def _summary(states: Sequence[State]) -> str:
    """`4 of 6 steps are done, 1 stopped, 1 not run`."""
    count = {state: states.count(state) for state in get_args(State) if state in ENDINGS}
    not_run = len(states) - sum(count.values())
    parts = {what: number for what, number in count.items() if what != "done"} | {"not run": not_run}
    said = ", ".join(f"{number} {what}" for what, number in parts.items() if number)
    are = "is" if len(states) == 1 else "are"
    return f"{count['done']} of {counted(len(states), 'step')} {are} done, {said}"


def _ways_on(damaged: Sequence[str], command: str, command_to_force: Callable[[str], str]) -> Iterator[str]:
    """What to type after a run that has left steps undone: first what makes damaged outputs again, inputs first."""
    for name in damaged:
        yield f"first:     {command_to_force(name)}"
    yield f"{'then:    ' if damaged else 'to go on:'}  {command}"
