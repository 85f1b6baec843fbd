"""The `rollback` command: prints the fork that starts before a spike and skips the batches that led to it.

PaLM (arXiv:2204.02311, section 5.1) restarted about 100 steps before each spike and skipped 200 to 500 batches. The
command only proposes: no figure shows the cause of a spike.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from marin_dag.cli.session import Session, program_words
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.quantities import counted, in_short
from pipelines.checkpoints_command import checkpoints_of, free_name, publish_line
from pipelines.output import Shown, command
from pipelines.phases import attempt_events, wanted_phases
from steps.phase_config import TrainPhaseConfig

MARGIN_STEPS = 100
"""Steps to skip before the first finding, since a gradient norm moves before the loss, and after the last."""
MOST_BATCHES = 500
"""The most that PaLM skipped."""
SPIKE_MONITORS = ("grad_norm", "loss_spike", "persistent_loss", "no_recovery", "update_norm")
"""Monitors whose alarms other batches may avoid; the others find devices, machines, initialization, a growing head."""


class LoggedFinding(NamedTuple):
    """Something wrong in one training step."""

    step: int
    what: str


def findings_in(events: Iterable[Mapping[str, Any]]) -> list[LoggedFinding]:
    """Return the findings of all attempts at a phase in order; equal findings of several attempts count once."""
    found = set()
    for event in events:
        match event["event"]:
            case "alarm" if event.get("monitor") in SPIKE_MONITORS:
                found.add(LoggedFinding(event["step"], event["monitor"]))
            case "skipped":
                found.add(LoggedFinding(event["step"], "skipped step"))
            case "error" if "step" in event:
                found.add(LoggedFinding(event["step"], "failed step"))
    return sorted(found)


@command("rollback PHASE", "print the fork that starts before the last spike of a phase and skips its batches")
def rollback(session: Session) -> Shown:
    graph = session.graph()
    ((_, names),) = wanted_phases(session, graph).items()
    return Shown(_lines(session, graph, graph.step(session.step), names[0]))


def _lines(session: Session, graph: Graph, phase: Step[TrainPhaseConfig], trained_as: str) -> Iterator[str]:
    events = [event for attempt in attempt_events(session.store, phase.digest) for event in attempt]
    checkpoints = checkpoints_of(session.store, phase.digest, trained_as, only_good=True, only_newest=False)
    good = [each.step for each in checkpoints]
    findings = [found for found in findings_in(events) if found.step > max(good, default=0)]
    if not findings:
        since = f"its newest good checkpoint (step {max(good):,})" if good else "it began"
        yield f"{phase.name}: no alarm, skipped step or failed step since {since}"
        return
    first, last = findings[0], findings[-1]
    more = f"; {counted(len(findings), 'finding')}, last {last.what} at step {last.step:,}" if findings[1:] else ""
    yield f"found       {first.what} at step {first.step:,}{more}"
    latest = first.step - MARGIN_STEPS
    acknowledge: tuple[str, ...] = ("skip_batches",)
    if near := [step for step in good if step <= latest]:
        begin, skipped, settings = max(near), 0, {"start": f"{trained_as}@{max(near)}"}
        if phase.config.restore != "everything":
            settings["restore"] = "everything"  # the value acted at the start of the phase itself
        yield from publish_line(session, phase.digest, trained_as, begin)
    else:
        while (start := phase.predecessor) is not None and start.digest == phase.digest:
            phase = start.step
        begin, skipped, settings = phase.config.begin_step, phase.config.skip_batches, {}
        acknowledge = tuple(dict.fromkeys((*phase.config.acknowledge, *acknowledge)))
        if start is None or not 0 < begin <= latest:
            yield f"            no state of {phase.name} is {MARGIN_STEPS} steps older"
            if start is not None:
                yield f"try         {session.line('rollback', start.step.name)}"
            return
    if phase.config.until_step <= begin:
        yield f"            {phase.name} stops at step {phase.config.until_step:,}, before step {begin:,}"
        return
    num_batches = last.step + MARGIN_STEPS - begin + skipped
    settings |= {"skip_batches": str(num_batches), "acknowledge": json.dumps(acknowledge)}
    words = ["fork", phase.name, "--as", free_name(graph, f"{phase.name}-rollback")]
    words += [word for field, text in settings.items() for word in ("--set", f"{field}={text}")]
    words += ["--reason", f"roll back from {first.what} at step {first.step}"]
    yield f"roll back   {session.line(*words)}"
    yield from _notes(phase.config, begin, num_batches, last.step)
    yield f"repeat      {session.line('--force', phase.name, '--until', phase.name)}"
    yield f"compare     {shlex.join([program_words()[0], '-m', 'runtime.training.replay', session.store.prefix])}"


def _notes(config: TrainPhaseConfig, begin: int, num_batches: int, last_step: int) -> Iterator[str]:
    tokens = in_short(num_batches * config.global_batch_size * config.sequence_length)
    yield f"            from step {begin:,}, skipping {num_batches:,} batches ({tokens} tokens)"
    if last_step + MARGIN_STEPS - begin > MOST_BATCHES:
        yield f"            PaLM skipped 200 to {MOST_BATCHES} batches; no good checkpoint is nearer"
    moved = [segment.start_step for segment in config.mixture.segments if begin < segment.start_step <= last_step]
    if moved:
        yield f"            the skipped batches have the mixture of step {begin:,}, not that from {moved[0]:,} on"
    yield "            A rollback helps against bad batches, not against a bad machine: if the same steps give other"
    yield "            figures when they are repeated, it is the machine."
