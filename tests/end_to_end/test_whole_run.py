"""The whole graph in the local backend: what runs, what does not, and what is in the records."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.store.local import LocalStore
from pipelines import trained_batch
from pipelines.batch_command import _predicted
from pipelines.phases import phases_in, run_phases_in
from pipelines.tootsie import RESULTS
from steps.phase_timeline import RunPhase
from tests.end_to_end.conftest import Reference
from tests.end_to_end.driver import Driver, committed, differing, tree


def record_of(prefix: Path, step: Step[Any]) -> Record:
    record = Records(LocalStore(str(prefix))).find(step.key)
    assert record is not None, step.name
    return record


def events_of(prefix: Path, step: Step[Any], attempt: str) -> list[dict[str, Any]]:
    lines = (prefix / "work" / step.digest / "events" / f"{attempt}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def metrics_of(prefix: Path, step: Step[Any]) -> list[dict[str, Any]]:
    record = record_of(prefix, step)
    return pq.read_table(prefix / record.output_path / record.result["metrics"]).to_pylist()


def test_the_whole_run_makes_each_output_once_and_shows_where_the_results_are(reference: Reference, graph: Graph):
    assert set(reference.committed) == {step.key for step in graph.steps}
    assert len(reference.ended.ran) == len(set(reference.ended.ran)) == len(reference.committed)
    assert {step.kind.name for step in graph.steps} == {
        "download", "extract", "filter_documents", "dedup", "evaluation_items", "decontaminate", "train_tokenizer",
        "tokenize", "train_phase", "ema_eval", "sample", "hf_export", "lm_eval", "report",
    }  # fmt: skip
    # The sources are tiny, of which a warning tells.
    warned = {line.split(":")[1].strip() for line in reference.ended.errors.splitlines()}
    assert warned <= {step.name for step in graph.steps if step.kind.name == "tokenize"}
    assert re.search(r"deeper_starling: \d\.\d{3} bits per byte .* after [\d,]+ tokens", reference.ended.output)
    assert re.search(
        r"deeper_starling: lm-eval mean accuracy 0\.\d{3} over 2 tasks; guessing gives 0\.250", reference.ended.output
    )
    for name, shown in RESULTS.items():
        path = reference.prefix / record_of(reference.prefix, graph.step(name)).output_path / shown
        assert path.exists()
        assert f"  {name}: {path}\n" in reference.ended.output


def test_the_run_ends_with_the_page_that_its_report_links_to(reference: Reference, graph: Graph):
    record = record_of(reference.prefix, graph.step("report"))
    page = (reference.prefix / record.output_path / "report.html").read_text()
    (link,) = re.findall(r'href="(\.\./[^"#]+)#run"', page)
    shown = (reference.prefix / record.output_path / link).resolve()
    waited, last = reference.ended.output.splitlines()[-2:]
    assert re.fullmatch(r"  training spent \d+\.\d\d% of its time waiting for data", waited)
    assert last == f"  report: {shown}"
    assert "raccoon_softer" in shown.read_text().partition("Data stalls by phase")[2]


def test_each_cleaning_step_drops_its_planted_documents(reference: Reference, graph: Graph):
    for source in ("code", "math", "questions", "web"):
        dropped = {
            stage: record_of(reference.prefix, graph.step(f"{stage}/{source}")).result["dropped"]
            for stage in ("filter", "dedup", "decontaminate")
        }
        assert dropped["filter"]["too few words"] >= 1
        assert dropped["dedup"]["exact duplicate"] >= 1
        assert dropped["decontaminate"] == {"overlaps with arc_easy": 1}


def test_steps_and_tokens_in_the_records_are_those_of_the_timeline(reference: Reference, graph: Graph):
    phases = [step for step in graph.steps if step.kind.name == "train_phase"]
    assert len(phases) == 17
    run_phases = run_phases_in(phases_in(phases))

    def tokens_at(run_phase: RunPhase, step: int) -> int:
        return (
            run_phase.tokens_at(step)
            if step > run_phase.begin_step
            else tokens_at(run_phases[str(run_phase.parent)], step)
        )

    for phase in phases:
        run_phase, until = run_phases[phase.name], phase.config.until_step
        result = record_of(reference.prefix, phase).result
        assert (result["step"], result["consumed_tokens"]) == (until, run_phase.end_tokens)
        rows = metrics_of(reference.prefix, phase)
        assert [row["step"] for row in rows] == list(range(1, until + 1))
        assert [row["consumed_tokens"] for row in rows] == [tokens_at(run_phase, row["step"]) for row in rows]


def test_weights_are_measured_hot_and_where_a_phase_averages_them_averaged(reference: Reference, graph: Graph):
    evaluations = [step for step in graph.steps if step.kind.name == "ema_eval"]
    assert len(evaluations) == 17
    for evaluation in evaluations:
        phase = evaluation.config.phase.step
        result = record_of(reference.prefix, evaluation).result
        trained = record_of(reference.prefix, phase).result
        assert (result["step"], result["consumed_tokens"]) == (trained["step"], trained["consumed_tokens"])
        assert set(result["hot"]) == {"code", "math", "questions", "web"}
        assert bool(trained["averages"]) == bool(phase.config.averages) == (phase.name != "kestrel")
        assert len(result["averages"]) == len(trained["averages"])
        for measured in result["averages"]:
            assert set(measured["by_domain"]) == set(result["hot"])
            assert all(measured["by_domain"][domain] != result["hot"][domain] for domain in result["hot"])


def test_the_second_run_says_that_there_is_nothing_to_do_and_starts_nothing(finished: Driver, reference: Reference):
    before = tree(finished.prefix)
    again = finished()
    assert again.code == 0
    assert again.output.startswith("nothing to do: 74 steps, all done\n")
    assert again.ran == []
    assert "report: " in again.output
    assert tree(finished.prefix) == before


def test_one_changed_number_runs_its_phase_and_what_follows_and_touches_nothing_else(
    finished: Driver, reference: Reference, graph: Graph
):
    change = ("--set", "starling.z_loss=2e-4")
    expected = graph.descendants("starling")
    assert {"starling", "deeper_starling", "ema_eval/starling", "lm_eval/starling", "report"} <= expected
    assert not {"kestrel", "phoenix", "jellyfish", "dessert", "ema_eval/phoenix", "lm_eval/jellyfish"} & expected
    plan = finished("--dry-run", "--every-step", *change)
    assert plan.code == 2
    table = [line.split()[:2] for line in plan.output.split("\n\n")[0].splitlines() if not line.startswith(" ")]
    assert {name for name, verdict in table if verdict == "stale"} == expected
    assert {name for name, verdict in table if verdict == "done"} == set(graph.names) - expected

    before = tree(finished.prefix)
    changed = finished(*change)
    assert changed.code == 0, changed.output
    assert set(changed.ran) == expected
    assert len(changed.ran) == len(expected)
    now = committed(finished.prefix)
    assert len(now) == len(reference.committed) + len(expected)
    assert differing({key: now[key] for key in reference.committed}, reference.committed) == []
    after = tree(finished.prefix)
    unchanged = {path for path in before if path.startswith(("commits/", "outputs/", "labels/"))}
    assert [path for path in sorted(unchanged) if after.get(path) != before[path]] == []
    records = Records(LocalStore(str(finished.prefix)))
    assert {records.get(key).name for key in now.keys() - reference.committed.keys()} == expected

    back = finished()
    assert (back.code, back.ran) == (0, [])


def test_a_later_stop_trains_only_the_added_steps_and_moving_it_back_is_done_at_once(finished: Driver, graph: Graph):
    later = ("--set", "deeper_starling.until_step=29", "--until", "deeper_starling")
    plan = finished("--dry-run", *later)
    assert plan.code == 2
    assert "continues from step 27 to 29" in plan.output
    extended = finished(*later)
    assert extended.code == 0, extended.output
    assert extended.ran == ["deeper_starling"]

    short = graph.step("deeper_starling")
    long = dataclasses.replace(short, config=short.config.model_copy(update={"until_step": 29}))
    assert long.digest == short.digest
    events = events_of(finished.prefix, long, record_of(finished.prefix, long).attempt)
    assert [event["step"] for event in events if event["event"] == "resume"] == [27]
    assert [event["step"] for event in events if event["event"] in ("checkpoint", "milestone")] == [28, 29]
    rows = metrics_of(finished.prefix, long)
    assert len(rows) == 29
    assert rows[:27] == metrics_of(finished.prefix, short)

    back = finished("--until", "deeper_starling")
    assert (back.code, back.ran) == (0, [])
    assert "nothing to do" in back.output


def test_a_branch_is_planned_run_and_evaluated_alone_and_dropped(finished: Driver, reference: Reference):
    forked = finished(
        "fork", "jellyfish", "--as", "my-spoonbill", "--set", "z_loss=1e-4", "--reason", "is it the head?"
    )
    assert forked.code == 0, forked.errors
    assert "--until ema_eval/my-spoonbill" in forked.output
    plan = finished("--dry-run")
    assert plan.code == 2
    assert "my-spoonbill" in plan.output
    assert "78 steps: 74 done, 4 missing. 4 would run." in plan.output
    branch = finished("--until", "ema_eval/my-spoonbill")
    assert branch.code == 0, branch.output
    assert branch.ran == ["my-spoonbill", "ema_eval/my-spoonbill"]
    compared = finished()
    assert compared.ran == ["sample/my-spoonbill", "report/forks"]
    page = re.search(r"report/forks: (/\S+)", compared.output)
    assert page and "z_loss: 1e-4" in (shown := Path(page[1]).read_text()) and "the head?" in shown
    assert "report/forks" not in branch.output, "there is no report yet"
    assert "my-spoonbill" in shown.partition("Data stalls by phase")[2]
    assert finished("drop", "my-spoonbill").code == 0
    assert "74 steps, all done" in finished().output
    now = committed(finished.prefix)
    assert len(now) == len(reference.committed) + 4
    assert differing({key: now[key] for key in reference.committed}, reference.committed) == []


def test_the_batch_of_a_step_is_found_again_and_has_the_loss_that_was_recorded(
    reference: Reference, graph: Graph, monkeypatch: pytest.MonkeyPatch
):
    check_batch_of_first_step(LocalStore(str(reference.prefix)), graph.step("ocelot"), monkeypatch)


def check_batch_of_first_step(store: LocalStore, phase: Step[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the first batch of a phase is that of its records and of its order, by the loss of each source."""
    step = phase.config.begin_step + 1
    recorded = trained_batch.find_batch(store, phase, step, "batch")
    monkeypatch.setattr(trained_batch, "saved_states", lambda store, digest: [])
    drawn = trained_batch.find_batch(store, phase, step, "batch")
    assert recorded.is_recorded and not drawn.is_recorded
    assert recorded.weights == drawn.weights and recorded.weights is not None
    np.testing.assert_array_equal(recorded.batch.tokens, drawn.batch.tokens)
    places = range(len(recorded.sources))
    assert all(all(row.documents) for row in recorded.rows(store, places))
    log_probs = _predicted(recorded, places)["log_prob"].to_numpy().reshape(len(places), -1)
    for source, loss in recorded.losses.items():
        of_source = log_probs[[name == source for name in recorded.sources]]
        assert -np.nanmean(of_source) == pytest.approx(loss, abs=1e-3)
