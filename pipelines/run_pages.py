"""Run pages: each report, extended by what differs between equal runs.

These are speed, data stalls, alarms of machines and scores at milestones; no output contains them. The page lies in the
folder that all attempts at a report share. Each attempt links to it by a relative path, and nothing hashes or verifies
it.
"""

import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from marin_dag.cli.session import SELECTION, Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Record, Records
from marin_dag.plan.plan import Plan
from marin_dag.store.store import Store
from pipelines.phases import phases_by_digest
from pipelines.scores_command import read_points
from pipelines.stalls_command import alarm_lines, event_reader, stalls_of
from runtime.tracking.stalls import DataStalls
from steps.report_config import ReportConfig


def write_run_pages(session: Session, plan: Plan) -> Iterator[str]:
    """Write the page of each finished report; yield alarms, the share of time in data stalls, and the pages.

    An existing page stays, unless this run made something that it shows. A page that cannot be written takes away
    none of the others: its line has the report's own address, and the reason.
    """
    from runtime.report.page import RUN_PAGE  # needs Bokeh, which a plan does not
    from runtime.training.checkpoint_reader import CheckpointError

    unreadable = (CheckpointError, UserError, ValueError, OSError)
    store, graph, made = session.store, plan.graph, {planned.step.digest for planned in plan.will_run}
    read = event_reader(store)
    for digest, sharing in phases_by_digest(graph.steps).items():
        if digest in made:
            try:
                yield from alarm_lines(sharing[0], read(digest))
            except unreadable as error:
                yield f"{sharing[0]}: its alarms cannot be read: {error}"
    milestones = {step.digest for step in graph.steps if step.background is not None}
    by_phase: dict[str, DataStalls] = {}
    pages = []
    for planned in plan.steps:
        step = planned.step
        record = Records(store).find(step.key) if isinstance(step.config, ReportConfig) else None
        if record is None:
            continue
        path = run_page_path(record)
        names = {item.name for item in step.config.phases.values()}
        phases = phases_by_digest(each for each in graph.steps if each.name in names)
        shown = {step.digest} | phases.keys() | milestones
        try:
            if made & shown or (planned.is_selected and not store.exists(path)):
                found, notes = stalls_of(read, phases)
                parts = _scores(store, graph, names), _curves(session, graph, step.config, phases), found, notes
                store.write(path, _page(session, step.name, record, parts).encode())
                by_phase |= {stalls.phase: stalls for stalls in found}
            elif not planned.is_selected:
                continue
            pages.append(f"{step.name}: {store.url(path)}")
        except unreadable as error:
            report = store.url(f"{record.output_path}/{record.result['page']}")
            pages.append(f"{step.name}: {report}; {RUN_PAGE} is not written, because {error}")
    if by_phase:
        waited = sum(each.waited_seconds for each in by_phase.values())
        seconds = sum(each.seconds for each in by_phase.values())
        yield f"training spent {waited / seconds if seconds else 0.0:.2%} of its time waiting for data"
    yield from pages


def run_page_path(report: Record) -> str:
    """Return the path of a report's run page, relative to the prefix."""
    from runtime.report.page import RUN_PAGE

    return f"{report.output_path.rpartition('/')[0]}/{RUN_PAGE}"


def _page(session: Session, name: str, report: Record, parts: Sequence[Any]) -> str:
    from runtime.report.html import macro
    from runtime.report.page import with_run

    now = datetime.datetime.now(datetime.UTC)
    written = f"Written at the end of a run, on {now:%Y-%m-%d at %H:%M} UTC; a later run of these phases rewrites it."
    page = session.store.read(f"{report.output_path}/{report.result['page']}").decode()
    section = macro("run.html", "section", written, *parts, session.line("curves", "--page", "curves.html"))
    try:
        return with_run(page, section)
    except ValueError as error:
        again = session.line("--force", name, "--until", name, without=SELECTION)
        raise UserError(f"{error} Write it again: {again}") from error


def _scores(store: Store, graph: Graph, phases: Collection[str]) -> str:
    """Return the scores over tokens; none without evaluated milestones, since the report has the final scores."""
    from runtime.report.score_curves import measures

    if all(step.background is None for step in graph.steps):
        return ""
    points = [point for point in read_points(graph, store) if point.phase in phases]
    return measures(points, end=max(point.tokens for point in points)) if points else ""


def _curves(session: Session, graph: Graph, report: ReportConfig, phases: Mapping[str, Sequence[str]]) -> str:
    """Return the curves that the report lacks."""
    from pipelines.run_curves import logged_phases
    from runtime.report.curve_plots import LOSS, MOST_POINTS, RATE, curves
    from steps.report_contents import page_order

    lines = []
    for phase in logged_phases(session, graph, phases.values()):
        phase.refresh()
        lines += [line for line in phase.lines() if len(line.tokens) and line.panel not in (LOSS, RATE)]
    end = max((float(line.tokens[-1]) for line in lines), default=1.0)
    branches = [name for name in page_order(report) if name not in report.main_line]
    return curves(lines, end=1.01 * end, most=MOST_POINTS, branches=branches)
