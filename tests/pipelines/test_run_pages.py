"""The page of a run is where the report's link leads at the end of the run, on a disk and in a bucket."""

import dataclasses
import json
import re
import types
import uuid
from pathlib import Path, PurePosixPath

import pytest

from marin_dag.graph.graph import Graph
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import Record, Records, attempt_path
from marin_dag.plan.plan import make_plan
from marin_dag.store.prefix import open_store
from pipelines import tootsie
from pipelines.corpus import laptop_corpus
from pipelines.run_pages import write_run_pages
from pipelines.scales import LAPTOP
from runtime.report.page import render
from runtime.training.run_state import METRICS
from tests.catalogue import check_message
from tests.pipelines.test_curves_command import save
from tests.pipelines.test_stalls_command import FIGURES, log
from tests.runtime.report.example_run import example_report


def session_of(store):
    forks = types.SimpleNamespace(all=list)
    return types.SimpleNamespace(store=store, forks=forks, line=lambda *words, without=(): " ".join(words))


PAGE = render(example_report())


@pytest.fixture(scope="module")
def graph():
    return Graph(tootsie.tootsie(LAPTOP, laptop_corpus(LAPTOP)))


@pytest.fixture(params=["disk", "bucket"])
def prefix(request, tmp_path):
    if request.param == "disk":
        return str(tmp_path / "runs")
    return f"gs://{request.getfixturevalue('gcs_bucket')}/{uuid.uuid4().hex}"


def make(store, report):
    """Commit the example report; return its output path."""
    attempt = "20260101-000000-00000000"
    output = attempt_path(report.name, report.digest, attempt)
    provenance = Provenance(git_commit=None, is_dirty=None, argv=(), host="h", environment="e")
    Records(store).commit(
        Record(
            key=report.key, digest=report.digest, name=report.name, kind=report.kind.name, identity=report.identity,
            result={"page": "report.html"}, output_path=output, attempt=attempt, manifest=(), provenance=provenance,
        )
    )  # fmt: skip
    store.write(f"{output}/report.html", PAGE.encode())
    return output


def test_a_run_that_trained_a_phase_writes_its_stalls_where_the_report_links_to(graph, prefix):
    store = open_store(prefix)
    plan = make_plan(graph, store)
    session = session_of(store)
    log(prefix, graph.step("kestrel").digest, "20260101-000000-a", 2.5, [(3, 1.5)])
    assert list(write_run_pages(session, plan)) == [], "without a report there is no page"
    assert store.list("outputs") == []
    output = make(store, graph.step("report"))
    _, line = write_run_pages(session, plan)
    (link,) = re.findall(r'href="\.\./([^"#]+)#run"', PAGE)
    target = PurePosixPath(output).parent / link
    assert line == f"report: {store.url(str(target))}"
    page = store.read(str(target)).decode()
    assert "store read 2.50 s" in page and "Train loss" in page
    assert re.search(r"Written at the end of a run, on \d{4}-\d\d-\d\d at \d\d:\d\d UTC", page)
    log(prefix, graph.step("ocelot").digest, "20260103-000000-c", 0.5)
    assert list(write_run_pages(session, plan))[1:] == [line]
    assert "store read 0.50 s" in store.read(str(target)).decode()


def test_a_run_ends_with_the_share_of_training_time_spent_waiting(graph, tmp_path):
    store = open_store(str(tmp_path))
    report = graph.step("report")
    twice = Graph([report, report.fork("report/forks", title="with its forks")])
    outputs = [make(store, twice.step(name)) for name in ("report", "report/forks")]
    for phase, waited, seconds in (("kestrel", 1.5, 90.0), ("ocelot", 0.5, 10.0)):
        begin = {"event": "begin", "step": 0, "elapsed_seconds": 1.0}
        progress = {"event": "progress", **FIGURES, "elapsed_seconds": 1.0 + seconds, "waited_for_data_seconds": waited}
        alarm = {"event": "alarm", "step": 9, "monitor": "loss_spike", "figure": 9.5, "limit": 4.25}
        lines = [begin, {**progress, "waited_by_cause": {}}, *([alarm] if phase == "kestrel" else [])]
        path = f"work/{graph.step(phase).digest}/events/20260101-000000-a.jsonl"
        store.write(path, "".join(f"{json.dumps(each)}\n" for each in lines).encode())
    trained = types.SimpleNamespace(step=graph.step("kestrel"))
    plan = types.SimpleNamespace(steps=make_plan(twice, store).steps, graph=twice, will_run=(trained,))
    alarm_line, line, *pages = write_run_pages(session_of(store), plan)
    assert "kestrel at step 9" in alarm_line
    for output in outputs:
        assert alarm_line in store.read(f"{output.rpartition('/')[0]}/run.html").decode()
    expected = [store.url(f"{output.rpartition('/')[0]}/run.html") for output in outputs]
    assert pages == [f"report: {expected[0]}", f"report/forks: {expected[1]}"]
    check_message(line)


