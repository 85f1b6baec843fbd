"""certified: the states of each phase that good updates have followed, and how to go back to one."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store
from pipelines.attempts import attempt_events, phases_by_digest
from pipelines.going_around import going_around
from steps.phase_config import TrainPhaseConfig

IN_DOUBT = "nothing is certified by an update in doubt (docs/training.md, Monitors)"


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
    trainings = phases_by_digest(graph.steps)
    wanted = [graph.step(name) for name in dict.fromkeys(session.parsed.names)]
    for step in wanted:
        if step.digest not in trainings:
            raise UserError(f"certified {step.name}: it trains nothing; name a phase.")
    if wanted:
        print("\n\n".join("\n".join(_of_one(session, graph, step, trainings[step.digest])) for step in wanted))
        return NOTHING_WOULD_RUN
    newest = (certified_of(session.store, digest, names[0], only_newest=True) for digest, names in trainings.items())
    found = [each for of_one in newest for each in of_one]
    if found:
        print("\n".join([*_listed(found), f"to go back  {session.line('certified', found[-1].phase)}"]))
    else:
        print("nothing of these phases is certified: a checkpoint is once enough good updates have followed it")
        if trainings:
            print(f"ask why     {session.line('certified', next(iter(trainings.values()))[0])}")
    return NOTHING_WOULD_RUN


def _of_one(session: Session, graph: Graph, phase: Step[TrainPhaseConfig], names: list[str]) -> Iterator[str]:
    """All of one phase, and how to go back to the newest; or why there is none. Then what was seen since."""
    store = session.store
    found = certified_of(store, phase.digest, names[0], only_newest=False)
    events = [event for attempt in attempt_events(store, phase.digest) for event in attempt]
    if found:
        yield from _ways_back(session, graph, phase, names, found)
    else:
        yield f"nothing of {phase.name} is certified: {why_none(events, phase)}"
    free_name = _free_name(graph, f"{phase.name}-around")
    certified = [each.step for each in found]
    yield from going_around(
        session, graph, phase, trained_as=names[0], certified=certified, events=events, free_name=free_name
    )


def _ways_back(
    session: Session, graph: Graph, phase: Step[TrainPhaseConfig], names: list[str], found: Sequence[Certified]
) -> Iterator[str]:
    store = session.store
    yield from _listed(found)
    each = found[0]
    if len(found) > 1:
        yield "the newest first; these lines are of that, and of another with its step in place of this one:"
    yield f"lies in     {each.folder}"
    record = Records(store).find(f"{phase.digest}@{each.step}")
    if record is None:
        yield f"publish it  {session.line('--set', f'{each.phase}.until_step={each.step}', '--until', each.phase)}"
    else:
        yield f"published   {store.url(record.output_path)}"
    forks = {fork.name for fork in session.forks.all()}
    followers = [step for step in _followers(graph, phase.digest, names) if step.name not in forks]
    # The last phase, begun again from a state of its own, is the same training unless a setting changes.
    changes = [] if followers else ["--set", "FIELD=VALUE"]
    for step in followers or [graph.step(each.phase)]:
        if step.config.until_step <= each.step:
            yield f"            {step.name} stops at step {step.config.until_step:,} now, which is no way on from here"
            continue
        again = step.fork(_free_name(graph, f"{step.name}-again"), start=graph.step(each.phase).at(step=each.step))
        words = ["fork", step.name, "--as", again.name, "--set", f"start={each.phase}@{each.step}"]
        reason = f"from step {each.step}, certified by {each.good_steps} good updates"
        yield f"go on from  {session.line(*words, *changes, '--reason', reason)}"
        for warning in session.options.lint(graph.with_targets([again])).get(again.name, ()):
            yield f"            {warning.text}; instead, with: {warning.options()}"


def _listed(found: Sequence[Certified]) -> Iterator[str]:
    width = max(len(each.phase) for each in found)
    for each in found:
        yield (
            f"{each.phase:<{width}}  step {each.step:>11,}  {each.consumed_tokens:>22,} tokens  "
            f"then {each.good_steps} good updates"
        )


def why_none(events: Sequence[Mapping[str, Any]], phase: Step[TrainPhaseConfig]) -> str:
    """Why no checkpoint of this training is certified, as its event logs tell."""
    from runtime.training.saving import CERTIFYING_STEPS  # not above: a plan imports this module and nothing heavy

    if not events:
        return "it has not trained under this prefix as the recipe stands now"
    if certified := _steps_of(events, "certified"):
        return (
            f"step {max(certified):,} was, the last of {len(certified):,}, and no such state lies under this prefix: "
            "`gc --certified` let it go, or this is a copy, to which `copy` at its source brings the newest"
        )
    saved = sorted(_steps_of(events, "checkpoint"))
    reached = max((event["step"] for event in events if "step" in event), default=phase.config.begin_step)
    if not saved:
        return (
            f"it is at step {reached:,} and has saved no state on its way, of which one is due every "
            f"{phase.config.checkpoint_every_steps:,} updates (checkpoint_every_steps)"
        )
    rule = f"{CERTIFYING_STEPS} good updates in a row certify a state"
    skipped, alarmed = (max(_steps_of(events, what), default=0) for what in ("skipped", "alarm"))
    if max(skipped, alarmed) > saved[0] and skipped >= alarmed:
        return f"{rule}, and updates behind its saves were skipped, the last at step {skipped:,}"
    if alarmed > saved[0]:
        return f"{rule}, and behind its saves a monitor alarmed, the last at step {alarmed:,}: {IN_DOUBT}"
    return f"{rule}, and behind its first save, at step {saved[0]:,}, it has made {reached - saved[0]:,}"


def _steps_of(events: Iterable[Mapping[str, Any]], what: str) -> set[int]:
    return {event["step"] for event in events if event["event"] == what}


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


def _followers(graph: Graph, digest: str, names: Collection[str]) -> Iterator[Step[Any]]:
    """The phases that start from this training, of these names, and are another."""
    for step in graph.steps:
        if isinstance(step.config, TrainPhaseConfig) and step.digest != digest:
            start = step.config.start
            if start is not None and start.step.name in names:
                yield step


def _free_name(graph: Graph, name: str) -> str:
    """`name`, or with the first number behind it that makes it the name of no step."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(free for free in names if free not in graph)


COMMAND = Command(
    "certified",
    "[PHASE ...]",
    "the newest state of each phase that good updates followed; of a phase: all, and how to go back",
    _certified,
    0,
    100,
    options=("--set",),
)
