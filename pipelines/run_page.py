"""Run page: live curves and alarms for the command `page`, and links to whole pages."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from marin_dag.cli.page_content import PageContent
from marin_dag.cli.polled import Polled
from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Record, Records, UnreadableRecordError
from marin_dag.store.store import Store
from pipelines.document_browser import LiveDocuments
from pipelines.heat_map_command import heat_map
from pipelines.live_batches import LiveBatches
from pipelines.phases import phases_by_digest
from pipelines.rollback_command import SPIKE_MONITORS
from pipelines.run_curves import LoggedPhase, logged_phases
from pipelines.run_pages import run_page_path
from pipelines.stalls_command import alarms_in, event_reader, stalls_of
from runtime.report.curve_plots import Line, curves, thinned
from runtime.report.html import figure_scripts, macro, source
from runtime.report.pages import stalls_page, texts_page
from steps.report_config import ReportConfig
from steps.sample import SampleConfig, SampleResult

MOST_ALARMS = 20


class _Look(NamedTuple):
    """Curves and alarms from one look at the store."""

    lines: Sequence[Line]
    shared: Mapping[str, Any]
    """Alarms and views."""
    by_range: dict[tuple[float | None, float | None], dict[str, Any]]
    """Values that threads have computed since, by the range of the x axis."""


class RunPage(PageContent):
    """Curves, alarms and views of one graph; several threads may call the methods."""

    def __init__(self, session: Session, graph: Graph) -> None:
        self._session, self._graph = session, graph
        self._phases = logged_phases(session, graph, phases_by_digest(graph.steps).values())
        lines = [line for phase in self._phases for line in phase.lines()]
        self._documents = LiveDocuments(session.store, graph)
        self._batches = LiveBatches(session, self._phases)
        self.style = source("style.css")
        self.scripts = (*figure_scripts(), source("documents.js"), source("batch.js"))
        shown = macro("live.html", "curves", curves(lines, end=1.0, is_live=True)) if lines else ""
        # Plain text: the server joins it with its own, which a Markup would escape.
        self.markup = f"{shown}{macro('documents.html', 'live', self._documents.steps)}"
        self._polled = Polled(self._look)

    def values(self, low: float | None, high: float | None) -> dict[str, Any]:
        """Return the values of a range of the x axis, computed once for each look."""
        found = self._polled.get()
        if (low, high) not in found.by_range:
            end = max((float(line.tokens[-1]) for line in found.lines if len(line.tokens)), default=1.0)
            figures = thinned(found.lines, low, high) | {"end": 1.01 * end}
            found.by_range[low, high] = {**found.shared, "figures": figures}
        return found.by_range[low, high]

    def view(self, name: str) -> str:
        """Return a whole page."""
        pages = self._pages()
        if name not in pages:
            raise UserError(f"page: {name!r} is no view of this run, or its step is not done.")
        return pages[name][1]()

    def data(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return rows of a training step of a phase, or documents of a step."""
        return self._batches.data(query) if "phase" in query else self._documents.data(query)

    def _look(self) -> _Look:
        from runtime.training.checkpoint_reader import CheckpointError

        failures = []
        for phase in self._phases:
            try:
                phase.refresh()
            except (CheckpointError, UnreadableRecordError) as error:  # the page still shows the other phases
                failures.append({"name": phase.name, "text": str(error), "at": 0.0, "fix": ""})
        lines = [line for phase in self._phases for line in phase.lines()]
        alarms = [alarm for phase in self._phases for alarm in self._alarms(phase)]
        views = [{"name": name, "title": title} for name, (title, _) in self._pages().items()]
        return _Look(lines, {"alarms": [*failures, *alarms[-MOST_ALARMS:]], "views": views}, {})

    def _alarms(self, phase: LoggedPhase) -> Iterator[dict[str, Any]]:
        """Yield alarms, skipped steps and errors of a phase by step: text, place on the token axis, and a command."""
        events = phase.events()
        found = []
        for alarm in alarms_in(events):
            fix = self._session.line("batch", f"{phase.longest.name}@{alarm.step}") if alarm.has_row else ""
            if not alarm.has_recovered and set(alarm.monitors) & set(SPIKE_MONITORS):
                fix = self._session.line("rollback", phase.longest.name)
            found.append((alarm.step, alarm.text, fix))
        for event in events:
            match event["event"]:
                case "skipped":
                    found.append((event["step"], "the step was skipped", ""))
                case "hang":
                    text = f"no training step ended in {event['waited_seconds']:,.0f} s"
                    found.append((event.get("step", 0), text, ""))
                case "error":
                    found.append((event.get("step", 0), event["message"], ""))
        for step, text, fix in sorted(found):
            shown = {"name": phase.name, "text": f"at step {step:,}: {text}", "at": phase.tokens_at(step), "fix": fix}
            yield shown | ({"step": step} if step else {})

    def _pages(self) -> dict[str, tuple[str, Callable[[], str]]]:
        """Return title and page function of each view: finished reports, and pages that are drawn when opened."""
        session, graph, records = self._session, self._graph, Records(self._session.store)
        found: dict[str, tuple[str, Callable[[], str]]] = {}
        for step in graph.steps:
            record = records.find(step.key) if isinstance(step.config, ReportConfig) else None
            if record is not None:
                path, output = run_page_path(record), f"{record.output_path}/{record.result['page']}"
                path = path if session.store.exists(path) else output
                found[step.name] = step.config.title, functools.partial(_text, session.store, path)
        samples = [step for step in graph.steps if isinstance(step.config, SampleConfig)]
        written = [(step.config.phase.name, record) for step in samples if (record := records.find(step.key))]
        if written:
            found["texts"] = "texts that the phases write", functools.partial(self._texts, written)
        if self._phases:
            found["heat-map"] = "heat map of held-out text", functools.partial(heat_map, session, graph)
            found["stalls"] = "data stalls", self._stalls
        return found

    def _texts(self, written: Sequence[tuple[str, Record]]) -> str:
        found = [(phase, SampleResult.model_validate(record.result)) for phase, record in written]
        return texts_page(f"Texts of {self._session.pipeline}", found)

    def _stalls(self) -> str:
        found, notes = stalls_of(event_reader(self._session.store), phases_by_digest(self._graph.steps))
        return stalls_page(f"Data stalls of {self._session.pipeline}", found, notes)


def _text(store: Store, path: str) -> str:
    return store.read(path).decode()
