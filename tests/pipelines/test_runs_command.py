"""`runs` lists what the records of all prefixes say: changes against the base, scores, and what is running."""

import json
from pathlib import Path
from typing import Any

import pytest

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import Record, Records, attempt_path, new_attempt
from marin_dag.store.prefix import open_store
from pipelines import tootsie
from pipelines.scales import LAPTOP
from pipelines.tootsie import laptop_corpus
from tests.catalogue import check_message

BY_KIND: dict[str, dict[str, Any]] = {
    "train_phase": {"consumed_tokens": 1_000, "final_loss": 3.5},
    "ema_eval": {"hot_mean": 2.5, "averages": [{"mean": 2.25}]},
    "lm_eval": {
        "weights": "averaged",
        "scores": [
            {"task": "piqa", "num_fewshot": 5, "value": 0.5, "stderr": 0.125},
            {"task": "bpb", "num_fewshot": 0, "value": 1.5, "stderr": None},
        ],
    },
    "hf_export": {},
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(tootsie.tootsie(LAPTOP, laptop_corpus(LAPTOP)))


def commit(prefix: Path, step: Step[Any], finished: str = "2026-01-02T03:00:00+00:00") -> None:
    attempt = new_attempt()
    records = Records(open_store(str(prefix)))
    provenance = Provenance(
        git_commit="0123456789", is_dirty=True, argv=("recipes/tootsie.py", "--set"), host="h", environment="e",
        started="2026-01-02T01:30:00+00:00", finished=finished, computed_with={"device": "TPU v4"},
    )  # fmt: skip
    record = Record(
        key=step.key, digest=step.digest, milestone=step.until, name=step.name, kind=step.kind.name,
        identity=step.identity, result=BY_KIND[step.kind.name], attempt=attempt, manifest=(), provenance=provenance,
        output_path=attempt_path(step.name, step.digest, attempt),
    )  # fmt: skip
    records.commit(record)
    records.label(step.name, step.key)


def listed(prefix: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert tootsie.main(["runs", "--prefix", str(prefix), "--json", *words]) == 0
    runs: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
    return runs


def test_a_run_shows_what_it_reached(tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("jellyfish", "ema_eval/jellyfish", "hf_export/jellyfish", "lm_eval/jellyfish"):
        commit(tmp_path, graph.step(name))
    (run,) = listed(tmp_path, capsys)
    assert run["state"] == "done" and run["recipe"] == "tootsie.py" and run["commit"] == "01234567+"
    assert (run["tokens"], run["loss"], run["bits_per_byte"], run["hours"]) == (1_000, 3.5, 2.25, 1.5)
    assert run["scores"] == {"piqa 5-shot, averaged": [0.5, 0.125], "bpb, averaged": [1.5, None]}
    assert run["device"] == "TPU v4"


def test_a_run_is_compared_with_the_phase_that_it_starts_from_or_with_its_earlier_version(
    tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    jellyfish, ocelot = graph.step("jellyfish"), graph.step("ocelot")
    commit(tmp_path, ocelot, finished="2026-01-01T03:00:00+00:00")
    commit(tmp_path, jellyfish)
    commit(tmp_path, jellyfish.fork("jellyfish", z_loss=0.125), finished="2026-01-03T03:00:00+00:00")
    newest, first, start = listed(tmp_path, capsys)
    assert newest["base"].startswith("jellyfish") and newest["changed"] == [
        f"z_loss: {jellyfish.config.z_loss} -> 0.125"
    ]
    assert first["base"].startswith("ocelot") and any(change.startswith("learning_rate") for change in first["changed"])
    assert start["base"] == "" and start["changed"] == []


def test_several_prefixes_are_one_table(tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tmp_path / "a", graph.step("kestrel"))
    commit(tmp_path / "b", graph.step("ocelot"))
    runs = listed(tmp_path / "a", capsys, "--also", str(tmp_path / "b"), "--sort", "name")
    assert [(run["name"], Path(run["prefix"]).name) for run in runs] == [("kestrel", "a"), ("ocelot", "b")]
    assert [run["name"] for run in listed(tmp_path / "a", capsys, "ocel*", "--also", str(tmp_path / "b"))] == ["ocelot"]


def test_runs_before_since_are_not_listed(tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tmp_path, graph.step("kestrel"))
    commit(tmp_path, graph.step("ocelot"), finished="2999-01-01T00:00:00+00:00")
    assert [run["name"] for run in listed(tmp_path, capsys, "--since", "30d")] == ["ocelot"]


def test_a_running_phase_is_the_first(tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tmp_path, graph.step("kestrel"))
    leases = Leases(open_store(str(tmp_path)))
    lease = leases.acquire(graph.step("ocelot").digest, "ocelot", lambda: None)
    try:
        assert isinstance(lease, Lease)
        lease.has_started, lease.progress = True, Progress(5, 20, "steps", {"loss": 4.5})
        lease.beat()
        running, done = listed(tmp_path, capsys)
    finally:
        leases.close()
    assert (running["name"], running["state"], running["loss"]) == ("ocelot", "5/20 steps", 4.5)
    assert done["name"] == "kestrel"


def test_the_table_and_the_page_show_each_run(tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tmp_path, graph.step("jellyfish"))
    commit(tmp_path, graph.step("hf_export/jellyfish"))
    commit(tmp_path, graph.step("lm_eval/jellyfish"))
    drawn = tmp_path / "runs.html"
    assert tootsie.main(["runs", "--prefix", str(tmp_path), "--scores", "--page", str(drawn)]) == 0
    check_message(capsys.readouterr().out)
    assert "piqa" in drawn.read_text() and "<script" not in drawn.read_text()


def test_a_prefix_without_runs_and_a_wrong_time_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tootsie.main(["runs", "--prefix", str(tmp_path)]) == 0
    check_message(capsys.readouterr().out)
    for since in ("3x", "9999999d"):
        assert tootsie.main(["runs", "--prefix", str(tmp_path), "--since", since]) == 1
        check_message(capsys.readouterr().err.partition(" `")[0])


def test_a_mistyped_prefix_is_an_error_and_a_repeated_one_counts_once(
    tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(tmp_path / "a", graph.step("kestrel"))
    assert len(listed(tmp_path / "a", capsys, "--also", f"{tmp_path}/a/")) == 1
    assert tootsie.main(["runs", "--prefix", str(tmp_path / "a"), "--also", str(tmp_path / "b")]) == 1
    check_message(capsys.readouterr().err)
