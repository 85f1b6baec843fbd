"""The waits beside the report: there when a run has ended, where the report's link leads, on a disk and in a bucket."""

import dataclasses
import json
import re
import types
import uuid
from pathlib import PurePosixPath

import pytest

from marin_dag.graph.graph import Graph
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import Record, Records, attempt_path
from marin_dag.plan.plan import make_plan
from marin_dag.store.prefix import open_store
from pipelines import tootsie
from pipelines.scales import LAPTOP
from pipelines.stalls_beside_report import write_stalls
from runtime.report.page import render
from tests.pipelines.test_waits_command import log
from tests.runtime.report.example_run import example_report


@pytest.fixture(scope="module")
def graph():
    return Graph(tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP)))


@pytest.fixture(params=["disk", "bucket"])
def prefix(request, tmp_path):
    if request.param == "disk":
        return str(tmp_path / "runs")
    return f"gs://{request.getfixturevalue('gcs_bucket')}/{uuid.uuid4().hex}"


def make(store, report):
    """Commits the report, as far as the page beside it can tell; returns where it lies."""
    attempt = "20260101-000000-00000000"
    output = attempt_path(report.name, report.digest, attempt)
    provenance = Provenance(git_commit=None, is_dirty=None, argv=(), host="h", environment="e")
    Records(store).commit(
        Record(
            key=report.key, digest=report.digest, name=report.name, kind=report.kind.name, identity=report.identity,
            result={}, output_path=output, attempt=attempt, manifest=(), provenance=provenance,
        )
    )  # fmt: skip
    return output


def test_a_run_that_trained_a_phase_leaves_its_waits_where_the_link_of_the_report_leads(graph, prefix):
    store = open_store(prefix)
    plan = make_plan(graph, store)
    session = types.SimpleNamespace(store=store)
    log(prefix, graph.step("kestrel").digest, "20260101-000000-a", 2.5, [(3, 1.5)])
    assert list(write_stalls(session, plan)) == [], "there is no report for it to lie beside"
    assert store.list("outputs") == []
    output = make(store, graph.step("report"))
    (said,) = write_stalls(session, plan)
    (link,) = re.findall(r'href="(\.\./[^"]+)"', render(example_report()))
    target = PurePosixPath(output).parent / link.removeprefix("../")
    assert said.startswith("training spent ")
    assert said.endswith(f"% of its time waiting for data; by phase: {store.url(str(target))}")
    page = store.read(str(target)).decode()
    assert "kestrel: 2.50 s for store read" in page
    assert re.search(r"Written at the end of a run, on \d{4}-\d\d-\d\d at \d\d:\d\d UTC", page)
    log(prefix, graph.step("ocelot").digest, "20260103-000000-c", 0.5)
    (again,) = write_stalls(session, plan)
    assert again.partition("by phase")[2] == said.partition("by phase")[2]
    assert "ocelot: 0.50 s for store read" in store.read(str(target)).decode()


def test_a_run_ends_with_one_line_of_the_share_of_the_training_time_that_went_by_in_waits(graph, tmp_path):
    store = open_store(str(tmp_path))
    report = graph.step("report")
    twice = Graph([report, report.fork("report/forks", title="with its forks")])
    outputs = [make(store, twice.step(name)) for name in ("report", "report/forks")]
    for phase, waited, seconds in (("kestrel", 1.5, 90.0), ("ocelot", 0.5, 10.0)):
        begin = {"event": "begin", "elapsed_seconds": 1.0}
        told = {"event": "progress", "elapsed_seconds": 1.0 + seconds, "waited_for_data_seconds": waited}
        lines = [begin, {**told, "waited_by_cause": {}}]
        path = f"work/{graph.step(phase).digest}/events/20260101-000000-a.jsonl"
        store.write(path, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
    plan = types.SimpleNamespace(steps=make_plan(twice, store).steps, graph=twice, will_run=())
    (said,) = write_stalls(types.SimpleNamespace(store=store), plan)
    pages = [store.url(f"{output.rpartition('/')[0]}/waits.html") for output in outputs]
    assert said == f"training spent 2.00% of its time waiting for data; by phase: {', '.join(pages)}"


def test_a_run_that_trained_nothing_writes_the_page_only_where_there_is_none(graph, tmp_path):
    store = open_store(str(tmp_path))
    log(str(tmp_path), graph.step("kestrel").digest, "20260101-000000-a", 2.5)
    make(store, graph.step("report"))
    session = types.SimpleNamespace(store=store)
    idle = types.SimpleNamespace(steps=make_plan(graph, store).steps, graph=graph, will_run=())
    assert len(list(write_stalls(session, idle))) == 1
    before = store.list("outputs")
    assert [entry.path.rpartition("/")[2] for entry in before] == ["waits.html"]
    assert list(write_stalls(session, idle)) == [] and store.list("outputs") == before
    elsewhere = [dataclasses.replace(planned, is_selected=False) for planned in idle.steps]
    store.delete(before[0].path)
    assert list(write_stalls(session, types.SimpleNamespace(steps=elsewhere, graph=graph, will_run=()))) == []
