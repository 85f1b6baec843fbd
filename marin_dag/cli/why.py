"""why STEP: the reason for the step's verdict, down to the changed field or function."""

from marin_dag.cli.session import NOTHING_WOULD_RUN, SELECTION, Command, Session
from marin_dag.plan.explain import explain


def _why(session: Session) -> int:
    plan = session.plan(session.step)
    print(explain(plan, session.step, session.store))
    for what, line in session.publish_commands([plan[session.step]]):
        print(f"  {what:<9} {line}")
    return NOTHING_WOULD_RUN


COMMAND = Command(
    "why",
    "STEP",
    "explain STEP's verdict, down to the changed field or function",
    _why,
    1,
    1,
    options=("--set", *SELECTION),
)
