"""gc: print what nothing leads to any more, with its size; with --yes delete it."""

import json
import shlex
import subprocess
import sys

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, SOMETHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError, listed
from marin_dag.keep.collect import Collector, Garbage, Roots
from marin_dag.ledger.pins import Pins
from marin_dag.plan.milestones import lost_in
from marin_dag.quantities import in_bytes
from marin_dag.record_key import digest_of, milestone_of
from marin_dag.values.changes import nearest

SECONDS_OF_A_DAY = 86_400.0


@command(
    "gc [--yes]",
    "delete what nothing leads to any more",
    "--set --yes --older-than-days --also --name --good-of --roots",
)
def gc(session: Session) -> int:
    own = _roots(session)
    if session.parsed.roots:
        print(json.dumps({name: sorted(found) for name, found in own._asdict().items()}))
        return NOTHING_WOULD_RUN
    others = [_roots_of(session, text) for text in session.parsed.also]
    roots = Roots(*(frozenset().union(*found) for found in zip(own, *others, strict=True)))
    roots = roots._replace(names=roots.names.union(session.parsed.name))
    named = _named(session, roots)
    seconds = session.parsed.older_than_days * SECONDS_OF_A_DAY
    collector = Collector(session.store, roots, older_than_seconds=seconds, good_of=frozenset(named.values()))
    found = collector.find()
    if missing := sorted(set(session.parsed.name) - collector.names_in_prefix):
        meant = nearest(missing[0], collector.names_in_prefix)
        raise UserError(f"--name {missing[0]}: no step of this name has files in {session.store.prefix}.{meant}")
    for name, digest in named.items():
        if not any(garbage.kind == "good" and garbage.digest == digest for garbage in found):
            raise UserError(
                f"--good-of {name}: no good checkpoint of it can be deleted: it has none, or it is unfinished. "
                "`gc` lists what there is; nothing was deleted."
            )
    for garbage in collector.kept_good:
        _print_line("kept", garbage, "a good checkpoint of a finished step; --good-of deletes it")
    if unknown := sorted(collector.names_in_prefix - roots.names):
        print(
            f"kept the files of steps that the given recipes do not name: {listed(unknown, 8)}. "
            "Give their recipe with --also, or the name of a dropped fork with --name."
        )
    if not found:
        print(f"no garbage that is older than {session.parsed.older_than_days:g} days")
        return NOTHING_WOULD_RUN
    for garbage in found:
        _print_line(garbage.kind, garbage, "")
    print(f"{len(found)} in all, {in_bytes(sum(garbage.size_in_bytes for garbage in found))}")
    if not session.parsed.yes:
        print(f"delete it  {session.line('gc', '--yes')}")
        return SOMETHING_WOULD_RUN
    reasons = collector.delete(found)
    left = [(garbage, reason) for garbage, reason in zip(found, reasons, strict=True) if reason]
    for garbage, reason in left:
        print(f"left {garbage.name}: {reason}")
    print(f"deleted {len(found) - len(left)}")
    return FAILED if left else NOTHING_WOULD_RUN


def _print_line(what: str, garbage: Garbage, note: str) -> None:
    print(f"{what:<12} {garbage.name:<48} {in_bytes(garbage.size_in_bytes):>10}  {note}".rstrip())


def _named(session: Session, roots: Roots) -> dict[str, str]:
    """Return the digest of each step of --good-of by name; raise UserError if it is pinned or a step starts there."""
    graph = session.graph()
    named = {name: graph.step(name).digest for name in session.parsed.good_of}
    for name, digest in named.items():
        started = [key for key in roots.wanted if digest_of(key) == digest]
        if started:
            raise UserError(
                f"--good-of {name}: a step starts from its step {milestone_of(started[0]):,}, which was saved "
                "but not published. Run or drop that step first."
            )
        for pin in Pins(session.store).all():
            if digest_of(pin.key) == digest:
                raise UserError(
                    f"--good-of {name}: it is pinned by {pin.author} ({pin.because or 'no reason given'}), and a "
                    f"pinned step keeps its good checkpoints. First: `pin {pin.name} --unpin`."
                )
    return named


def _roots(session: Session) -> Roots:
    graph = session.graph()
    lost = lost_in(graph, graph.steps, session.store, alone=True)
    saved = {(name, each.field) for name, found in lost.items() for each in found if each.is_saved}
    wanted = {item.key for name, field in saved for at, item in graph.step(name).inputs if at == field}
    return Roots(frozenset(step.key for step in graph.steps), frozenset(graph.names), frozenset(wanted))


def _roots_of(session: Session, text: str) -> Roots:
    """Return the roots of another pipeline, which prints them itself."""
    command = [sys.executable, *shlex.split(text), "gc", "--roots", "--prefix", session.parsed.prefix]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != NOTHING_WOULD_RUN:
        raise UserError(f"--also {text!r}: it failed, so nothing was deleted:\n{done.stderr}")
    printed = json.loads(done.stdout.splitlines()[-1])
    return Roots(**{name: frozenset(found) for name, found in printed.items()})
