"""Web corpus: a crawl becomes clean documents, and the page of drops shows what was dropped."""

import argparse
import io
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.inputs import Input
from marin_dag.ledger.records import Records
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from marin_dag.values.walk import replace_references
from pipelines import web_corpus
from pipelines.reporting import graph_of, stages_of, with_report
from runtime.report.markup import escaped
from runtime.report.scales import bytes_label
from steps.report import report
from steps.report_config import ReportConfig
from tests.catalogue import expect_error
from tests.steps.report_inputs import phase


@pytest.fixture
def tmp_path(tmp_path):
    """Return a folder with one name in every test, so that messages do not depend on the tests that run."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def built(*argv):
    parser = argparse.ArgumentParser()
    web_corpus.add_arguments(parser)
    return Graph(web_corpus.build(parser.parse_args(argv)))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the results of the steps up to the page of drops for the built-in crawl, the page's path, and the
    prefix."""
    prefix = tmp_path_factory.mktemp("runs")
    steps = {step.name: step for step in built().steps}
    wanted = Graph([steps["drops"]]).steps
    store, shown = open_store(str(prefix)), io.StringIO()
    display = LineDisplay(Console(file=shown), Console(file=shown))
    assert Run(wanted, store, LocalBackend(), display, command="").run() == 0, shown.getvalue()
    records = {step.name: Records(store).get(step.key) for step in wanted}
    return {name: record.result for name, record in records.items()}, prefix / records["drops"].output_path, prefix


def test_each_step_drops_something_of_the_crawl(results):
    found = results[0]
    assert {"not a page: HTTP status", "not a page: revisit of an earlier record"} <= set(found["extract"]["dropped"])
    assert {"language: not en", "Gopher: too few words"} <= set(found["filter/rules"]["dropped"])
    assert set(found["filter/quality"]["dropped"]) == {"quality classifier"}
    assert set(found["dedup"]["dropped"]) == {"exact duplicate", "near duplicate"}
    # The banner is on all pages.
    assert found["filter/rules"]["num_edited"] == found["filter/rules"]["num_documents"]
    assert found["decontaminate"]["dropped"]["overlaps with quoted"] >= 1
    assert found["drops"]["num_documents"] == found["decontaminate"]["num_documents"] > 100


def test_the_page_of_drops_adds_up_and_shows_samples(results):
    found, folder, _ = results
    lines = (Path(folder) / found["drops"]["table"]).read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    steps = {row[0]: [row[0], *(cell.replace(",", "").replace(".", "") for cell in row[1:])]
             for row in rows if len(row) == 10}  # fmt: skip
    names = ["extract", "filter/rules", "filter/quality", "dedup", "decontaminate"]
    for name, after in zip(names, [*names[1:], None], strict=True):
        documents_in, dropped, out, edited = map(int, steps[name][1:5])
        bytes_in, bytes_dropped, bytes_cut, bytes_out = map(int, steps[name][6:10])
        assert documents_in - dropped == out
        assert bytes_in - bytes_dropped - bytes_cut == bytes_out
        assert after is None or (steps[after][1], steps[after][6]) == (steps[name][3], steps[name][9])
        assert (edited > 0) == (bytes_cut > 0) == (name == "filter/rules")
        reasons = {row[1]: int(row[2]) for row in rows if len(row) == 4 and row[0] == name}
        assert sum(reasons.values()) == dropped
    assert {"## dedup: exact duplicate", "## filter/rules: cut, and the rest kept"} <= set(lines)
    assert any(line.startswith("- `") and "at least 0.65: " in line for line in lines)


def test_a_users_crawl_replaces_the_built_in_one(tmp_path):
    (tmp_path / "crawl.warc.gz").write_bytes(b"")
    (tmp_path / "sets" / "toys").mkdir(parents=True)
    (tmp_path / "sets" / "toys" / "test.jsonl").write_text(json.dumps({"question": "?"}))
    (tmp_path / "good.jsonl").write_text("{}")
    own = built("--warc", str(tmp_path), "--evals", str(tmp_path / "sets"), "--wanted", str(tmp_path))
    steps = {step.name: step for step in own.steps}
    assert [file.name for file in steps["crawl"].config.fetch.files] == ["crawl.warc.gz"]
    assert [file.name for file in steps["download/evals"].config.fetch.files] == ["toys/test.jsonl"]
    assert [file.name for file in steps["download/wanted"].config.fetch.files] == ["good.jsonl"]
    pinned = {step.name: step for step in built("--warc", str(tmp_path)).steps}
    assert pinned["evaluation_items"].kind.name == "evaluation_items"


@pytest.mark.parametrize("name", ["toys.jsonl.gz", "toys/test.parquet", "toys.json"])
def test_an_unread_evaluation_set_is_refused(tmp_path, name):
    for other in ("math.jsonl", "README.md", ".cache/x.bin", name):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_text('{"question": "?"}')
    with expect_error(UserError):
        built("--evals", str(tmp_path))
    (tmp_path / name).unlink()
    built("--evals", str(tmp_path))


def test_the_report_shows_every_step_of_the_chain_and_what_each_of_two_filters_dropped(results, tmp_path):
    found, _, prefix = results
    steps = {step.name: step for step in built().steps}
    stages = stages_of(steps["decontaminate"])
    assert {stage: step.name for stage, step in stages.items()} == {
        "extract": "extract",
        "filter": "filter/rules",
        "filter 2": "filter/quality",
        "dedup": "dedup",
        "decontaminate": "decontaminate",
    }
    train = steps["train"]
    shown = [train, *stages.values()]
    config = ReportConfig(
        title="A crawl",
        introduction="What became of it.",
        main_line=("train",),
        phases={"train": train},
        parents={},
        mixtures={"train": train.config.mixture},
        recipe={},
        evaluations={},
        exports={},
        scores={},
        sources={"web": stages},
        caches={},
        graph=with_report(graph_of(shown), "report", shown),
    )
    assert {item.step.name for _, item in report("report", config).inputs} == {step.name for step in shown}

    def bound(item):
        if item.name == "train":
            return phase(tmp_path, "train", 1, 20, drawn={"web": 4}, batch=4)
        record = Records(open_store(str(prefix))).get(item.key)
        result = item.step.kind.result_type.model_validate(record.result)
        return Input(item.name, item.digest, str(prefix / record.output_path), result, milestone=item.milestone)

    context = SimpleNamespace(output_path=str(tmp_path / "page"), log=logging.getLogger("test"), name="report")
    made = report.function(replace_references(config, bound), context)
    page = (tmp_path / "page" / made.page).read_text()
    for name, stage in (("filter/rules", "filter"), ("filter/quality", "filter 2"), ("dedup", "dedup")):
        dropped = sum(found[name]["dropped"].values())
        assert f"web, {stage}: {dropped} documents dropped" in page
    edited, removed = (found["filter/rules"][field] for field in ("num_edited", "num_bytes_removed"))
    assert f"web, filter: {edited} documents lost {bytes_label(removed)} and stayed." in page
    for step in stages.values():
        for reason in found[step.name]["dropped"]:
            assert escaped(reason) in page


def test_training_starts_while_text_is_tokenized():
    (train,) = (step for step in built().steps if step.name == "train")
    (cache,) = (item for field, item in train.inputs if field.startswith("caches"))
    assert cache.is_growing
