"""Obituary: what a user is told when a step has failed for good, and when a run ends with steps that are not done."""

from collections.abc import Mapping

from marin_dag.quantities import counted
from marin_dag.records import Failure
from marin_dag.store import Store


def obituary(name: str, num_attempts: int, failure: Failure, store: Store) -> str:
    """The first lines of the error, and where the rest is."""
    again = f" ({num_attempts} attempts)" if num_attempts > 1 else ""
    lines = [f"\n{name} failed{again}: {failure.error_type}: {failure.error}"]
    if store.exists(failure.log_path):  # not if the attempt never began
        lines.append(f"  log:  {store.url(failure.log_path)}")
    return "\n".join(lines)


def headline(failure: Failure) -> str:
    """The error in one line."""
    return f"{failure.error_type}: {failure.error.splitlines()[0] if failure.error else ''}"


def summary(num_steps: int, num_in_state: Mapping[str, int]) -> str:
    """`4 of 6 steps are done, 1 stopped, 1 not run`."""
    rest = num_steps - sum(num_in_state.values())
    parts = {what: number for what, number in num_in_state.items() if what != "done"} | {"not run": rest}
    said = ", ".join(f"{number} {what}" for what, number in parts.items() if number)
    return f"{num_in_state['done']} of {counted(num_steps, 'step')} {'is' if num_steps == 1 else 'are'} done, {said}"
