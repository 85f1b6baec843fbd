"""why STEP: the reason for its verdict, down to the field or function."""

from marin_dag.commands.session import NOTHING_WOULD_RUN, ONLY_LOOKS, SELECTION, Command, Session
from marin_dag.explain import explain


def _why(session: Session) -> int:
    print(explain(session.plan(session.step), session.step, session.store))
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
