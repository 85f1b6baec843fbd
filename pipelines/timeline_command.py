"""timeline: every phase of a recipe with its steps, tokens, settings and changes."""

import json
from typing import Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.plan.config_checks import refusals
from pipelines.output import check_writable, write_page
from pipelines.phases import fork_names, phases_in, wanted_phases
from pipelines.timeline import document, render, timeline_of


def _timeline(session: Session) -> int:
    parsed = session.parsed
    graph = session.graph()
    wanted_phases(session, graph)
    if parsed.plot is not None and (parsed.names or parsed.json):
        raise UserError("timeline --plot draws every phase. Remove the names of phases and --json.")
    check_writable("--plot", parsed.plot)
    phases = phases_in(graph.steps)
    refused = refusals(phases[name] for name in parsed.names or phases)
    found = timeline_of(phases, refused, fork_names(session), parsed.names)
    print(json.dumps(document(found), indent=1) if parsed.json else render(found))
    if parsed.plot is not None:
        from pipelines.timeline_plot import draw  # only the drawing needs NumPy

        write_page("--plot", parsed.plot, draw(f"Timeline of {session.pipeline}", found))
    return FAILED if refused else NOTHING_WOULD_RUN


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--plot", metavar="FILE.html", help="(timeline) draw it too")


COMMAND = Command(
    "timeline", "[PHASE ...] [--json]", "every phase: steps, tokens, settings, what changes", _timeline, 0, 100,
    _add_arguments, ("--set", "--json"),
)  # fmt: skip
