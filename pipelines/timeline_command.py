"""The command `timeline`: each phase, its changes, and what a plan would refuse; `--plot FILE` draws it."""

import json
from typing import Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.plan.config_checks import refusals
from marin_dag.values.changes import nearest
from pipelines.page_file import check_writable, write_page
from pipelines.timeline import document, phases_in, render


def _timeline(session: Session) -> int:
    parsed = session.parsed
    phases = phases_in(session.graph().steps)
    if not phases:
        raise UserError(f"timeline: the recipe {session.pipeline!r} has no training phase.")
    for name in parsed.names:
        if name not in phases:
            raise UserError(
                f"timeline {name}: no phase has this name.{nearest(name, phases)} `timeline` lists all phases."
            )
    if parsed.plot is not None:
        if parsed.names or parsed.json:
            raise UserError("timeline --plot draws every phase. Remove the names of phases and --json.")
        check_writable("--plot", parsed.plot)
    refused = refusals(phases[name] for name in parsed.names or phases)
    forks = frozenset(fork.name for fork in session.forks.all())
    if parsed.json:
        print(json.dumps(document(phases, refused, forks, parsed.names), indent=1))
    else:
        print(render(phases, refused, forks, parsed.names))
    if parsed.plot is not None:
        from pipelines.timeline_plot import draw  # only the drawing needs NumPy

        write_page("--plot", parsed.plot, draw(f"Timeline of {session.pipeline}", phases, refused, forks))
        print(f"drawn: {parsed.plot}")
    return FAILED if refused else NOTHING_WOULD_RUN


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--plot", metavar="FILE.html", help="(timeline) draw it too")


COMMAND = Command(
    "timeline",
    "[PHASE ...] [--json]",
    "every phase: steps, tokens, settings, what changes",
    _timeline,
    0,
    100,
    _add_arguments,
    ("--set", "--json"),
)
