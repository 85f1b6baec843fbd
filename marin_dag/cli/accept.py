"""accept STEP --because TEXT: other code makes the same output; the drifted step is done. --revoke takes it back."""

from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.ledger.acceptances import Acceptances, refuse_empty
from marin_dag.plan.plan import Plan
from marin_dag.plan.planned import PlannedStep, Verdict
from marin_dag.plan.reasons import Drifted, render_difference


def _accept(session: Session) -> int:
    plan = session.plan()
    # All of them are looked at before the first is written.
    chosen = [plan[name] for pattern in session.parsed.names for name in plan.graph.matching(pattern, "accept")]
    command = f"accept {' '.join(session.parsed.names)}"
    if session.parsed.revoke:
        return _revoke(session, command, chosen)
    refuse_empty(command, session.parsed.because)
    differences = [(planned, _drift(plan, planned)) for planned in chosen]
    acceptances = Acceptances(session.store)
    for planned, drift in differences:
        acceptances.accept(planned.step.digest, planned.name, drift.difference, session.parsed.because)
        print(f"{planned.name}: accepted, {render_difference(drift.difference)}")
        print("  its record stays as it is; it counts as done until the code changes again")
        taken_back = session.line("accept", planned.name, "--revoke", "--because", "...", without=["--because"])
        print(f"  take it back  {taken_back}")
    return NOTHING_WOULD_RUN


def _revoke(session: Session, command: str, chosen: list[PlannedStep]) -> int:
    refuse_empty(f"{command} --revoke", session.parsed.because)
    acceptances = Acceptances(session.store)
    found = [(planned, acceptances.in_force(planned.step.digest)) for planned in chosen]
    for planned, in_force in found:
        if not in_force:
            raise UserError(f"accept {planned.name} --revoke: nothing was accepted for it; `why {planned.name}` shows.")
    for planned, in_force in found:
        for acceptance in in_force:
            acceptances.revoke(acceptance, session.parsed.because)
            print(f"{planned.name}: no longer accepted (by {acceptance.author}, {acceptance.because})")
    return NOTHING_WOULD_RUN


def _drift(plan: Plan, planned: PlannedStep) -> Drifted:
    for reason in planned.reasons:
        if isinstance(reason, Drifted):
            return reason
    if planned.verdict is Verdict.STALE and planned.step.policy == "tracked":
        cure = "its code is part of its identity (policy tracked); only a versioned step can drift. Run it, or undo"
        raise UserError(f"accept {planned.name}: it is stale, not drifted: {cure} the edit.")
    raise UserError(f"accept {planned.name}: it is {planned.verdict}, not drifted; there is nothing to accept.")


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--because", default="", metavar="TEXT", help="(accept) why the output would be the same")
    parser.add_argument("--revoke", action="store_true", help="(accept) take an earlier acceptance back")


COMMAND = Command(
    "accept",
    'STEP --because "..." [--revoke]',
    "say that drifted code makes the same output",
    _accept,
    1,
    1_000,
    _add_arguments,
    options=("--set",),
)
