"""Deadly pages: a page that ends its reader's process is dropped, and the crawl goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dag.ledger.records import Records
from marin_dag.store.prefix import open_store
from runtime.text.documents import read_documents
from runtime.text.drops import read_samples
from runtime.text.extraction.guard import DEADLY, TOO_SLOW
from tests.steps import deadly_page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deadly") / "corpus"
    deadly_page.write_corpus(folder)
    return folder


def run(prefix, corpus, *import_first):
    """Return how each attempt ended, and the record of the step."""
    path = os.pathsep.join(map(str, (*import_first, ROOT)))
    command = [sys.executable, "-m", "tests.steps.deadly_page", str(prefix), str(corpus)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=False)
    assert done.returncode == 0, done.stderr
    store = open_store(str(prefix))
    return list(map(int, done.stdout.split())), Records(store).get(deadly_page.extraction(str(corpus)).key), store


def texts(record, store):
    shards = [store.url(f"{record.output_path}/{shard}") for shard in record.result["shards"]]
    return {document.id.rpartition("/")[2]: document.text for document in read_documents(shards)}


def test_a_deadly_page_is_dropped_and_costs_no_other(corpus, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(deadly_page.SITECUSTOMIZE)
    tries, record, store = run(tmp_path / "deadly", corpus, tmp_path)
    # One death for each shard with such a page, since the run is the process that dies.
    assert tries == [-signal.SIGSEGV] * 2 + [0]
    assert record.result["dropped"] == {DEADLY: 2, TOO_SLOW: 1}
    samples = read_samples(store.url(f"{record.output_path}/{record.result['dropped_samples']}"))
    assert [sample["id"].partition("/")[2] for sample in samples] == [
        "crawl.warc#246",
        "pages.zip/1.html",
        "crawl.warc#367",
    ]
    assert {sample["detail"].partition(",")[0] for sample in samples if sample["reason"] == DEADLY} == {"SIGSEGV"}

    again, undisturbed, harmless = run(tmp_path / "harmless", corpus)
    assert again == [0]
    others = {name: text for name, text in texts(undisturbed, harmless).items() if text not in ("deadly", "endless")}
    assert (texts(record, store), len(others)) == (others, 4)
    assert not list((tmp_path / "deadly").rglob("being-read/*"))
