"""The command stalls, which shows how long each phase waited for data and why."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from marin_dag.cli.session import Session
from marin_dag.store.store import Store
from pipelines.output import Shown, aligned, command
from pipelines.phases import attempt_events, shared_notes, wanted_phases
from runtime.tracking.stalls import (
    SECONDS_HEADINGS,
    STALLS_HEADINGS,
    DataStalls,
    seconds_rows,
    stalls_rows,
    sum_stalls,
)

ReadEvents = Callable[[str], list[list[dict[str, Any]]]]
"""Returns the events of each attempt at a digest."""


@command("stalls [PHASE...]", "how long each phase waited for data, and for what")
def stalls(session: Session) -> Shown:
    found, notes = stalls_of(event_reader(session.store), wanted_phases(session, session.graph()))
    if not found:
        none = f"no phase has trained under {session.store.prefix} as the recipe is now, so there are no stalls to show"
        return Shown([none])
    return Shown([*_rendered(found), *notes])


def event_reader(store: Store) -> ReadEvents:
    """Return a function that reads the event logs of a digest once."""
    return functools.cache(lambda digest: list(attempt_events(store, digest)))


def stalls_of(read: ReadEvents, phases: Mapping[str, Sequence[str]]) -> tuple[list[DataStalls], list[str]]:
    """Return the stalls of each digest that has an attempt, and notes: alarms, and phases that share their figures."""
    every = {digest: sum_stalls(names[0], read(digest)) for digest, names in phases.items()}
    found = {digest: stalls for digest, stalls in every.items() if stalls.num_attempts}
    alarms = [line for digest in found for line in alarm_lines(phases[digest][0], read(digest))]
    return list(found.values()), [*alarms, *shared_notes(phases[digest] for digest in found)]


class AlarmsOfStep(NamedTuple):
    """The alarms of one training step; an alarm that several attempts raised is one."""

    step: int
    monitors: tuple[str, ...]
    has_row: bool
    """Whether one row of the batch stood out."""
    has_recovered: bool
    text: str


def alarms_in(events: Sequence[Mapping[str, Any]]) -> Iterator[AlarmsOfStep]:
    """Yield the alarms of each training step with monitors, figures, the odd row, and whether the loss came back."""
    from runtime.training.monitors import CONFIRMED_STEPS  # needs NumPy

    recovered = {event["step"] for event in events if event["event"] == "recovered"}
    alarms: dict[int, dict[str, Mapping[str, Any]]] = {}
    for event in events:
        if event["event"] == "alarm":
            alarms.setdefault(event["step"], {})[event["monitor"]] = event
    for step, by_monitor in sorted(alarms.items()):
        parts = [
            f"{name} {float(each['figure']):.4g} (limit {float(each['limit']):.4g})"
            for name, each in by_monitor.items()
        ]
        rows = [event for event in by_monitor.values() if "row" in event]
        row = "".join(
            f"; row {event['row']} ({event['source']}) stood out with {float(event['row_loss']):.4g} nats a token, the "
            f"others with {float(event['median_row_loss']):.4g}"
            for event in rows[:1]
        )
        # A spike that raised no alarm itself may have come shortly before one that did.
        is_back = any(0 <= step - each <= CONFIRMED_STEPS for each in recovered)
        text = f"{', '.join(parts)}{row}{'; the loss came back' if is_back else ''}"
        yield AlarmsOfStep(step, tuple(by_monitor), bool(rows), is_back, text)


def alarm_lines(phase: str, attempts: Iterable[Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield a line for each training step of a phase with alarms."""
    for found in alarms_in([event for attempt in attempts for event in attempt]):
        shown = f"; `batch {phase}@{found.step}` shows its text" if found.has_row else ""
        yield f"alarm in {phase} at step {found.step:,}: {found.text}{shown}"


def _rendered(phases: Sequence[DataStalls]) -> list[str]:
    """Return the lines of a table, and below them those of the stalls by cause."""
    lines = aligned([_plain(SECONDS_HEADINGS), *seconds_rows(phases)], left=(0, 6))
    stalled = stalls_rows(phases)
    return [*lines, *(aligned([_plain(STALLS_HEADINGS), *stalled], left=(0, 1)) if stalled else [])]


def _plain(headings: Sequence[str]) -> list[str]:
    return [heading.removeprefix("#") for heading in headings]
