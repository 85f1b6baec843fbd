"""Web corpus: a crawl becomes clean documents, and the report shows what was dropped."""

import argparse
import io
import itertools
import json
import logging
from types import SimpleNamespace

import pytest
from markupsafe import escape
from rich.console import Console

from marin_dag.graph.graph import Graph
from marin_dag.graph.inputs import Input
from marin_dag.ledger.records import Records
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from marin_dag.values.walk import replace_references
from pipelines import web_corpus
from pipelines.reporting import stages_of
from runtime.report.recipe import bytes_label
from steps.report import report
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
    """Return the results of the steps up to the token cache for the built-in crawl, and the prefix."""
    prefix = tmp_path_factory.mktemp("runs")
    steps = {step.name: step for step in built().steps}
    wanted = Graph([steps["tokenize"]]).steps
    store, shown = open_store(str(prefix)), io.StringIO()
    display = LineDisplay(Console(file=shown), Console(file=shown))
    assert Run(wanted, store, LocalBackend(), display, command="").run() == 0, shown.getvalue()
    records = {step.name: Records(store).get(step.key) for step in wanted}
    return {name: record.result for name, record in records.items()}, prefix


def test_each_step_drops_something_of_the_crawl(results):
    found = results[0]
    assert {"not a page: HTTP status", "not a page: revisit of an earlier record"} <= set(found["extract"]["dropped"])
    assert {"language: not en", "Gopher: too few words"} <= set(found["filter/rules"]["dropped"])
    assert set(found["filter/quality"]["dropped"]) == {"quality classifier"}
    assert set(found["dedup"]["dropped"]) == {"exact duplicate", "near duplicate"}
    # The banner is on all pages.
    assert found["filter/rules"]["num_edited"] == found["filter/rules"]["num_documents"]
    assert found["decontaminate"]["dropped"]["overlaps with quoted"] >= 1
    assert found["decontaminate"]["num_documents"] > 100


def test_kept_dropped_and_cut_documents_add_up(results):
    found = results[0]
    chain = [found[name] for name in ("extract", "filter/rules", "filter/quality", "dedup", "decontaminate")]
    for before, after in itertools.pairwise(chain):
        assert before["num_documents"] == after["num_documents"] + sum(after["dropped"].values())
        removed = after.get("num_bytes_removed", 0)
        assert before["num_bytes"] == after["num_bytes"] + sum(after["dropped_bytes"].values()) + removed
        assert (removed > 0) == (after is found["filter/rules"])


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
    with expect_error(ValueError):
        built("--evals", str(tmp_path))
    (tmp_path / name).unlink()
    built("--evals", str(tmp_path))


def test_the_report_shows_every_step_of_the_chain_and_what_each_of_two_filters_dropped(results, tmp_path):
    found, prefix = results
    steps = {step.name: step for step in built().steps}
    stages = stages_of(steps["decontaminate"])
    assert {stage: step.name for stage, step in stages.items()} == {
        "extract": "extract",
        "filter": "filter/rules",
        "filter 2": "filter/quality",
        "dedup": "dedup",
        "decontaminate": "decontaminate",
    }

    def bound(item):
        if item.name == "train":
            return phase(tmp_path, "train", 1, 20, drawn={"web": 4}, batch=4)
        record = Records(open_store(str(prefix))).get(item.key)
        result = item.step.kind.result_type.model_validate(record.result)
        return Input(item.name, item.digest, str(prefix / record.output_path), result, milestone=item.milestone)

    context = SimpleNamespace(output_path=str(tmp_path / "page"), log=logging.getLogger("test"), name="report")
    made = report.function(replace_references(steps["report"].config, bound), context)
    page = (tmp_path / "page" / made.page).read_text()
    for name, stage in (("filter/rules", "filter"), ("filter/quality", "filter 2"), ("dedup", "dedup")):
        dropped = sum(found[name]["dropped"].values())
        assert f"web, {stage}: {dropped} documents dropped" in page
    edited, removed = (found["filter/rules"][field] for field in ("num_edited", "num_bytes_removed"))
    assert f">{edited} documents lost {bytes_label(removed)} and stayed<" in page
    for step in stages.values():
        for reason in found[step.name]["dropped"]:
            assert escape(reason) in page


def test_training_starts_while_text_is_tokenized():
    (train,) = (step for step in built().steps if step.name == "train")
    (cache,) = (item for field, item in train.inputs if field.startswith("caches"))
    assert cache.is_growing
