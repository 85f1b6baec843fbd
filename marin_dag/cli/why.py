"""why STEP: the reason for its verdict, down to the field or function."""

from marin_dag.cli.session import NOTHING_WOULD_RUN, ONLY_LOOKS, SELECTION, Command, Session
from marin_dag.plan.explain import explain


def _why(session: Session) -> int:
    plan = session.plan(session.step)
    print(explain(plan, session.step, session.store))
    for what, line in session.lines_to_tell([plan[session.step]]):
        print(f"  {what:<9} {line}")
    return NOTHING_WOULD_RUN


COMMAND = Command(
    "why",
    "STEP",
    "the reason for STEP's verdict, down to the field or function",
    _why,
    1,
    1,
    options=("--set", *SELECTION),
    advice=ONLY_LOOKS,
)