def test_a_run_that_trained_nothing_writes_only_a_missing_page(graph, tmp_path):
    store = open_store(str(tmp_path))
    log(str(tmp_path), graph.step("kestrel").digest, "20260101-000000-a", 2.5)
    make(store, graph.step("report"))
    session = session_of(store)
    idle = types.SimpleNamespace(steps=make_plan(graph, store).steps, graph=graph, will_run=())
    assert len(list(write_run_pages(session, idle))) == 2
    before = store.list("outputs")
    (page,) = [entry.path for entry in before if entry.path.endswith("/run.html")]
    assert list(write_run_pages(session, idle)) == [f"report: {store.url(page)}"] and store.list("outputs") == before
    elsewhere = [dataclasses.replace(planned, is_selected=False) for planned in idle.steps]
    store.delete(page)
    assert list(write_run_pages(session, types.SimpleNamespace(steps=elsewhere, graph=graph, will_run=()))) == []


def plan_of(graph, store, *made):
    trained = tuple(types.SimpleNamespace(step=graph.step(name)) for name in made)
    return types.SimpleNamespace(steps=make_plan(graph, store).steps, graph=graph, will_run=trained)


def test_a_report_that_is_made_again_takes_the_page_of_its_run_along(graph, tmp_path):
    store = open_store(str(tmp_path))
    output = make(store, graph.step("report"))
    page = f"{output.rpartition('/')[0]}/run.html"
    list(write_run_pages(session_of(store), plan_of(graph, store)))
    store.write(f"{output}/report.html", PAGE.replace("<h1>", "<h1>Again: ").encode())
    list(write_run_pages(session_of(store), plan_of(graph, store)))
    assert "Again: " not in store.read(page).decode()
    list(write_run_pages(session_of(store), plan_of(graph, store, "report")))
    assert "Again: " in store.read(page).decode()


@pytest.mark.parametrize("damage", ["checkpoint", "report", "event log"])
def test_a_file_that_cannot_be_read_takes_away_the_page_of_one_report_alone(graph, tmp_path, damage):
    store = open_store(str(tmp_path))
    report = graph.step("report")
    ocelot = {"ocelot": report.config.phases["ocelot"]}
    other = Graph([report, report.fork("report/forks", phases=ocelot, main_line=("ocelot",))])
    outputs = [make(store, other.step(name)) for name in ("report", "report/forks")]
    digest = graph.step("kestrel").digest
    if damage == "checkpoint":
        folder = save(tmp_path, digest, 10, loss=4.0)
        (part,) = Path(folder, METRICS).iterdir()
        part.write_bytes(b"x" + part.read_bytes()[1:])
    elif damage == "report":
        store.write(f"{outputs[0]}/report.html", b"<main></main>")
    else:
        store.write(f"work/{digest}/events/20260101-000000-a.jsonl", b'{"event": "begin\n{}\n')
    lines = list(write_run_pages(session_of(store), plan_of(other, store, "kestrel")))
    at = f"report: {store.url(outputs[0])}/report.html"
    (line,) = [line for line in lines if line.startswith(at)]
    check_message(line.replace(at, "report: ADDRESS").replace(store.prefix, "PREFIX"))
    assert f"report/forks: {store.url(outputs[1].rpartition('/')[0])}/run.html" in lines
