"""Sources of steps: the readable text of their code, by code fingerprint."""

from collections.abc import Callable, Iterable
from typing import Any

from marin_dag.graph.step import Step


def sources_of(steps: Iterable[Step[Any]]) -> dict[str, Callable[[], dict[str, str]]]:
    """Return, by code fingerprint, a function that returns the text of each definition."""
    return {step.identity["code"]["fingerprint"]: step.source for step in steps}
