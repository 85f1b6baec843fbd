"""Phase requests: what people tell a training phase while it runs (`tell PHASE WORD`), as its loop takes it."""

import functools
from typing import TYPE_CHECKING

from marin_dag.graph.step import StepContext

if TYPE_CHECKING:
    from runtime.training.control import Request

WORDS = ("save", "publish", "profile")
"""That a phase hears, beside "stop"."""


def requests_of(context: StepContext) -> "list[Request]":
    """What people have told the phase and it has not answered, the oldest first."""
    from runtime.training.control import Request, Word

    return [
        Request(
            told.id,
            Word[told.action.upper()],
            told.milestone,
            told.text,
            functools.partial(context.reply, told),
            functools.partial(context.decline, told),
        )
        for told in context.requests()
        if told.action in WORDS
    ]
