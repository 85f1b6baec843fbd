"""Failures: the record of an attempt that ended with an error, and the report of a driver about them at its end."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from marin_dag.graph.graph import Graph
from marin_dag.ledger.damage import DamagedInputError
from marin_dag.ledger.provenance import now
from marin_dag.ledger.records import Failure, attempt_path, first_lines
from marin_dag.quantities import counted
from marin_dag.run.frontier import ENDED, Node, State
from marin_dag.run.task import Task
from marin_dag.store.redact import redact
from marin_dag.store.retry import is_transient
from marin_dag.store.store import Store, explain_os_error, limit_met


def failure_of(task: Task, error: BaseException) -> Failure:
    """Return `error` as the record of a failed attempt."""
    explained, limit = None, limit_met(error)
    if limit is not None:
        explained = explain_os_error(limit, str(limit.filename or attempt_path(task.name, task.digest, task.attempt)))
    return Failure(
        key=task.key,
        name=task.name,
        attempt=task.attempt,
        error_type=type(error).__qualname__,
        error=first_lines(error) if explained is None else redact(explained),
        log_path=f"{attempt_path(task.name, task.digest, task.attempt)}.log",
        is_transient=is_transient(error),
        finished=now(),
        steps_to_force=error.steps_to_force if isinstance(error, DamagedInputError) else (),
    )


def is_from_ray(error: BaseException) -> bool:
    """Return whether Ray raised the error: to cancel the task, or to end a worker that got SIGTERM."""
    return isinstance(error, KeyboardInterrupt) or hasattr(error, "ray_terminate_msg")


def headline(failure: Failure) -> str:
    """Return the error in one line."""
    return f"{failure.error_type}: {failure.error.splitlines()[0] if failure.error else ''}"


def failure_report(
    nodes: Sequence[Node],
    failures: Mapping[str, Failure],
    store: Store,
    command: str,
    command_to_force: Callable[[str], str],
) -> Iterator[str]:
    """Yield each failure, how many steps are not done, and the commands to continue; nothing if all are done.

    Args:
        nodes: the steps of the driver.
        failures: failures of steps that will not be retried, by key, in the order in which they happened.
        store: where the logs are.
        command: continues with what is not done.
        command_to_force: returns the command that makes the output of a step again, by its name.
    """
    by_key = {node.step.key: node for node in nodes}
    for key, failure in failures.items():
        yield _failure(by_key[key].step.name, by_key[key].num_attempts, failure, store)
    states = [node.state for node in nodes]
    if any(state != "done" for state in states):
        yield _summary(states)
        damaged = {name for failure in failures.values() for name in failure.steps_to_force}
        above = Graph(by_key[key].step for key in failures).names if damaged else ()
        for name in above:  # inputs first
            if name in damaged:
                yield f"first:     {command_to_force(name)}"
        yield f"{'then:    ' if damaged else 'continue:'}  {command}"


def _failure(name: str, num_attempts: int, failure: Failure, store: Store) -> str:
    attempts = f" ({num_attempts} attempts)" if num_attempts > 1 else ""
    lines = [f"\n{name} failed{attempts}: {failure.error_type}: {failure.error}"]
    if store.exists(failure.log_path):  # not if the attempt never started
        lines.append(f"  log:  {store.url(failure.log_path)}")
    return "\n".join(lines)


def _summary(states: Sequence[State]) -> str:
    """Return a line like `4 of 6 steps are done, 1 stopped, 1 not run`."""
    count = {state: states.count(state) for state in ENDED}
    not_run = len(states) - sum(count.values())
    others = {state: number for state, number in count.items() if state != "done"} | {"not run": not_run}
    rest = ", ".join(f"{number} {state}" for state, number in others.items() if number)
    are = "is" if len(states) == 1 else "are"
    return f"{count['done']} of {counted(len(states), 'step')} {are} done, {rest}"
