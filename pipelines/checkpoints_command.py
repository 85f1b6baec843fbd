"""The `checkpoints` command: the checkpoints of phases below their work folders, and how to start from a good one."""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from marin_dag.cli.session import Session
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store
from pipelines.output import Shown, command, flag
from pipelines.phases import attempt_events, wanted_phases
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
    names = (f"{name}-{number}" if number > 1 else name for number in itertools.count(1))
    return next(free for free in names if free not in graph)


def publish_line(session: Session, digest: str, trained_as: str, step: int) -> Iterator[str]:
    """Yield the command that publishes a checkpoint, unless it is published."""
    if Records(session.store).find(f"{digest}@{step}") is None:
        yield f"publish     {session.line('--set', f'{trained_as}.until_step={step}', '--until', trained_as)}"


@command(
    "checkpoints [PHASE...] [--good]",
    "the newest checkpoint of each phase; with names, all of theirs, and how to start from a good one",
    "--set --json",
    own={"--good": flag("only checkpoints with good steps after them")},
)
def checkpoints(session: Session) -> Shown:
    graph, parsed = session.graph(), session.parsed
    phases = wanted_phases(session, graph)
    found = {
        digest: checkpoints_of(session.store, digest, names[0], only_good=parsed.good, only_newest=not parsed.names)
        for digest, names in phases.items()
    }
    every = [each for listed in found.values() for each in listed]
    if parsed.names:
        parts = (_all_of(session, graph, digest, phases[digest], listed) for digest, listed in found.items())
        lines = "\n\n".join("\n".join(part) for part in parts).splitlines()
    else:
        lines = [*_listed(every)] or [f"no {'good ' if parsed.good else ''}checkpoints of these phases"]
    return Shown(lines, document=lambda: [each._asdict() for each in every])


def _all_of(
    session: Session, graph: Graph, digest: str, names: Sequence[str], found: Sequence[Checkpoint]
) -> Iterator[str]:
    """Yield all checkpoints of a phase, and how to start from its newest good one, or why there is none."""
    trained_as = names[0]
    name = next(name for name in session.parsed.names if name in names)
    yield from _listed(found)
    newest = next((each for each in found if each.good_steps), None)
    if newest is None:
        yield f"no good checkpoint of {name}: {_why_none(session.store, graph.step(name))}"
        return
    yield f"folder      {newest.folder}"
    yield from publish_line(session, digest, trained_as, newest.step)
    again = free_name(graph, f"{name}-again")
    words = ["fork", name, "--as", again, "--set", f"start={trained_as}@{newest.step}", "--set", "FIELD=VALUE"]
    yield f"start here  {session.line(*words)}"


def _listed(found: Sequence[Checkpoint]) -> Iterator[str]:
    width = max((len(each.phase) for each in found), default=0)
    for each in found:
        state = f"good: {each.good_steps} good steps after it" if each.good_steps else "temporary"
        yield f"{each.phase:<{width}}  step {each.step:>11,}  {each.consumed_tokens:>22,} tokens  {state}"


def _why_none(store: Store, phase: Step[TrainPhaseConfig]) -> str:
    """Return why a phase has no good checkpoint, by its event logs."""
    from runtime.training.saving import GOOD_STEPS  # not above: too heavy for a plan

    events = [event for attempt in attempt_events(store, phase.digest) for event in attempt]
    if not events:
        return "it has not trained under this prefix with these settings"
    reached = max((event["step"] for event in events if "step" in event), default=phase.config.begin_step)
    last = {event["event"]: event["step"] for event in events if "step" in event}
    doubts = [f"last {word} at step {last[word]:,}" for word in ("skipped", "alarm") if word in last]
    rule = (
        f"it is at step {reached:,} and saves every {phase.config.checkpoint_every_steps:,} steps "
        f"(checkpoint_every_steps); {GOOD_STEPS} steps without a skipped step or an alarm after a save make a good one"
    )
    return "; ".join([rule, *doubts])
