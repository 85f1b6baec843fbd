"""Sources of steps: the readable text of their code, by code fingerprint."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.identity.code_identity import source_of


def sources_of(steps: Iterable[Step[Any]]) -> dict[str, Callable[[], dict[str, str]]]:
    """Return, by code fingerprint, a function that returns the text of each definition."""
    return {step.identity["code"]["fingerprint"]: functools.partial(source_of, step) for step in steps}
