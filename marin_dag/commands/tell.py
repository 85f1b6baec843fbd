"""tell STEP WORD: say a word to a step that runs, and wait for its answer. Without a word: what it was told before."""

import time
from collections.abc import Iterable
from typing import Any

from marin_dag.changes import nearest
from marin_dag.commands.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.lease import Held, Leases
from marin_dag.lost_milestones import begin_of
from marin_dag.records import Records
from marin_dag.step import Step
from marin_dag.told import PUBLISH, STOP, Telling, Tellings

POLL_SECONDS = 1.0


def _tell(session: Session) -> int:
    step = session.graph().step(session.step)
    tellings = Tellings(session.store)
    if len(session.parsed.names) < 2:
        if session.parsed.at is not None or session.parsed.reason:
            raise UserError(f"tell {step.name}: say what to tell it: {_words(step)}.")
        _print_all(tellings, step)
        return NOTHING_WOULD_RUN
    word, at = session.parsed.names[1], session.parsed.at
    held = Leases(session.store).running().get(step.digest)
    _refuse(session, step, word, at, held)
    telling = tellings.tell(step.digest, step.name, word, milestone=at, reason=session.parsed.reason)
    what = word if at is None else f"{word} step {at:,}"
    if held is None:
        print(f"{step.name}: nobody is at work on it; whoever comes by step {at:,} is told to publish it")
        return NOTHING_WOULD_RUN
    how_far = (
        "" if held.progress is None else f", at {held.progress.done:,} of {held.progress.total:,} {held.progress.unit}"
    )
    waits = " and waits for its resources" if held.is_queued else ""
    print(f"{step.name}: told to {what}; it runs on {held.holder.host} (pid {held.holder.pid}){waits}{how_far}")
    print("waiting for its answer; Ctrl-C leaves, and it is told all the same", flush=True)
    return _wait(session, tellings, step, telling)


def _refuse(session: Session, step: Step[Any], word: str, at: int | None, held: Held | None) -> None:
    known = _words_of(step)
    if word not in known:
        raise UserError(f"tell {step.name} {word}: it hears {_words(step)}.{nearest(word, known)}")
    if at is not None and word != PUBLISH:
        raise UserError(f"tell {step.name} {word} --at {at}: only a step to publish is named; leave --at out.")
    if at is not None and Records(session.store).find(f"{step.digest}@{at}") is not None:
        raise UserError(f"tell {step.name} {word} --at {at}: step {at:,} is published already.")
    if at is not None and at <= (begin := begin_of(step)):
        raise UserError(f"tell {step.name} {word} --at {at}: it begins at {begin:,}.")
    if at is not None and step.until is not None and at > step.until:
        stop = f"{step.name}.{step.kind.stop_field}"
        raise UserError(
            f"tell {step.name} {word} --at {at}: it stops at {step.until:,}; let it go on: `--set {stop}={at}`."
        )
    if held is None and not (word == PUBLISH and at is not None):
        done = Records(session.store).find(step.key) is not None
        said = "it is done" if done else "nobody is at work on it"
        raise UserError(f"tell {step.name} {word}: {said}, so that there is nobody to tell.")


def _wait(session: Session, tellings: Tellings, step: Step[Any], telling: Telling) -> int:
    while True:
        answer = tellings.answer_of(telling)
        if answer is not None:
            print(f"{step.name}: {answer.said}")
            return NOTHING_WOULD_RUN
        if step.digest not in Leases(session.store).running():
            answer = tellings.answer_of(telling)  # given with its last breath
            print(f"{step.name}: {'it has ended without an answer' if answer is None else answer.said}")
            return FAILED if answer is None else NOTHING_WOULD_RUN
        time.sleep(POLL_SECONDS)


def _print_all(tellings: Tellings, step: Step[Any]) -> None:
    told = tellings.of(step.digest)
    if not told:
        print(f"{step.name}: it was never told anything; it hears {_words(step)}")
    for telling in told:
        answer = tellings.answer_of(telling)
        print(f"{telling.told}  {telling.said}")
        print(f"{' ' * len(telling.told)}  {'no answer' if answer is None else f'{answer.said} ({answer.answered})'}")


def _words_of(step: Step[Any]) -> tuple[str, ...]:
    return (STOP, *step.kind.hears)


def _words(step: Step[Any]) -> str:
    *others, last = _words_of(step)
    return _quoted([last]) if not others else f"{_quoted(others)} and {_quoted([last])}"


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(repr(word) for word in words)


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--at", type=int, metavar="N", help="(tell) the step of the trajectory to publish")


COMMAND = Command(
    "tell",
    "STEP [WORD] [--at N]",
    "stop a step that runs, have it save or publish; or list what it was told",
    _tell,
    1,
    2,
    _add_arguments,
    options=("--set", "--reason"),
    advice={"--dry-run": "without a word it only looks, and with one it is there to be heard; leave --dry-run out"},
)
