"""Going around: what looked wrong since a phase was last certified, where to go back to, and the line that goes around.

The cure that public runs used most: restart about 100 updates before the spike and leave 200 to 500 batches out (PaLM,
arXiv:2204.02311, section 5.1). What is printed is a proposal for a person: which cause it is, no figure tells.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from marin_dag.cli.session import Session, program_words
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.quantities import counted, in_short
from steps.phase_config import TrainPhaseConfig

MARGIN_UPDATES = 100
"""Before the first of what was seen, since a gradient's norm moves before the loss; and behind the last."""
MOST_BATCHES = 500
"""That PaLM left out."""
SPIKE_MONITORS = ("grad_norm", "loss_spike", "persistent_loss", "no_recovery", "update_norm")
"""What the others find, other batches do not mend: a device, the machines, the beginning, a head that grows."""


class Sighting(NamedTuple):
    """Something that looked wrong in one update."""

    step: int
    what: str


def sightings(events: Iterable[Mapping[str, Any]]) -> list[Sighting]:
    """Of all attempts at one training, in order; what several attempts met, since they made the same update, once."""
    found = set()
    for event in events:
        match event["event"]:
            case "alarm" if event.get("monitor") in SPIKE_MONITORS:
                found.add(Sighting(event["step"], event["monitor"]))
            case "skipped":
                found.add(Sighting(event["step"], "an update left out by the skip rule"))
            case "error" if "step" in event:
                found.add(Sighting(event["step"], "an update that could not stand"))
    return sorted(found)


def going_around(
    session: Session,
    graph: Graph,
    phase: Step[TrainPhaseConfig],
    *,
    trained_as: str,
    certified: Sequence[int],
    events: Sequence[Mapping[str, Any]],
    free_name: str,
) -> Iterator[str]:
    """What was seen since the newest of the `certified` steps of a training, and how to go around it; or nothing.

    Args:
        trained_as: the name under which a plan trains it.
        free_name: what the fork may be called.
    """
    seen = [each for each in sightings(events) if each.step > max(certified, default=0)]
    if not seen:
        return
    first, last = seen[0], seen[-1]
    reached = max(event["step"] for event in events if "step" in event)
    others = [f"{counted(len(seen), 'finding')}, the last at step {last.step:,} ({last.what})"] if seen[1:] else []
    since = [f"then {counted(reached - last.step, 'update')} without one"] if reached > last.step else []
    yield "; ".join([f"since then  {first.what} at step {first.step:,}", *others, *since])
    if phase.config.replay is not None:
        yield "            it replays the log of another phase, so that no batch can be left out"
        return
    latest = first.step - MARGIN_UPDATES
    root = phase
    while (start := root.predecessor) is not None and start.digest == phase.digest:
        root = start.step
    near = [step for step in certified if step <= latest]
    if near:
        way = _from_its_own(graph, phase, trained_as, max(near))
    elif root.predecessor is not None and 0 < root.config.begin_step <= latest:
        way = _from_its_start(root)
    else:
        yield f"            none of its states is {MARGIN_UPDATES} updates older than the first"
        if root.predecessor is not None and root.config.begin_step:
            yield f"look at     {session.line('certified', root.predecessor.step.name)}"
        return
    if way.phase.config.until_step <= way.begin_step:
        stop = way.phase.config.until_step
        yield f"            {way.phase.name} stops at step {stop:,} now, which is no way on from {way.begin_step:,}"
        return
    yield from _lines(session, graph, way, first, last, free_name)


class _Way(NamedTuple):
    """A fork that goes on from an earlier state."""

    phase: Step[TrainPhaseConfig]
    begin_step: int
    typed: Mapping[str, str]
    """What a person sets for it, beside the batches."""
    changes: Mapping[str, Any]
    """The same as values."""
    skip_batches: int = 0
    """What the phase leaves out there already."""
    acknowledge: tuple[str, ...] = ("skip_batches",)
    must_be_published: str = ""
    """The name under which the state is trained, where it is saved and perhaps not published."""


def _from_its_own(graph: Graph, phase: Step[TrainPhaseConfig], trained_as: str, step: int) -> _Way:
    """From a certified state of the training itself."""
    typed = {"start": f"{trained_as}@{step}"}
    if phase.config.restore != "everything":
        typed["restore"] = "everything"  # what it did at its own beginning
    changes = {"start": graph.step(trained_as).at(step=step), "restore": "everything"}
    return _Way(phase, step, typed, changes, must_be_published=trained_as)


def _from_its_start(root: Step[TrainPhaseConfig]) -> _Way:
    """From where the training itself started, which its own first updates vouch for."""
    config = root.config
    jumps = dict.fromkeys((*config.acknowledge, "skip_batches"))
    return _Way(root, config.begin_step, {}, {}, config.skip_batches, tuple(jumps))


def _lines(session: Session, graph: Graph, way: _Way, first: Sighting, last: Sighting, free_name: str) -> Iterator[str]:
    phase, begin, config = way.phase, way.begin_step, way.phase.config
    num_steps = last.step + MARGIN_UPDATES - begin
    num_batches = num_steps + way.skip_batches
    name = way.must_be_published
    if name and Records(session.store).find(f"{phase.digest}@{begin}") is None:
        yield f"publish it  {session.line('--set', f'{name}.until_step={begin}', '--until', name)}"
    again = phase.fork(free_name, **way.changes, skip_batches=num_batches, acknowledge=way.acknowledge)
    settings = {**way.typed, "skip_batches": str(num_batches), "acknowledge": json.dumps(way.acknowledge)}
    words = [word for field, text in settings.items() for word in ("--set", f"{field}={text}")]
    words += ["--reason", f"around {first.what} at step {first.step}"]
    yield f"go around   {session.line('fork', phase.name, '--as', again.name, *words)}"
    tokens = in_short(num_batches * config.global_batch_size * config.sequence_length)
    yield (
        f"            from step {begin:,}, with {num_batches:,} batches left out, {tokens} tokens: up to "
        f"{MARGIN_UPDATES} updates behind the last"
    )
    if num_steps > MOST_BATCHES:
        yield f"            PaLM left out 200 to {MOST_BATCHES}; there is no nearer state to go on from"
    moved = [segment.start_step for segment in config.mixture.segments if begin < segment.start_step <= last.step]
    if moved:
        yield f"            they are of the mixture at step {begin:,}, and not of the one from {moved[0]:,} on"
    for warning in session.options.lint(graph.with_targets([again])).get(again.name, ()):
        if "skip_batches" not in warning.cure:
            yield f"            {warning.text}; instead, with: {warning.options()}"
    yield "            It mends no machine and no bad state (docs/checkpoints-and-resume.md, Going around). A machine's"
    yield "            updates come out otherwise when they are made again:"
    yield f"repeat it   {session.line('--force', phase.name, '--until', phase.name)}"
    yield f"compare     {shlex.join([program_words()[0], '-m', 'runtime.training.replay', session.store.prefix])}"
