"""Phases of a graph: their order and place in the run, the phases that share a digest, and the logs of attempts."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.step import Step
from marin_dag.store.store import Store
from marin_dag.values.changes import nearest
from steps.phase_config import TrainPhaseConfig
from steps.phase_timeline import RunPhase, place_phases


def phase_before(phase: Step) -> OutputRef[Step] | None:
    """Return the phase that this one starts from; None for a start from scratch or from imported weights."""
    start = phase.predecessor
    return start if start is not None and start.step.kind.continues is not None else None


def phases_in(steps: Iterable[Step]) -> dict[str, Step]:
    """Return the training phases among some steps, each after the phase that it starts from."""
    found: dict[str, Step] = {}

    def add(step: Step) -> None:
        if step.name in found:
            return
        if (start := phase_before(step)) is not None:
            add(start.step)
        found[step.name] = step

    for step in steps:
        if step.kind.continues is not None:
            add(step)
    return found


def parents_of(phases: Mapping[str, Step]) -> dict[str, str]:
    """Return the phase that each phase starts from, without phases that start from none."""
    starts = {name: phase_before(phase) for name, phase in phases.items()}
    return {name: start.step.name for name, start in starts.items() if start is not None}


def run_phases_in(phases: Mapping[str, Step]) -> dict[str, RunPhase]:
    """Return the position of each phase in its run."""
    starts = {name: (parent, phases[name].config.begin_step) for name, parent in parents_of(phases).items()}
    return place_phases({name: phase.config for name, phase in phases.items()}, starts)


def main_line_of(run_phases: Mapping[str, RunPhase], forks: Collection[str] = ()) -> list[str]:
    """Return the phases that lead to the phase with the most tokens: the run without branches and `forks`."""
    written = [name for name in run_phases if name not in forks]
    last: str | None = max(written or run_phases, key=lambda name: run_phases[name].end_tokens)
    line: list[str] = []
    while last is not None:
        line.append(last)
        last = run_phases[last].parent
    return line[::-1]


def main_line_first(run_phases: Mapping[str, RunPhase], forks: Collection[str] = ()) -> list[str]:
    """Return the names of all phases: the main line, then its branches."""
    main_line = main_line_of(run_phases, forks)
    return [*main_line, *(name for name in run_phases if name not in main_line)]


def twins_in(phases: Mapping[str, Step]) -> dict[str, str]:
    """Return each phase with the same output as an earlier phase, and the first phase with that output."""
    first: dict[str, str] = {}
    return {name: found for name, step in phases.items() if (found := first.setdefault(step.key, name)) != name}


def own_steps(phases: Mapping[str, Step], names: Iterable[str]) -> dict[str, int]:
    """Return the number of training steps of each phase; steps that phases share count for the first of these."""
    run_phases = run_phases_in(phases)
    reached: dict[str, int] = {}
    found: dict[str, int] = {}
    for run_phase in sorted((run_phases[name] for name in names), key=lambda run_phase: run_phase.begin_step):
        digest = phases[run_phase.name].digest
        begin = max(run_phase.begin_step, reached.get(digest, 0))
        reached[digest] = max(run_phase.settings.until_step, begin)
        found[run_phase.name] = reached[digest] - begin
    return found


def trained_tokens(phases: Mapping[str, Step], names: Iterable[str]) -> int:
    """Return the number of tokens that these phases train on; tokens of shared steps count once."""
    run_phases = run_phases_in(phases)
    return sum(steps * run_phases[name].tokens_per_step for name, steps in own_steps(phases, names).items())


def phases_by_digest(steps: Iterable[Step[Any]]) -> dict[str, list[str]]:
    """Return the phases of each digest, in the order of the plan; these differ only in `until_step`."""
    found: dict[str, list[str]] = {}
    for step in steps:
        if isinstance(step.config, TrainPhaseConfig):
            found.setdefault(step.digest, []).append(step.name)
    return found


def longest_of(sharing: Iterable[Step]) -> Step:
    """Return the phase that ends last among phases of one digest."""
    return max(sharing, key=lambda phase: phase.config.until_step)


def wanted_phases(session: Session, graph: Graph) -> dict[str, list[str]]:
    """Return the phases that the user named, or all phases, by digest.

    Raises:
        UserError: a name is no phase, or the recipe has none.
    """
    phases, named = phases_by_digest(graph.steps), session.parsed.names
    if not phases:
        raise UserError(f"the recipe {session.pipeline!r} has no training phase.")
    known = [name for names in phases.values() for name in names]
    for name in named:
        if name not in known:
            raise UserError(f"{name}: no phase has this name.{nearest(name, known)} `timeline` lists all phases.")
    return {digest: names for digest, names in phases.items() if not named or not set(named).isdisjoint(names)}


def fork_names(session: Session) -> frozenset[str]:
    """Return the names of all forks that were made on the command line."""
    return frozenset(fork.name for fork in session.forks.all())


def shared_notes(phases: Iterable[Sequence[str]]) -> list[str]:
    """Return a note for each digest with several phases: the phases share their figures."""
    return [
        f"{first}: its figures are also those of {', '.join(others)}, which differ from it at most in until_step"
        for first, *others in phases
        if others
    ]


def attempt_events(store: Store, digest: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the events of each attempt at one digest, from the log of its first host."""
    from runtime.tracking.events import is_of_first_host, read_events  # imported here: too heavy for a plan

    paths = sorted(entry.path for entry in store.list(f"work/{digest}/events") if is_of_first_host(entry.path))
    for path in paths:
        try:
            yield read_events(store.url(path))
        except ValueError as error:
            reason = f"is no log of events ({error}). Move the file away to go on without its speed, alarms and stalls."
            raise UserError(f"{store.url(path)} {reason}") from error
