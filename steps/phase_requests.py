"""Phase requests: the requests of users to a training phase (`tell PHASE save`), as its loop reads them."""

import functools
from typing import TYPE_CHECKING

from marin_dag.graph.step import StepContext

if TYPE_CHECKING:
    from runtime.training.control import Request

ACTIONS = ("save", "publish", "profile")
"""Requests that a phase takes, besides "stop"."""


def requests_of(context: StepContext) -> "list[Request]":
    """Return the requests without a reply, the oldest first."""
    from runtime.training.control import Action, Request

    return [
        Request(
            told.id,
            Action[told.action.upper()],
            told.milestone,
            told.text,
            functools.partial(context.reply, told),
            functools.partial(context.decline, told),
        )
        for told in context.requests()
        if told.action in ACTIONS
    ]
