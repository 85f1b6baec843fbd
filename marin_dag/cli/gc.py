"""gc: what nothing leads to any more, with its size; --yes deletes it."""

import argparse
import json
import math
import shlex
import subprocess
import sys
from typing import Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, SOMETHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.keep.collect import Collector, Garbage, Roots
from marin_dag.ledger.pins import Pins
from marin_dag.plan.lost_milestones import lost_in
from marin_dag.quantities import in_bytes

OLDER_THAN_DAYS = 7.0
SECONDS_OF_A_DAY = 86_400.0


def _gc(session: Session) -> int:
    own = _roots(session)
    if session.parsed.roots:
        print(json.dumps({name: sorted(found) for name, found in own._asdict().items()}))
        return NOTHING_WOULD_RUN
    others = [_roots_of(session, text) for text in session.parsed.also]
    roots = Roots(*(frozenset().union(*found) for found in zip(own, *others, strict=True)))
    seconds = session.parsed.older_than_days * SECONDS_OF_A_DAY
    named = _named(session, roots)
    certified_of = frozenset(named.values())
    collector = Collector(session.store, roots, older_than_seconds=seconds, certified_of=certified_of)
    found = collector.find()
    for name, digest in named.items():
        if not any(garbage.kind == "certified" and garbage.digest == digest for garbage in found):
            raise UserError(
                f"--certified {name}: there is nothing certified of it that can go: it has left nothing, or it is "
                "running, or is still to be finished. `gc` lists what there is; nothing was deleted."
            )
    for garbage in collector.staying:
        print(f"{'stays':<12} {garbage.name:<48} {in_bytes(garbage.size_in_bytes):>10}  certified, to go back to")
    if not found:
        print(f"nothing to collect that is older than {session.parsed.older_than_days:g} days")
        return NOTHING_WOULD_RUN
    for garbage in found:
        print(f"{garbage.kind:<12} {garbage.name:<48} {in_bytes(garbage.size_in_bytes):>10}{_dependents(garbage)}")
    total = sum(garbage.size_in_bytes for garbage in found)
    print(f"{len(found)} in all, {in_bytes(total)}")
    if not session.parsed.yes:
        print(f"delete it  {session.line('gc', '--yes')}")
        return SOMETHING_WOULD_RUN
    said = collector.delete(found)
    left = [(garbage, why) for garbage, why in zip(found, said, strict=True) if why]
    for garbage, why in left:
        print(f"left {garbage.name}: {why}")
    print(f"deleted {len(found) - len(left)}")
    return FAILED if left else NOTHING_WOULD_RUN


def _named(session: Session, roots: Roots) -> dict[str, str]:
    """Digest of each step of --certified, by its name; refused is what is pinned, or what others are to start from."""
    graph, pins = session.graph(), Pins(session.store).all()
    named = {name: graph.step(name).digest for name in session.parsed.certified}
    for name, digest in named.items():
        for key in roots.wanted:
            if key.partition("@")[0] == digest:
                readers = [step.name for step in graph.steps if any(item.key == key for _, item in step.inputs)]
                who = ", ".join(readers) or "a step of another pipeline"
                raise UserError(
                    f"--certified {name}: {who} is to start from step "
                    f"{int(key.partition('@')[2]):,} of it, which was saved and not published; publish that, or "
                    "drop the fork."
                )
        for pin in pins:
            if pin.key.partition("@")[0] == digest:
                raise UserError(
                    f"--certified {name}: it is pinned by {pin.author} ({pin.because or 'no reason given'}), and a "
                    f"pinned step keeps what it has certified; `pin {pin.name} --unpin` first."
                )
    return named


def _roots(session: Session) -> Roots:
    graph = session.graph()
    lost = lost_in(graph, graph.steps, session.store, alone=True)
    saved = {(name, each.field) for name, found in lost.items() for each in found if each.is_saved}
    wanted = {item.key for name, field in saved for at, item in graph.step(name).inputs if at == field}
    return Roots(frozenset(step.key for step in graph.steps), frozenset(graph.names), frozenset(wanted))


def _roots_of(session: Session, text: str) -> Roots:
    """What another pipeline leads to, as it says itself."""
    command = [sys.executable, *shlex.split(text), "gc", "--roots", "--prefix", session.parsed.prefix]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != NOTHING_WOULD_RUN:
        raise UserError(f"--also {text!r}: it does not say what it leads to, so that nothing can go:\n{done.stderr}")
    said = json.loads(done.stdout.splitlines()[-1])
    return Roots(**{name: frozenset(found) for name, found in said.items()})


def _dependents(garbage: Garbage) -> str:
    return f"  {', '.join(garbage.needed_by)} were made from it" if garbage.needed_by else ""


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 <= days < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days; write one of 0 or more")
    return days


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--yes", action="store_true", help="(gc) delete it")
    parser.add_argument(
        "--older-than-days", type=_days, default=OLDER_THAN_DAYS, metavar="DAYS", help="(gc) what is younger stays"
    )
    parser.add_argument(
        "--also", action="append", default=[], metavar="SCRIPT", help="(gc) keep what this pipeline leads to, too"
    )
    parser.add_argument(
        "--certified",
        action="append",
        default=[],
        metavar="STEP",
        help="(gc) of this finished step also what it has certified, to go back to",
    )
    parser.add_argument("--roots", action="store_true", help="(gc) print what this pipeline leads to, for --also")


COMMAND = Command(
    "gc",
    "[--yes]",
    "what nothing leads to any more, and its deletion",
    _gc,
    0,
    0,
    _add_arguments,
    options=("--set",),
)
