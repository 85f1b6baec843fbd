"""The waits beside the report: there when a run has ended, where the report's link leads, on a disk and in a bucket."""

import dataclasses
import re
import types
import uuid
from pathlib import PurePosixPath

import pytest

from marin_dag.graph import Graph
from marin_dag.plan import make_plan
from marin_dag.records import attempt_path
from marin_dag.store import open_store
from pipelines import tootsie
from pipelines.scales import LAPTOP
from pipelines.waits_beside_report import write_waits
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


def test_a_run_that_trained_a_phase_leaves_its_waits_where_the_link_of_the_report_leads(graph, prefix):
    store = open_store(prefix)
    plan = make_plan(graph, store)
    session = types.SimpleNamespace(store=store)
    assert list(write_waits(session, plan)) == [], "nothing has trained, so nothing is told"
    assert store.list("outputs") == []
    log(prefix, graph.step("kestrel").digest, "20260101-000000-a", 2.5, [(3, 1.5)])
    (said,) = write_waits(session, plan)
    report = graph.step("report")
    output = attempt_path("report", report.digest, "20260101-000000-00000000")
    (link,) = re.findall(r'href="(\.\./[^"]+)"', render(example_report()))
    target = PurePosixPath(output).parent / link.removeprefix("../")
    assert said == f"time that phases waited for data: {store.url(str(target))}"
    page = store.read(str(target)).decode()
    assert "kestrel: 2.50 s for store read" in page
    assert re.search(r"Written at the end of a run, on \d{4}-\d\d-\d\d at \d\d:\d\d UTC", page)
    log(prefix, graph.step("ocelot").digest, "20260103-000000-c", 0.5)
    assert list(write_waits(session, plan)) == [said]
    assert "ocelot: 0.50 s for store read" in store.read(str(target)).decode()


def test_a_run_that_trained_nothing_writes_the_page_only_where_there_is_none(graph, tmp_path):
    store = open_store(str(tmp_path))
    log(str(tmp_path), graph.step("kestrel").digest, "20260101-000000-a", 2.5)
    session = types.SimpleNamespace(store=store)
    idle = types.SimpleNamespace(steps=make_plan(graph, store).steps, graph=graph, will_run=())
    assert len(list(write_waits(session, idle))) == 1
    before = store.list("outputs")
    assert list(write_waits(session, idle)) == [] and store.list("outputs") == before
    elsewhere = [dataclasses.replace(planned, is_selected=False) for planned in idle.steps]
    store.delete(before[0].path)
    assert list(write_waits(session, types.SimpleNamespace(steps=elsewhere, graph=graph, will_run=()))) == []
