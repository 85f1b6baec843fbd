"""Waits beside the report: the page that the report links to, written anew when a run has ended.

Times differ between equal runs, so they are in no output. The page lies in the folder of all attempts at the report:
a link from any of them finds it, wherever the prefix is moved to, and nothing hashes or verifies what lies there.
"""

import datetime
from collections.abc import Iterator

from marin_dag.cli.session import Session
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.plan.plan import Plan
from marin_dag.store.store import Store
from pipelines.trainings import names_of_trainings, shared
from pipelines.waits_command import read_waits
from runtime.tracking.waits import PAGE_FILE, Waits
from steps.report_config import ReportConfig


def write_waits(session: Session, plan: Plan) -> Iterator[str]:
    """For each report that is made the waits of its phases, whichever run trained them; yields their share of the
    training time, and where they are.

    A page that is there stays, unless this run had a phase to train.
    """
    trained = {planned.step.digest for planned in plan.will_run}
    told: dict[str, Waits] = {}
    pages = []
    for planned in plan.steps:
        config = planned.step.config
        if not isinstance(config, ReportConfig):
            continue
        names = {item.name for item in config.phases.values()}
        phases = names_of_trainings(step for step in plan.graph.steps if step.name in names)
        path = _path_beside(session.store, planned.step)
        if path is None:
            continue
        is_new = planned.is_selected and not session.store.exists(path)
        if not is_new and not trained & phases.keys():
            continue
        found = [waits for digest, names in phases.items() if (waits := read_waits(session.store, digest, names[0]))]
        if found:
            _write(session.store, path, config.title, phases, found)
            pages.append(session.store.url(path))
            told |= {waits.phase: waits for waits in found}
    if pages:
        waited, seconds = sum(w.waited_seconds for w in told.values()), sum(w.seconds for w in told.values())
        share = waited / seconds if seconds else 0.0
        yield f"training spent {share:.2%} of its time waiting for data; by phase: {', '.join(pages)}"


def _path_beside(store: Store, report: Step) -> str | None:
    """Where the page of a report is, relative to the prefix: above its attempts, under the name it was made under; None
    before it is made."""
    record = Records(store).find(report.key)
    return None if record is None else f"{record.output_path.rpartition('/')[0]}/{PAGE_FILE}"


def _write(store: Store, path: str, title: str, phases: dict[str, list[str]], found: list[Waits]) -> None:
    from runtime.report.waits_page import page  # not above: a plan imports this module and nothing heavy

    shown = {waits.phase for waits in found}
    notes = [shared(names) for names in phases.values() if len(names) > 1 and names[0] in shown]
    now = datetime.datetime.now(datetime.UTC)
    notes.append(f"Written at the end of a run, on {now:%Y-%m-%d at %H:%M} UTC; a later run of these phases renews it")
    store.write(path, page(f"{title}: waits for data", found, notes).encode())
