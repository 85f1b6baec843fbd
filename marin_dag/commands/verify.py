"""verify STEP|all: whether outputs are as they were committed. --rerun makes them again beside, and compares."""

from typing import Any

from marin_dag.commands.run import backend_named
from marin_dag.commands.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.quantities import counted, in_bytes
from marin_dag.step import Step
from marin_dag.storage.damage import NOT_OURS, findings_of
from marin_dag.storage.records import Record, Records, UnreadableRecordError
from marin_dag.verify import Rerunner

ALL = "all"
MAX_FINDINGS = 20


def _verify(session: Session) -> int:
    graph, records = session.graph(), Records(session.store)
    everything = session.parsed.names == [ALL]
    names = graph.names if everything else [n for text in session.parsed.names for n in graph.matching(text, "verify")]
    committed = records.committed_keys()
    is_good, seen = True, set()
    for step in (graph.step(name) for name in names):
        if step.key not in committed:
            if not everything:
                raise UserError(f"verify {step.name}: it is not committed; run it first.")
        elif step.key not in seen:
            seen.add(step.key)
            try:
                record = records.get(step.key)
            except UnreadableRecordError as error:  # of one step; what others hold is yet to be looked at
                print(f"{step.name}: {error}")
                is_good = False
                continue
            is_good &= _verified(session, step.name, records, record)
            if session.parsed.rerun:
                is_good &= _rerun(session, step, record)
    if not seen:
        print("nothing is committed yet")
    return NOTHING_WOULD_RUN if is_good else FAILED


def _verified(session: Session, name: str, records: Records, record: Record) -> bool:
    findings = findings_of(session.store, record, records.milestones(record.digest).values())
    size = sum(entry.size_in_bytes for entry in record.manifest)
    if not findings:
        print(f"{record.name}: {counted(len(record.manifest), 'file')}, {in_bytes(size)}, all as recorded")
        return True
    print(
        f"{record.name}: {len(findings)} of its files are not as recorded, in {session.store.url(record.output_path)}"
    )
    for finding in findings[:MAX_FINDINGS]:
        print(f"  {finding.path} {finding.what}")
    if len(findings) > MAX_FINDINGS:
        print(f"  and {len(findings) - MAX_FINDINGS} more")
    if all(finding.what == NOT_OURS for finding in findings):
        print("no reader sees them: remove them, or leave them")
    else:
        print(f"to make them again, and replace what is damaged:  {session.line('--force', name, '--until', name)}")
    return False


def _rerun(session: Session, step: Step[Any], record: Record) -> bool:
    rerun = Rerunner(session.store, backend_named(session.parsed.backend, session.pipeline)).rerun(step, record)
    if not rerun.differences:
        how = "the same, bit for bit" if rerun.is_bitwise else "the same within what its kind tolerates"
        print(f"{step.name}: run again, it gave {how}")
        return True
    print(f"{step.name}: run again, it gave something else; the second output is in {rerun.folder}")
    for difference in rerun.differences[:MAX_FINDINGS]:
        print(f"  {difference}")
    return False


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--rerun", action="store_true", help="(verify) run it again beside, and compare")


COMMAND = Command(
    "verify",
    "STEP|all [--rerun]",
    "whether outputs are as they were committed",
    _verify,
    1,
    1_000,
    _add_arguments,
    options=("--set",),
)
