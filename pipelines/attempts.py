"""Attempts: phases that share one output, and the events of the attempts at it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.store.store import Store
from runtime.tracking.log_names import is_of_first_host
from steps.phase_config import TrainPhaseConfig


def phases_by_digest(steps: Iterable[Step[Any]]) -> dict[str, list[str]]:
    """Return the phases of each digest, in the order of the plan: one training, to one or several `until_step`."""
    found: dict[str, list[str]] = {}
    for step in steps:
        if isinstance(step.config, TrainPhaseConfig):
            found.setdefault(step.digest, []).append(step.name)
    return found


def shared_note(names: Sequence[str]) -> str:
    """Return the note that the phases `names` share their figures."""
    others = ", ".join(names[1:])
    return f"{names[0]}: its figures are also those of {others}, the same training to this or another until_step"


def attempt_events(store: Store, digest: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the events of each attempt at one digest, from the log of its first host."""
    from runtime.tracking.events import read_events  # a plan imports this module, and should load nothing heavy

    paths = sorted(entry.path for entry in store.list(f"work/{digest}/events") if is_of_first_host(entry.path))
    return (read_events(store.url(path)) for path in paths)
