"""ls: every step, its digest and where its output is, and the forks."""

from marin_dag.commands.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.plan import Verdict
from marin_dag.records import Records


def _list(session: Session) -> int:
    plan = session.plan()
    records = Records(session.store)
    for planned in plan.steps:
        step = planned.step
        record = records.find(step.key) if planned.verdict is Verdict.DONE else None
        where = "" if record is None else f"  {session.store.url(record.output_path)}"
        at = "" if step.until is None else f"@{step.until}"
        print(f"{step.name:<36} {planned.verdict:<8} {step.digest[:8]}{at}{where}")
    for fork in session.forks.all():
        changes = ", ".join(f"{field}={text}" for field, text in fork.changes.items())
        because = f": {fork.reason}" if fork.reason else ""
        print(f"fork {fork.name} of {fork.base} with {changes}, by {fork.author}, {fork.created[:10]}{because}")
    return NOTHING_WOULD_RUN


COMMAND = Command("ls", "", "every step, its digest and output, and the forks", _list)
