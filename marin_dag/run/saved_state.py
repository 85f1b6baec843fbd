"""Saved state: whether an attempt resumes from its own state, or reads the input that its run started from."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from marin_dag.graph.inputs import Input
from marin_dag.graph.step import StepKind


def has_later_state(
    kind: StepKind[Any, Any], config: BaseModel, digest: str, files: Iterable[str], milestones: Iterable[int]
) -> bool:
    """Return whether a state after the start of this part of the run, and not past its stop, exists.

    Args:
        kind: the step's kind.
        config: its config.
        digest: its digest.
        files: paths in its work folder.
        milestones: the numbers that are published.
    """
    saved = kind.resumes_at(list(files)) if kind.resumes_at is not None else ()
    until = getattr(config, kind.stop_field) if kind.stop_field is not None else 0
    start = getattr(config, kind.continues) if kind.continues is not None else None
    # The input of a later phase is a state of its own run, which the phase reads unless there is a newer state.
    begin = start.milestone or 0 if isinstance(start, Input) and start.digest == digest else -1
    return any(begin < at <= until for at in (*saved, *milestones))
