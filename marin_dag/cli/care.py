"""verify, adopt and pin: the care for the outputs of a prefix."""

from collections.abc import Collection

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError
from marin_dag.keep.adopt import AdoptedConfig, adopted
from marin_dag.keep.adopt import adopt as adopt_data
from marin_dag.ledger.damage import EXTRA, Finding, finding_lines, findings_of, identity_finding
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.records import Record, Records, UnreadableRecordError, record_path
from marin_dag.plan.milestones import earlier_milestones
from marin_dag.quantities import counted, in_bytes
from marin_dag.record_key import key_of, short_key
from marin_dag.store.store import Store

ALL = "all"


@command("verify STEP...|all", "compare outputs with their records", "--set")
def verify(session: Session) -> int:
    graph, records = session.graph(), Records(session.store)
    everything = session.parsed.names == [ALL]
    names = graph.names if everything else [n for text in session.parsed.names for n in graph.matching(text, "verify")]
    committed = records.committed_keys()
    is_good, seen = True, set()
    for step in (graph.step(name) for name in names):
        if step.key not in committed and not everything:
            raise UserError(f"verify {step.name}: it is not committed. Run it first.")
        if step.key not in committed or step.key in seen:
            continue
        seen.add(step.key)
        # Milestones and parts may lie in the folder of the whole output.
        keys = dict.fromkeys([step.key, *sorted(key for key in committed if key.startswith(f"{step.digest}@"))])
        found = {key: record for key in keys if (record := _readable(step.name, records, key)) is not None}
        knows_all = len(found) == len(keys)
        is_good &= knows_all
        if step.key in found:
            earlier = [found.get(key_of(step.digest, at)) for at in earlier_milestones(step, committed)]
            checked = [*(record for record in earlier if record is not None), found[step.key]]
            is_good &= _verify_output(session, checked, found.values(), knows_all=knows_all)
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


def _verify_output(session: Session, checked: list[Record], others: Collection[Record], *, knows_all: bool) -> bool:
    """Return whether an output, the last of `checked`, and its milestones have the files of their records.

    Files of `others` may lie inside the output; unless `knows_all`, extra files may belong to a missing record.
    """
    own = checked[-1]
    findings = {record.key: findings_of(session.store, record, others) for record in checked}
    damaged = {
        key: wrong for key, found in findings.items() if (wrong := [f for f in found if knows_all or f.what != EXTRA])
    }
    whole = [record for record in checked if record.key not in damaged]
    if own in whole:
        files = [entry for record in whole for entry in record.manifest]
        beside = f" and {counted(len(whole) - 1, 'earlier milestone')}" if len(whole) > 1 else ""
        size = in_bytes(sum(entry.size_in_bytes for entry in files))
        print(f"{own.name}{beside}: {counted(len(files), 'file')}, {size}, all as recorded")
    for record in checked:
        if record.key in damaged:
            _print_findings(session.store, record, damaged[record.key], is_own=record is own)
    if any(finding.what != EXTRA for found in damaged.values() for finding in found):
        line = session.line("--force", own.name, "--until", own.name)
        print(f"to make them again, and replace the damaged ones:  {line}")
    return not damaged


def _print_findings(store: Store, record: Record, findings: list[Finding], *, is_own: bool) -> None:
    at = "" if is_own else f" at {record.milestone:,}"
    print(f"{record.name}{at}: {len(findings)} of its files differ from the record, in {store.url(record.output_path)}")
    print(finding_lines(findings))
    if all(finding.what == EXTRA for finding in findings):
        print("no step reads them; remove or leave them")


@command("adopt PATH --as NAME", "commit data from elsewhere as an output", "--set --as")
def adopt(session: Session) -> int:
    path, name = session.step, session.parsed.as_
    if not name:
        raise UserError(f"adopt {path}: it needs a name: --as NAME.")
    graph, wanted = session.graph(), None
    if name in graph:
        config = graph.step(name).config
        if not isinstance(config, AdoptedConfig):
            raise UserError(
                f"adopt {path} --as {name}: {name!r} is a step of the recipe that is not adopted. Choose another name."
            )
        wanted = config.content
    adoption = adopt_data(session.store, path, name, wanted=wanted)
    record = adoption.record
    size = in_bytes(sum(entry.size_in_bytes for entry in record.manifest))
    how = "adopted" if adoption.is_new else f"adopted before, as {record.name}"
    print(f"{name}: {counted(len(record.manifest), 'file')}, {size}, {how}: {session.store.url(record.output_path)}")
    if wanted is None:
        print("in the recipe, with `from marin_dag.keep.adopt import AdoptedConfig, adopted`:")
        print(f'  {adopted.name}("{name}", AdoptedConfig(content="{adoption.content}"))')
    return NOTHING_WOULD_RUN


@command("pin [STEP] [--unpin]", "keep an output even when no pipeline names it", "--set --because --unpin")
def pin(session: Session) -> int:
    pins = Pins(session.store)
    if not session.parsed.names:
        for each in (every := pins.all()):
            because = f": {each.because}" if each.because else ""
            print(f"{each.name:<36} {short_key(each.key)}  by {each.author}, {each.created[:10]}{because}")
        if not every:
            print(f"nothing is pinned under {session.store.prefix}")
        return NOTHING_WOULD_RUN
    step = session.graph().step(session.step)
    if session.parsed.unpin:
        pins.unpin(step.key, step.name)
        print(f"{step.name}: no longer pinned")
        return NOTHING_WOULD_RUN
    if Records(session.store).find(step.key) is None:
        raise UserError(f"pin {step.name}: it is not committed. Run it first.")
    is_new = pins.pin(step.key, step.name, session.parsed.because)
    print(f"{step.name}: {'pinned' if is_new else 'was pinned already'}; `gc` keeps it")
    print(f"  take it back  {session.line('pin', step.name, '--unpin', without=['--because'])}")
    return NOTHING_WOULD_RUN
