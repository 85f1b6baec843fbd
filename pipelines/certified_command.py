"""certified: the states of each phase that good updates have followed, and how to go back to one."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from marin_dag.commands.session import NOTHING_WOULD_RUN, ONLY_LOOKS, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph import Graph
from marin_dag.step import Step
from marin_dag.store import Store
from pipelines.waits_command import names_of_trainings
from steps.train_phase import TrainPhaseConfig


class Certified(NamedTuple):
    """A certified checkpoint of one training."""

    phase: str
    step: int
    good_steps: int
    """Updates that had followed it when it was certified, all of them good."""
    consumed_tokens: int
    folder: str


def _certified(session: Session) -> int:
    graph = session.graph()
    trainings = names_of_trainings(graph.steps)
    if session.parsed.names:
        wanted = graph.step(session.step)
        if wanted.digest not in trainings:
            raise UserError(f"certified {wanted.name}: it trains nothing; name a phase.")
        trainings = {wanted.digest: trainings[wanted.digest]}
    of_one = bool(session.parsed.names)
    found = [
        each
        for digest, names in trainings.items()
        for each in certified_of(session.store, digest, names[0], only_newest=not of_one)
    ]
    if not found:
        about = session.parsed.names[0] if of_one else "these phases"
        print(f"nothing of {about} is certified: a checkpoint is once enough good updates have followed it")
        return NOTHING_WOULD_RUN
    width = max(len(each.phase) for each in found)
    for each in found:
        print(
            f"{each.phase:<{width}}  step {each.step:>11,}  {each.consumed_tokens:>22,} tokens  "
            f"then {each.good_steps} good updates"
        )
    if not of_one:
        print(f"to go back  {session.line('certified', 'PHASE')}")
        return NOTHING_WOULD_RUN
    each = found[0]
    if len(found) > 1:
        print("the newest first; these lines are of that, and of another with its step in place of this one:")
    print(f"lies in     {each.folder}")
    print(f"publish it  {session.line('--set', f'{each.phase}.until_step={each.step}', '--until', each.phase)}")
    forks = {fork.name for fork in session.forks.all()}
    followers = [step.name for step in _followers(graph, trainings) if step.name not in forks]
    # The last phase, begun again from a state of its own, is the same training unless a setting changes.
    changes = [] if followers else ["--set", "FIELD=VALUE"]
    for name in followers or [each.phase]:
        words = ["fork", name, "--as", _free_name(graph, f"{name}-again"), "--set", f"start={each.phase}@{each.step}"]
        print(f"go on from  {session.line(*words, *changes, '--reason', '...')}")
    return NOTHING_WOULD_RUN


def certified_of(store: Store, digest: str, name: str, *, only_newest: bool) -> list[Certified]:
    """Of one training, the newest first; a handful of requests for each, however many files a checkpoint is of."""
    import json

    from runtime.training import checkpoint  # not above: a plan imports this module and nothing heavy
    from runtime.training.temporary import CERTIFIED, TemporaryCheckpoints

    # Epoch 0 is nobody's: this only looks.
    every = TemporaryCheckpoints(store.url(f"work/{digest}/temporary"), lease_epoch=0).all()
    listed = []
    for found in [found for found in reversed(every) if found.is_certified][: 1 if only_newest else None]:
        mark = json.loads(store.read(f"work/{digest}/temporary/{found.folder.rpartition('/')[2]}/{CERTIFIED}"))
        metadata = checkpoint.read_metadata(f"{found.folder}/checkpoint")
        listed.append(Certified(name, found.step, mark["good_steps"], metadata["consumed_tokens"], found.folder))
    return listed


def _followers(graph: Graph, trainings: dict[str, list[str]]) -> Iterator[Step[Any]]:
    """The phases that start from one of these trainings and are another."""
    names = {name for listed in trainings.values() for name in listed}
    for step in graph.steps:
        if isinstance(step.config, TrainPhaseConfig) and step.digest not in trainings:
            start = step.config.start
            if start is not None and start.step.name in names:
                yield step


def _free_name(graph: Graph, name: str) -> str:
    """`name`, or with the first number behind it that makes it the name of no step."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(free for free in names if free not in graph)


COMMAND = Command(
    "certified",
    "[PHASE]",
    "the newest state of each phase that good updates followed; of one phase: all, and how to go back",
    _certified,
    0,
    1,
    options=("--set",),
    advice=ONLY_LOOKS,
)
