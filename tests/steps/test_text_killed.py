"""Text steps: killed in any map of any step, the next run completes the rest with the same bytes."""

import subprocess
import sys
from collections import Counter

import pytest

from marin_dag.ledger.records import Records
from marin_dag.store.prefix import open_store
from tests.steps import text_chain


def committed(prefix, corpus):
    """Return what each step has committed: its result, and path, size and checksum of every file."""
    records = Records(open_store(str(prefix)))
    found = {name: records.get(step.key) for name, step in text_chain.chain(str(corpus)).items()}
    return {name: (record.result, record.manifest) for name, record in found.items()}


def run(*arguments):
    command = [sys.executable, "-m", "tests.steps.text_chain", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the folder of the corpus, and what an undisturbed run commits."""
    folder = tmp_path_factory.mktemp("undisturbed")
    text_chain.write_corpus(folder / "corpus")
    run(folder / "runs", folder / "corpus")
    return folder / "corpus", committed(folder / "runs", folder / "corpus")


def test_a_killed_run_resumes_in_every_map_and_commits_the_same_bytes(tmp_path, undisturbed):
    (corpus, expected), log = undisturbed, tmp_path / "log"
    run(tmp_path / "killed", corpus, log, *text_chain.MAPS)
    assert committed(tmp_path / "killed", corpus) == expected
    started = Counter(log.read_text().splitlines())
    killed = {f"{victim} 00001" for victim in text_chain.MAPS}
    assert {shard for shard, count in started.items() if count > 1} == killed
    assert max(started.values()) == 2


def test_every_step_of_the_chain_changes_documents(undisturbed):
    results = {name: result for name, (result, _) in undisturbed[1].items()}
    assert sum(results["filter"]["dropped"].values()) > 0
    assert set(results["dedup"]["dropped"]) == {"exact duplicate", "near duplicate"}
    assert results["decontaminate"]["dropped"] == {"overlaps with toy": 1}
