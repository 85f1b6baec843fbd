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
            request.id,
            Action[request.action.upper()],
            request.milestone,
            request.text,
            functools.partial(context.reply, request),
            functools.partial(context.decline, request),
        )
        for request in context.requests()
        if request.action in ACTIONS
    ]
