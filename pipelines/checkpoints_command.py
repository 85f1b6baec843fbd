"""The `checkpoints` command: the checkpoints of phases below their work folders, and how to start from a good one."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store
from pipelines.attempts import attempt_events, phases_by_digest
from steps.phase_config import TrainPhaseConfig


class Checkpoint(NamedTuple):
    """A complete checkpoint of a phase, below its work folder."""

    phase: str
    step: int
    good_steps: int
    """Good steps after it when it was marked; 0 for one without a mark."""
    consumed_tokens: int
    folder: str


def checkpoints_of(store: Store, digest: str, name: str, *, only_good: bool, only_newest: bool) -> list[Checkpoint]:
    """Return the complete checkpoints of the phase with `digest`, the newest first, with a few requests for each."""
    from runtime.training import checkpoint  # not above: too heavy for a plan, which imports this module
    from runtime.training.temporary import GOOD_MARK, TemporaryCheckpoints

    # No attempt has epoch 0: this only reads.
    every = TemporaryCheckpoints(store.url(f"work/{digest}/temporary"), lease_epoch=0).all()
    wanted = [found for found in reversed(every) if (found.is_good if only_good else found.is_complete)]
    listed = []
    for found in wanted[: 1 if only_newest else None]:
        mark = f"work/{digest}/temporary/{found.folder.rpartition('/')[2]}/{GOOD_MARK}"
        good_steps = json.loads(store.read(mark))["good_steps"] if found.is_good else 0
        metadata = checkpoint.read_metadata(f"{found.folder}/checkpoint")
        listed.append(Checkpoint(name, found.step, good_steps, metadata["consumed_tokens"], found.folder))
    return listed


def free_name(graph: Graph, name: str) -> str:
    """Return `name`, or `name` with the first number that makes it the name of no step."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(free for free in names if free not in graph)


def publish_line(session: Session, digest: str, trained_as: str, step: int) -> Iterator[str]:
    """Return the command that publishes a checkpoint, unless it is published."""
    if Records(session.store).find(f"{digest}@{step}") is None:
        yield f"publish     {session.line('--set', f'{trained_as}.until_step={step}', '--until', trained_as)}"


def _checkpoints(session: Session) -> int:
    graph, only_good = session.graph(), session.parsed.good
    trainings = phases_by_digest(graph.steps)
    wanted = [graph.step(name) for name in dict.fromkeys(session.parsed.names)]
    for step in wanted:
        if step.digest not in trainings:
            raise UserError(f"checkpoints {step.name}: the step trains nothing; use the name of a phase.")
    if wanted:
        parts = (_all_of(session, graph, step, trainings[step.digest][0], only_good=only_good) for step in wanted)
        print("\n\n".join("\n".join(lines) for lines in parts))
        return NOTHING_WOULD_RUN
    found = [
        newest
        for digest, names in trainings.items()
        for newest in checkpoints_of(session.store, digest, names[0], only_good=only_good, only_newest=True)
    ]
    print("\n".join(_listed(found)) if found else f"no {'good ' if only_good else ''}checkpoints of these phases")
    return NOTHING_WOULD_RUN


def _all_of(
    session: Session, graph: Graph, phase: Step[TrainPhaseConfig], trained_as: str, *, only_good: bool
) -> Iterator[str]:
    """Return all checkpoints of a phase, and how to start from its newest good one, or why there is none."""
    found = checkpoints_of(session.store, phase.digest, trained_as, only_good=only_good, only_newest=False)
    if found:
        yield from _listed(found)
    good = [each for each in found if each.good_steps]
    if not good:
        events = [event for attempt in attempt_events(session.store, phase.digest) for event in attempt]
        yield f"no good checkpoint of {phase.name}: {why_none(events, phase)}"
        return
    newest = good[0]
    yield f"folder      {newest.folder}"
    yield from publish_line(session, phase.digest, trained_as, newest.step)
    again = free_name(graph, f"{phase.name}-again")
    words = ["fork", phase.name, "--as", again, "--set", f"start={trained_as}@{newest.step}", "--set", "FIELD=VALUE"]
    yield f"start here  {session.line(*words)}"


def _listed(found: Sequence[Checkpoint]) -> Iterator[str]:
    width = max(len(each.phase) for each in found)
    for each in found:
        state = f"good: {each.good_steps} good steps after it" if each.good_steps else "temporary"
        yield f"{each.phase:<{width}}  step {each.step:>11,}  {each.consumed_tokens:>22,} tokens  {state}"


def why_none(events: Sequence[Mapping[str, Any]], phase: Step[TrainPhaseConfig]) -> str:
    """Return why a phase has no good checkpoint, by its event logs."""
    from runtime.training.saving import GOOD_STEPS  # not above: too heavy for a plan

    if not events:
        return "it has not trained under this prefix with these settings"
    if good := _steps_of(events, "good_checkpoint"):
        return f"step {max(good):,} was the last of {len(good):,}, and `gc --good-of` deleted it, or this is a copy"
    saved = _steps_of(events, "checkpoint")
    reached = max((event["step"] for event in events if "step" in event), default=phase.config.begin_step)
    if not saved:
        every = phase.config.checkpoint_every_steps
        return f"it is at step {reached:,} and saves every {every:,} steps (checkpoint_every_steps)"
    rule = f"{GOOD_STEPS} consecutive good steps make a checkpoint good"
    doubted = {name: max(_steps_of(events, name), default=0) for name in ("skipped", "alarm")}
    name = max(doubted, key=doubted.__getitem__)
    if doubted[name] > min(saved):
        what = "step was skipped" if name == "skipped" else "monitor raised an alarm"
        return f"{rule}, and after its saves a {what}, last at step {doubted[name]:,}"
    return f"{rule}, and after its first save (step {min(saved):,}) it has taken {reached - min(saved):,}"


def _steps_of(events: Iterable[Mapping[str, Any]], name: str) -> set[int]:
    return {event["step"] for event in events if event["event"] == name}


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--good", action="store_true", help="only checkpoints with good steps after them")


COMMAND = Command(
    "checkpoints",
    "[PHASE ...] [--good]",
    "the newest checkpoint of each phase; with names, all of theirs, and how to start from a good one",
    _checkpoints,
    0,
    100,
    add_arguments=_add_arguments,
    options=("--set",),
)
