"""timeline: every phase of the recipe and what it changes; `--plot FILE` draws it."""

from typing import Any

from marin_dag.commands.session import NOTHING_WOULD_RUN, ONLY_LOOKS, Command, Session
from marin_dag.errors import UserError
from pipelines.picture_file import refuse_unwritable
from pipelines.timeline import phases_in, render


def _timeline(session: Session) -> int:
    phases = phases_in(session.graph().steps)
    if not phases:
        raise UserError(f"timeline: the pipeline {session.pipeline!r} trains nothing.")
    forks = frozenset(fork.name for fork in session.forks.all())
    if session.parsed.plot is not None:
        refuse_unwritable("--plot", session.parsed.plot, (".html", ".svg"))
    print(render(phases, forks))
    if session.parsed.plot is not None:
        from pipelines.timeline_plot import draw  # the words alone need no NumPy

        draw(session.parsed.plot, f"Timeline of {session.pipeline}", phases, forks)
        print(f"drawn: {session.parsed.plot}")
    return NOTHING_WOULD_RUN


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--plot", metavar="FILE", help="(timeline) draw it too: FILE.html or FILE.svg")


COMMAND = Command(
    "timeline",
    "",
    "every phase: steps, tokens, settings, what changes",
    _timeline,
    0,
    0,
    _add_arguments,
    ("--set",),
    ONLY_LOOKS,
)
