"""verify STEP|all: whether outputs are as they were committed. --rerun makes them again beside, and compares."""

from collections.abc import Collection, Sequence
from typing import Any

from marin_dag.cli.run import backend_named
from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.keep.verify import Rerunner
from marin_dag.ledger.damage import NOT_OURS, Finding, findings_of
from marin_dag.ledger.records import Record, Records, UnreadableRecordError
from marin_dag.plan.wanted_milestones import earlier_milestones
from marin_dag.quantities import counted, in_bytes

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
            # Of milestones, and of parts too: any of them may lie in the folder of the whole.
            beginning = f"{step.digest}@"
            keys = dict.fromkeys([step.key, *sorted(key for key in committed if key.startswith(beginning))])
            found = {key: record for key in keys if (record := _readable(step, records, key)) is not None}
            knows_all = len(found) == len(keys)
            is_good &= knows_all
            if step.key in found:
                own = found[step.key]
                earlier = (f"{beginning}{at}" for at in earlier_milestones(step, committed))
                milestones = [found[key] for key in earlier if key in found]
                is_good &= _verified(session, step, own, milestones, found.values(), knows_all=knows_all)
                if session.parsed.rerun:
                    is_good &= _rerun(session, step, own, milestones)
    if not seen:
        print("nothing is committed yet")
    return NOTHING_WOULD_RUN if is_good else FAILED


def _readable(step: Step[Any], records: Records, key: str) -> Record | None:
    """The record of `key`; None, and a word about it, where it cannot be read."""
    try:
        return records.get(key)
    except UnreadableRecordError as error:  # of one output; what others hold is yet to be looked at
        print(f"{step.name}: {error}")
        return None


def _verified(
    session: Session,
    step: Step[Any],
    own: Record,
    milestones: Sequence[Record],
    others: Collection[Record],
    *,
    knows_all: bool,
) -> bool:
    """Whether `own` and the milestones are as recorded, where a file may be one of `others` too; says what is not."""
    everything = [*milestones, own]
    damaged = {}
    for record in everything:
        findings = findings_of(session.store, record, others)
        # Else the folders of some are not known, and what lies in them may be theirs.
        if findings := [finding for finding in findings if knows_all or finding.what != NOT_OURS]:
            damaged[record.key] = findings
    whole = [record for record in everything if record.key not in damaged]
    if own in whole:
        files = [entry for record in whole for entry in record.manifest]
        beside = f" and {counted(len(whole) - 1, 'earlier milestone')}" if len(whole) > 1 else ""
        size = in_bytes(sum(entry.size_in_bytes for entry in files))
        print(f"{own.name}{beside}: {counted(len(files), 'file')}, {size}, all as recorded")
    for record in everything:
        if record.key in damaged:
            _tell_findings(session, record, damaged[record.key], is_own=record is own)
    if any(finding.what != NOT_OURS for findings in damaged.values() for finding in findings):
        line = session.line("--force", step.name, "--until", step.name)
        print(f"to make them again, and replace what is damaged:  {line}")
    return not damaged


def _tell_findings(session: Session, record: Record, findings: Sequence[Finding], *, is_own: bool) -> None:
    at = "" if is_own else f" at {record.milestone:,}"
    folder = session.store.url(record.output_path)
    print(f"{record.name}{at}: {len(findings)} of its files are not as recorded, in {folder}")
    for finding in findings[:MAX_FINDINGS]:
        print(f"  {finding.path} {finding.what}")
    if len(findings) > MAX_FINDINGS:
        print(f"  and {len(findings) - MAX_FINDINGS} more")
    if all(finding.what == NOT_OURS for finding in findings):
        print("no reader sees them: remove them, or leave them")


def _rerun(session: Session, step: Step[Any], record: Record, milestones: Sequence[Record]) -> bool:
    rerunner = Rerunner(session.store, backend_named(session.parsed.backend, session.pipeline))
    rerun = rerunner.rerun(step, record, milestones)
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
