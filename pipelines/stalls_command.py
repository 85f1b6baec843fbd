"""The command stalls, which shows how long each phase waited for data and why, and its page beside each report.

Times differ between equal runs, so no output contains them. The page lies in the folder that all attempts at a report
share. Links from each attempt find the page, also under another prefix, and nothing hashes or verifies it.
"""

import datetime
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Session
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.plan.plan import Plan
from marin_dag.store.store import Store
from pipelines.output import Shown, aligned, command
from pipelines.phases import attempt_events, phases_by_digest, shared_notes, wanted_phases
from runtime.tracking.stalls import (
    PAGE_FILE,
    SECONDS_HEADINGS,
    STALLS_HEADINGS,
    DataStalls,
    seconds_rows,
    stalls_rows,
    sum_stalls,
)
from steps.report_config import ReportConfig

ReadEvents = Callable[[str], list[list[dict[str, Any]]]]
"""Returns the events of each attempt at a digest."""


@command("stalls [PHASE...]", "how long each phase waited for data, and for what", page="draw the stalls")
def stalls(session: Session) -> Shown:
    found, notes = stalls_of(event_reader(session.store), wanted_phases(session, session.graph()))
    if not found:
        none = f"no phase has trained under {session.store.prefix} as the recipe is now, so there are no stalls to show"
        return Shown([none], NOTHING_WOULD_RUN if session.parsed.page is None else FAILED)

    def page() -> str:
        from runtime.report.pages import stalls_page  # needs NumPy, which the table does not

        return stalls_page(f"Data stalls of {session.pipeline}", found, notes)

    return Shown([*_rendered(found), *notes], page=page)


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


def write_stalls(session: Session, plan: Plan) -> Iterator[str]:
    """Write the page of each finished report; yield the alarms, the share of time spent waiting, and the pages.

    An existing page stays, unless this run trained one of its phases.
    """
    read, trained = event_reader(session.store), {planned.step.digest for planned in plan.will_run}
    for digest, sharing in phases_by_digest(plan.graph.steps).items():
        if digest in trained:
            yield from alarm_lines(sharing[0], read(digest))
    by_phase: dict[str, DataStalls] = {}
    pages = []
    for planned in plan.steps:
        config = planned.step.config
        if not isinstance(config, ReportConfig) or (path := _path_beside(session.store, planned.step)) is None:
            continue
        names = {item.name for item in config.phases.values()}
        phases = phases_by_digest(step for step in plan.graph.steps if step.name in names)
        is_new = planned.is_selected and not session.store.exists(path)
        if not is_new and not trained & phases.keys():
            continue
        found, notes = stalls_of(read, phases)
        if found:
            from runtime.report.pages import stalls_page  # too heavy for a plan, which imports this module

            now = datetime.datetime.now(datetime.UTC)
            written = (
                f"Written at the end of a run, on {now:%Y-%m-%d at %H:%M} UTC; a later run of these phases rewrites it"
            )
            text = stalls_page(f"{config.title}: data stalls", found, [*notes, written])
            session.store.write(path, text.encode())
            pages.append(session.store.url(path))
            by_phase |= {stalls.phase: stalls for stalls in found}
    if pages:
        waited = sum(each.waited_seconds for each in by_phase.values())
        seconds = sum(each.seconds for each in by_phase.values())
        share = waited / seconds if seconds else 0.0
        yield f"training spent {share:.2%} of its time waiting for data; by phase: {', '.join(pages)}"


def _path_beside(store: Store, report: Step) -> str | None:
    """Return the path of a report's page, relative to the prefix; None before the report is made."""
    record = Records(store).find(report.key)
    return None if record is None else f"{record.output_path.rpartition('/')[0]}/{PAGE_FILE}"
