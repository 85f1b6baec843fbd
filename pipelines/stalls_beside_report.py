"""Data stalls beside the report: the page that the report links to, rewritten at the end of a run.

Times differ between equal runs, so they are in no output. The page is in the folder of all attempts at the report:
links from each of them find it, also under another prefix, and nothing hashes or verifies it.
"""

import datetime
from collections.abc import Iterator

from marin_dag.cli.session import Session
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.plan.plan import Plan
from marin_dag.store.store import Store
from pipelines.attempts import phases_by_digest
from pipelines.stalls_command import read_stalls
from runtime.tracking.stalls import PAGE_FILE, DataStalls
from steps.report_config import ReportConfig


def write_stalls(session: Session, plan: Plan) -> Iterator[str]:
    """Write the page of each finished report; yield one line with the share of the training time and the pages.

    An existing page stays, unless this run trained one of its phases.
    """
    trained = {planned.step.digest for planned in plan.will_run}
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
        found, notes = read_stalls(session.store, phases)
        if found:
            from runtime.report.stalls_page import page  # a plan imports this module, and should load nothing heavy

            now = datetime.datetime.now(datetime.UTC)
            notes.append(
                f"Written at the end of a run, on {now:%Y-%m-%d at %H:%M} UTC; a later run of them rewrites it"
            )
            session.store.write(path, page(f"{config.title}: data stalls", found, notes).encode())
            pages.append(session.store.url(path))
            by_phase |= {stalls.phase: stalls for stalls in found}
    if pages:
        waited, seconds = (
            sum(getattr(each, name) for each in by_phase.values()) for name in ("waited_seconds", "seconds")
        )
        share = waited / seconds if seconds else 0.0
        yield f"training spent {share:.2%} of its time waiting for data; by phase: {', '.join(pages)}"


def _path_beside(store: Store, report: Step) -> str | None:
    """Return the path of a report's page, relative to the prefix; None before the report is made."""
    record = Records(store).find(report.key)
    return None if record is None else f"{record.output_path.rpartition('/')[0]}/{PAGE_FILE}"
