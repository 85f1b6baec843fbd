"""Trainings: what phases that are stops of one training share, and the events of its attempts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.store.store import Store
from runtime.tracking.log_names import is_of_first_host
from steps.phase_config import TrainPhaseConfig


def names_of_trainings(steps: Iterable[Step[Any]]) -> dict[str, list[str]]:
    """Digest of each training to the phases that are its stops, in the order of the plan, which trains the first."""
    found: dict[str, list[str]] = {}
    for step in steps:
        if isinstance(step.config, TrainPhaseConfig):
            found.setdefault(step.digest, []).append(step.name)
    return found


def shared(names: Sequence[str]) -> str:
    """That one training, with one log, has several names."""
    others = names[1:]
    listed = others[0] if len(others) == 1 else f"{', '.join(others[:-1])} and {others[-1]}"
    return f"{names[0]}: its figures are also those of {listed}, the same training to this or another stop"


def attempts_of(store: Store, digest: str) -> Iterator[list[dict[str, Any]]]:
    """The events of each attempt at one training, as its first host wrote them down."""
    from runtime.tracking.events import read_events  # not above: a plan imports this module and nothing heavy

    paths = sorted(entry.path for entry in store.list(f"work/{digest}/events") if is_of_first_host(entry.path))
    return (read_events(store.url(path)) for path in paths)
