"""verify STEP|all: compare outputs with their records. To make a step again and compare, run it with --force."""

from collections.abc import Collection, Sequence

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.ledger.damage import EXTRA, Finding, findings_of, identity_finding
from marin_dag.ledger.records import Record, Records, UnreadableRecordError, record_path
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
                raise UserError(f"verify {step.name}: it is not committed. Run it first.")
        elif step.key not in seen:
            seen.add(step.key)
            # Milestones and parts may lie in the folder of the whole output.
            beginning = f"{step.digest}@"
            keys = dict.fromkeys([step.key, *sorted(key for key in committed if key.startswith(beginning))])
            found = {key: record for key in keys if (record := _readable(step.name, records, key)) is not None}
            knows_all = len(found) == len(keys)
            is_good &= knows_all
            if step.key in found:
                own = found[step.key]
                earlier = (f"{beginning}{at}" for at in earlier_milestones(step, committed))
                milestones = [found[key] for key in earlier if key in found]
                is_good &= _verify_output(session, own, milestones, found.values(), knows_all=knows_all)
    if not seen:
        print("nothing is committed yet")
    return NOTHING_WOULD_RUN if is_good else FAILED


def _readable(name: str, records: Records, key: str) -> Record | None:
    try:
        record = records.get(key)
    except UnreadableRecordError as error:  # go on with the other outputs
        print(f"{name}: {error}")
        return None
    if finding := identity_finding(record, key):
        path = record_path(key)
        print(f"{name}: the record {records.store.url(path)} {finding}; it was edited, or moved there.")
        print(f"Delete the file ({records.store.delete_command(path)}), and its step runs again.")
        return None
    return record


def _verify_output(
    session: Session, own: Record, milestones: Sequence[Record], others: Collection[Record], *, knows_all: bool
) -> bool:
    """Return whether an output and its milestones have the files of their records; print which differ.

    Args:
        session: the call.
        own: the record of the output.
        milestones: its earlier milestones.
        others: all records whose files may lie inside the output.
        knows_all: whether `others` is complete; otherwise extra files may belong to a missing record.
    """
    everything = [*milestones, own]
    damaged = {}
    for record in everything:
        findings = findings_of(session.store, record, others)
        if findings := [finding for finding in findings if knows_all or finding.what != EXTRA]:
            damaged[record.key] = findings
    whole = [record for record in everything if record.key not in damaged]
    if own in whole:
        files = [entry for record in whole for entry in record.manifest]
        beside = f" and {counted(len(whole) - 1, 'earlier milestone')}" if len(whole) > 1 else ""
        size = in_bytes(sum(entry.size_in_bytes for entry in files))
        print(f"{own.name}{beside}: {counted(len(files), 'file')}, {size}, all as recorded")
    for record in everything:
        if record.key in damaged:
            _print_findings(session, record, damaged[record.key], is_own=record is own)
    if any(finding.what != EXTRA for findings in damaged.values() for finding in findings):
        line = session.line("--force", own.name, "--until", own.name)
        print(f"to make them again, and replace the damaged ones:  {line}")
    return not damaged


def _print_findings(session: Session, record: Record, findings: Sequence[Finding], *, is_own: bool) -> None:
    at = "" if is_own else f" at {record.milestone:,}"
    folder = session.store.url(record.output_path)
    print(f"{record.name}{at}: {len(findings)} of its files differ from the record, in {folder}")
    for finding in findings[:MAX_FINDINGS]:
        print(f"  {finding.path} {finding.what}")
    if len(findings) > MAX_FINDINGS:
        print(f"  and {len(findings) - MAX_FINDINGS} more")
    if all(finding.what == EXTRA for finding in findings):
        print("no step reads them; remove or leave them")


COMMAND = Command("verify", "STEP|all", "compare outputs with their records", _verify, 1, 1_000, options=("--set",))
