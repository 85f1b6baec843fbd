"""accept STEP and bump STEP: the two decisions about code that changed below a finished step."""

import inspect
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError
from marin_dag.graph.declared import Declared
from marin_dag.graph.step import Step
from marin_dag.identity.diff import CodeChanged
from marin_dag.ledger.acceptances import Acceptances, require_reason
from marin_dag.plan.planned import PlannedStep
from marin_dag.plan.reasons import Changed, Drifted, render_difference
from marin_dag.record_key import digest_of


@command(
    'accept STEP... --because "..." [--revoke]',
    "declare that changed code makes the same output",
    "--set --because --revoke",
)
def accept(session: Session) -> int:
    plan = session.plan()
    # Check all before the first is written.
    chosen = [plan[name] for pattern in session.parsed.names for name in plan.graph.matching(pattern, "accept")]
    text = f"accept {' '.join(session.parsed.names)}"
    require_reason(f"{text} --revoke" if session.parsed.revoke else text, session.parsed.because)
    acceptances = Acceptances(session.store)
    if session.parsed.revoke:
        return _revoke(acceptances, chosen, session.parsed.because)
    for planned, (digest, difference) in [(planned, _changed_code(planned)) for planned in chosen]:
        acceptances.accept(digest, planned.name, difference, session.parsed.because)
        print(f"{planned.name}: accepted, {render_difference(difference)}")
        print("  its record stays as it is; the step is done until the code changes again")
        line = session.line("accept", planned.name, "--revoke", "--because", "...", without=["--because"])
        print(f"  take it back  {line}")
    return NOTHING_WOULD_RUN


def _revoke(acceptances: Acceptances, chosen: list[PlannedStep], because: str) -> int:
    found = [(planned, acceptances.in_force(planned.step.digest)) for planned in chosen]
    for planned, in_force in found:
        if not in_force:
            raise UserError(f"accept {planned.name} --revoke: nothing is accepted for it. See `why {planned.name}`.")
    for planned, in_force in found:
        for acceptance in in_force:
            acceptances.revoke(acceptance, because)
            print(f"{planned.name}: no longer accepted (by {acceptance.author}, {acceptance.because})")
    return NOTHING_WOULD_RUN


def _changed_code(planned: PlannedStep) -> tuple[str, CodeChanged]:
    """Return the digest of the output that stays, and the code that changed since it was made."""
    for reason in planned.reasons:
        if isinstance(reason, Drifted):
            return planned.step.digest, reason.difference
    changes = [reason for reason in planned.reasons if isinstance(reason, Changed)]
    code = [change.difference for change in changes if change.is_here and isinstance(change.difference, CodeChanged)]
    if planned.compared is not None and planned.step.policy == "tracked" and len(code) == len(changes) == 1:
        return digest_of(planned.compared.key), code[0]
    others = ", ".join(str(change) for change in changes if change.difference not in code)
    why = f", and more changed than its code: {others}" if others else ""
    raise UserError(
        f"accept {planned.name}: it is {planned.verdict}{why}. Only a step whose own code changed can be "
        f"accepted; see `why {planned.name}`."
    )


@command("bump STEP", "where to raise the version of a versioned step, so that it is made again", "--set")
def bump(session: Session) -> int:
    step = session.graph().step(session.step)
    if step.policy != "versioned" or step.version is None:
        raise UserError(
            f"bump {step.name}: its policy is {step.policy}: its code is its identity, and an edit makes it again "
            "without a version."
        )
    version = next_version(step.version)
    where, edit = _edit(step, version)
    print(f"{step.name}: version {step.version!r} -> {version!r}")
    print(f"  {where}: {edit}")
    print(f"then see what would run:  {session.line('--dry-run')}")
    return NOTHING_WOULD_RUN


def next_version(version: str) -> str:
    """Return the version after this one: a count goes up, anything else gets one appended."""
    head, dot, last = version.rpartition(".")
    return f"{head}{dot}{int(last) + 1}" if last.isdigit() else f"{version}.1"


def _edit(step: Step[Any], version: str) -> tuple[Declared, str]:
    """Return the line and the smallest edit that raise the version of `step`."""
    instead = f'write "{version}" in place of version "{step.version}"'
    if step.version_declared is not None:
        return step.version_declared, instead
    if step.base is None:
        code = inspect.unwrap(step.kind.function).__code__
        return Declared(code.co_filename, code.co_firstlineno), instead
    if step.declared is None:
        raise UserError(f"{step.name}: a fork made on the command line; bump {step.base.name}, which it inherits.")
    added = f'append .with_version("{version}") to {step.name}, which inherits version "{step.version}"'
    return step.declared, f"{added} from {step.base.name}"
