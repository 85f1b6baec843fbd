"""tell STEP WORD: say a word to a step that runs, and wait for its answer. Without a word: what it was told before."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Held, Leases
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import PUBLISH, STOP, Telling, Tellings
from marin_dag.plan.lost_milestones import LostMilestones
from marin_dag.plan.milestone_reasons import OutsideTrajectory
from marin_dag.plan.reasons import render
from marin_dag.plan.remainder import LeftBehind
from marin_dag.store.store import Store
from marin_dag.values.changes import nearest

POLL_SECONDS = 1.0
GONE_SECONDS = 15.0
"""After an attempt that died, its run tries again a few seconds later."""


class Said(NamedTuple):
    """What was told, and to whom."""

    telling: Telling
    whom: str
    """For the person who told it."""
    is_awaited: bool
    """Whether somebody is at work who will answer."""


def _tell(session: Session) -> int:
    graph = session.graph()
    step = graph.step(session.step)
    if len(session.parsed.names) < 2:
        if session.parsed.at is not None or session.parsed.reason:
            raise UserError(f"tell {step.name}: say what to tell it: {_words(step)}.")
        _print_all(Tellings(session.store), step)
        return NOTHING_WOULD_RUN
    word, reason = session.parsed.names[1], session.parsed.reason
    said = tell_step(session.store, graph, step, word, at=session.parsed.at, reason=reason)
    print(f"{step.name}: {said.whom}")
    if not said.is_awaited:
        return NOTHING_WOULD_RUN
    print("waiting for its answer; Ctrl-C leaves, and it is told all the same", flush=True)
    return _wait(Leases(session.store), Tellings(session.store), step, said.telling)


def tell_step(store: Store, graph: Graph, step: Step[Any], word: str, *, at: int | None, reason: str) -> Said:
    """Leaves `word` for whoever is at work on `step`, or will come by milestone `at` of it.

    Raises:
        UserError: it does not hear that word, there is nobody to hear it, or the milestone is none to publish.
    """
    running = Leases(store).at_work()
    held = running.get(step.digest)
    _refuse(store, graph, step, word, at, running)
    telling = Tellings(store).tell(step.digest, step.name, word, milestone=at, reason=reason)
    if held is None and at is not None:
        whom = f"nobody is at work on it; whoever comes by step {at:,} is told to publish it"
        return Said(telling, whom, is_awaited=False)
    if held is None:
        hosts = ", ".join(sorted({f"{each.holder.host} (pid {each.holder.pid})" for each in running.values()}))
        return Said(telling, f"nobody is at work on it; what runs on {hosts} is told not to begin it", is_awaited=False)
    done = held.progress
    how_far = "" if done is None else f", at {done.done:,} of {done.total:,} {done.unit}"
    is_at = "it waits for its resources, its driver" if held.is_queued else "it is at work, its driver"
    what = word if at is None else f"{word} step {at:,}"
    whom = f"told to {what}; {is_at} on {held.holder.host} (pid {held.holder.pid}){how_far}"
    return Said(telling, whom, is_awaited=True)


def _refuse(
    store: Store, graph: Graph, step: Step[Any], word: str, at: int | None, running: Mapping[str, Held]
) -> None:
    known = words_of(step)
    if word not in known:
        raise UserError(f"tell {step.name} {word}: it hears {_words(step)}.{nearest(word, known)}")
    records, is_at_work = Records(store), step.digest in running
    if at is not None:
        said = f"tell {step.name} {word} --at {at}"
        if word != PUBLISH:
            raise UserError(f"{said}: only a step to publish is named; leave --at out.")
        if records.find(f"{step.digest}@{at}") is not None:
            raise UserError(f"{said}: step {at:,} is published already.")
        lost = LostMilestones(graph, records.committed_keys(), LeftBehind(store), Tellings(store))
        wrong = lost.of_milestone(step.at(step=at).as_input())
        if isinstance(wrong, OutsideTrajectory):
            raise UserError(f"{said}: its steps are {wrong.begin + 1:,} to {wrong.end:,}.")
        if wrong is not None and not is_at_work:
            raise UserError(f"{said}: {render(wrong)}.")
    if is_at_work:
        return
    done = records.find(step.key) is not None
    others = [each.holder for each in running.values() if each.holder.name == step.name]
    if others or (at is None and (done or word != STOP or not running)):
        why = "it is done" if done else "nobody is at work on it"
        hint = " `--at N` is for those to come, too." if word == PUBLISH and not done else ""
        if not done and not running:
            # Nothing of a run is seen before its first step holds a lease, and Ray takes seconds to start.
            hint += " If a run has just been started, repeat it in some seconds."
        for other in others:
            hint = (
                f" What runs on {other.host} (pid {other.pid}) under that name has another identity: give the options "
                "that its run was started with (--set, those of the pipeline), from the same code."
            )
        raise UserError(f"tell {step.name} {word}: {why}, so that there is nobody to tell.{hint}")


def _wait(leases: Leases, tellings: Tellings, step: Step[Any], telling: Telling) -> int:
    gone_since = None
    while True:
        is_at_work = step.digest in leases.at_work()
        answer = tellings.answer_of(telling)  # after that: it may be given with a last breath
        if answer is not None:
            print(f"{step.name}: {answer.said}")
            return FAILED if answer.is_refused else NOTHING_WOULD_RUN
        gone_since = None if is_at_work else gone_since or time.monotonic()
        if gone_since is not None and time.monotonic() - gone_since > GONE_SECONDS:
            print(
                f"{step.name}: it has ended without an answer; another try of the same run hears it, and no later run"
            )
            return FAILED
        time.sleep(POLL_SECONDS)


def _print_all(tellings: Tellings, step: Step[Any]) -> None:
    told = tellings.of(step.digest)
    answers = [tellings.answer_of(telling) for telling in told]
    for damaged in tellings.damaged.values():
        print(damaged)
    if not told:
        print(f"{step.name}: it was never told anything; it hears {_words(step)}")
    for telling, answer in zip(told, answers, strict=True):
        print(f"{telling.told}  {telling.said}")
        print(f"{' ' * len(telling.told)}  {'no answer' if answer is None else f'{answer.said} ({answer.answered})'}")


def words_of(step: Step[Any]) -> tuple[str, ...]:
    """What a step of its kind hears while it runs."""
    return (STOP, *step.kind.hears)


def _words(step: Step[Any]) -> str:
    *others, last = words_of(step)
    return _quoted([last]) if not others else f"{_quoted(others)} and {_quoted([last])}"


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(repr(word) for word in words)


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--at", type=int, metavar="N", help="(tell) the step of the trajectory to publish")


COMMAND = Command(
    "tell",
    "STEP [WORD] [--at N]",
    "say a word to a step that runs (stop; a phase: save, publish, profile), or list what it was told",
    _tell,
    1,
    2,
    _add_arguments,
    options=("--set", "--reason"),
)
