"""`runs` lists what the records of all prefixes say: changes against the base, scores, and what is running."""

import html
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import FileEntry, Record, Records, attempt_path, new_attempt
from marin_dag.store.prefix import open_store
from marin_dag.values.changes import value_change
from pipelines import tootsie
from pipelines.corpus import laptop_corpus
from pipelines.run_comparison import lines_of
from pipelines.runs import Run, in_few_digits, read_runs
from pipelines.runs_command import rendered
from pipelines.scales import LAPTOP
from runtime.optim.schedule import Cosine, Cycles, Linear, WsdS
from runtime.report.curve_plots import LOSS
from runtime.report.recipe import described
from runtime.tables.parquet_bytes import to_parquet
from runtime.tracking.metrics import MetricsRow, MetricsTable
from tests.browser import NEEDS_CHROMIUM, running_browser
from tests.catalogue import check_message

BY_KIND: dict[str, dict[str, Any]] = {
    "train_phase": {"consumed_tokens": 1_000, "final_loss": 3.5},
    "ema_eval": {
        "hot_mean": 2.5,
        "hot": {"code": 3.0, "web": 2.0},
        "averages": [{"mean": 2.25, "average": {"name": "averaged"}, "by_domain": {"code": 2.5, "web": 2.0}}],
        "num_tokens": {"code": 1_000, "web": 1_000},
        "num_bytes": {"code": 3_000, "web": 4_000},
    },
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


def commit(
    prefix: Path,
    step: Step[Any],
    finished: str = "2026-01-02T03:00:00+00:00",
    files: Mapping[str, bytes] = MappingProxyType({}),
    **result: Any,
) -> None:
    attempt = new_attempt()
    store = open_store(str(prefix))
    records, folder = Records(store), attempt_path(step.name, step.digest, attempt)
    for name, data in files.items():
        store.write(f"{folder}/{name}", data)
    manifest = tuple(FileEntry(path=name, size_in_bytes=len(data), crc32c="") for name, data in files.items())
    provenance = Provenance(
        git_commit="0123456789", is_dirty=True, argv=("recipes/tootsie.py", "--set"), host="h", environment="e",
        started="2026-01-02T01:30:00+00:00", finished=finished, computed_with={"device": "TPU v4"},
        resources="v4-8", user="ada", lease_epoch=2,
    )  # fmt: skip
    record = Record(
        key=step.key, digest=step.digest, milestone=step.until, name=step.name, kind=step.kind.name,
        identity=step.identity, result=BY_KIND[step.kind.name] | result, attempt=attempt, manifest=manifest,
        provenance=provenance, output_path=folder,
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
    assert (run["device"], run["machine"], run["user"], run["attempts"], run["cost"]) == (
        "TPU v4",
        "v4-8",
        "ada",
        2,
        None,
    )
    (run,) = listed(tmp_path, capsys, "--price", "v4-8=8")
    assert run["cost"] == 12.0


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


def test_another_schedule_is_in_the_words_of_the_timeline(
    tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    jellyfish = graph.step("jellyfish")
    longer = Cosine(3e-3, 3e-4, decay_steps=1_600, warmup_steps=200, start_step=800)
    cycles = WsdS(1e-3, 1e-4, 1_000, (Cycles(0, 10_000, 1_000),))
    times = [f"2026-01-0{day}T03:00:00+00:00" for day in (2, 3, 4)]
    for schedule, finished in zip(
        (Linear(3e-4, 3e-5, decay_steps=16, start_step=841), longer, cycles), times, strict=True
    ):
        commit(tmp_path, jellyfish.fork("jellyfish", learning_rate=schedule), finished=finished)
    in_words = [described(each) for each in (Linear(3e-4, 3e-5, decay_steps=16, start_step=841), longer, cycles)]
    newest, second, _ = listed(tmp_path, capsys)
    assert second["changed"] == [f"learning_rate: {in_words[0]} -> {in_words[1]}"]
    assert newest["changed"] == [f"learning_rate: {in_words[1]} -> {in_words[2]}"]
    assert tootsie.main(["runs", "--prefix", str(tmp_path)]) == 0
    assert f" -> {in_words[1]}\n" in capsys.readouterr().out


def test_a_later_run_from_scratch_is_compared_with_the_first_one_of_its_recipe(
    tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    kestrel = graph.step("kestrel")
    commit(tmp_path, kestrel.fork("kestrel-seed", seed=7), finished="2026-01-03T03:00:00+00:00")
    commit(tmp_path, kestrel)
    later, first = listed(tmp_path, capsys)
    assert later["base"].startswith("kestrel (") and later["changed"] == [f"seed: {kestrel.config.seed} -> 7"]
    assert (first["name"], first["base"]) == ("kestrel", "")


def test_a_fork_is_compared_with_the_phase_that_was_forked(
    tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    starling = graph.step("starling")
    assert tootsie.main(["fork", "starling", "--as", "forked", "--set", "z_loss=0.125", "--prefix", str(tmp_path)]) == 0
    capsys.readouterr()
    commit(tmp_path, starling)
    commit(tmp_path, starling.fork("forked", z_loss=0.125))
    (run,) = listed(tmp_path, capsys, "forked")
    assert run["base"].startswith("starling") and run["changed"] == [f"z_loss: {starling.config.z_loss} -> 0.125"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.7, "0.7 s"),
        (59.94, "59.9 s"),
        (60, "1.0 min"),
        (3_596, "59.9 min"),
        (3_597, "1.00 h"),
        (9_000_000, "2,500.00 h"),
    ],
)
def test_a_time_below_an_hour_is_in_seconds_or_minutes(seconds: float, shown: str) -> None:
    run = Run("runs", "tootsie.py", "one", "a" * 8, "done", hours=seconds / 3_600)
    headings, row, *_ = rendered([run], {}).splitlines()
    assert row.index(f" {shown} ") and " time " in headings


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
    page = drawn.read_text()
    assert "piqa" in page and "checkbox" not in page, "one run has no other to be compared with"


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


def predictions(**losses: float) -> bytes:
    """Return the predictions of two windows a domain, each of two tokens with the same loss."""
    rows = [
        {"weights": "averaged", "domain": name.partition("_")[0], "window": name, "log_prob": log_prob}
        for name, loss in losses.items()
        for log_prob in (None, -loss, -loss)
    ]
    return to_parquet(pa.Table.from_pylist(rows))


def metrics(*steps: int) -> bytes:
    table = MetricsTable()
    for step in steps:
        table.append(MetricsRow(step, 10 * step, 4, 9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7))
    return table.to_parquet()


def comparison_of(prefix: Path, capsys: pytest.CaptureFixture[str], *names: str) -> dict[str, Any]:
    assert tootsie.main(["runs", *names, "--compare", "--prefix", str(prefix), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["comparison"]
    return found


def compared(prefix: Path, capsys: pytest.CaptureFixture[str], *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found = comparison_of(prefix, capsys, *names)
    return found["settings"], {measure["name"]: measure for measure in found["measures"]}


MEAN = "bits per byte, mean of 2 domains"


@pytest.fixture
def forked(tmp_path: Path, graph: Graph) -> tuple[Path, Step[Any], Step[Any]]:
    """Return a prefix with starling, a fork of it, and their evaluations, which kept the same windows."""
    base, evaluation = graph.step("starling"), graph.step("ema_eval/starling")
    fork = base.fork("forked", z_loss=0.125)
    tables = {"metrics.parquet/000000.parquet": metrics(1, 2), "metrics.parquet/000001.parquet": metrics(3)}
    commit(tmp_path, base, files=tables, metrics="metrics.parquet")
    commit(tmp_path, evaluation, files={"predictions.parquet": predictions(code_1=2, code_2=4, web_1=3, web_2=3)})
    commit(tmp_path, fork, files={"metrics.parquet": metrics(1, 2)}, metrics="metrics.parquet", final_loss=3.25)
    measured = {"code": 2.25, "web": 2.0}
    average = {"mean": 2.125, "average": {"name": "averaged"}, "by_domain": measured}
    windows = predictions(code_1=1, code_2=3.5, web_1=3, web_2=3)
    on_fork = evaluation.forked("ema_eval/forked", [value_change("phase", fork)])
    commit(tmp_path, on_fork, files={"predictions.parquet": windows}, averages=[average])
    return tmp_path, base, fork


def test_a_fork_is_compared_with_its_base_window_by_window(
    forked: tuple[Path, Step[Any], Step[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    prefix, base, _ = forked
    settings, measures = compared(prefix, capsys, "starling", "forked")
    assert settings == {"z_loss": [str(base.config.z_loss), "0.125"]}
    assert measures["train loss"]["values"] == [3.5, 3.25]
    assert measures["bits per byte, code"]["values"] == [2.5, 2.25]
    _, difference = measures[MEAN]["differences"]
    # Two windows of two tokens differ by 1 and 0.5 nats; a domain has 500 such windows.
    spread = 0.125 * (1_000 / (3_000 * math.log(2))) ** 2
    assert difference["value"] == -0.125 and difference["source"] == "held-out windows" and not difference["is_noise"]
    assert math.isclose(difference["stderr"], math.sqrt(spread / 500) / 2)
    assert compared(prefix, capsys, "forked", "starling")[1][MEAN]["differences"][1]["value"] == 0.125
    drawn = prefix / "compared.html"
    command = ["runs", "starling", "forked", "--compare", "--prefix", str(prefix)]
    assert tootsie.main(command) == 0
    check_message(capsys.readouterr().out)
    assert tootsie.main([*command, "--page", str(drawn)]) == 0
    assert "z_loss" in drawn.read_text() and LOSS in drawn.read_text()


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_runs_are_sorted_filtered_and_compared_by_clicks(
    forked: tuple[Path, Step[Any], Step[Any]], graph: Graph, tmp_path: Path
) -> None:
    prefix, base, fork = forked
    table = {"metrics.parquet": metrics(1, 2, 3, 4)}
    short = "2026-01-02T01:30:40+00:00"
    commit(prefix, graph.step("phoenix"), short, files=table, metrics="metrics.parquet", final_loss=3.0)
    drawn = tmp_path / "runs.html"
    assert tootsie.main(["runs", "--prefix", str(prefix), "--page", str(drawn)]) == 0
    problems: list[str] = []
    with running_browser() as browser:
        shown = browser.new_page()
        shown.on("console", lambda message: message.type in ("error", "warning") and problems.append(message.text))
        shown.on("pageerror", lambda error: problems.append(str(error)))
        shown.goto(drawn.as_uri())

        def names() -> list[str]:
            return [text.strip() for text in shown.locator("#runs tbody tr:visible th").all_inner_texts()]

        heading = shown.locator("#runs thead button", has_text="loss")
        heading.click()
        assert names() == ["phoenix", "forked", "starling"], "the losses are 3.0, 3.25 and 3.5"
        heading.click()
        assert names() == ["starling", "forked", "phoenix"]
        shown.locator("#runs thead button", has_text="time").click()
        assert names()[0] == "phoenix", "40 s is less than 1.5 h"
        bits = shown.locator("#runs thead button", has_text="bits/byte")
        for _ in range(2):
            bits.click()
            assert names()[-1] == "phoenix", "a run without the figure is the last in either direction"
        shown.locator("#filter").fill("FORK done")
        assert names() == ["forked"] and shown.locator("#count").inner_text() == "1 of 3"
        shown.locator("#filter").fill("")

        shown.locator("#runs input[value=starling]").check()
        assert not shown.locator("#comparison").is_visible(), "one run has nothing to be compared with"
        shown.locator("#runs input[value=forked]").check()
        row = shown.locator("#comparison tbody tr", has_text="z_loss")
        assert row.locator("td").all_inner_texts() == [str(base.config.z_loss), str(fork.config.z_loss)]
        assert shown.locator("#comparison tbody tr", has_text="until_step").count() == 0, "both end at the same step"
        mean = shown.locator("#comparison tbody tr", has_text=MEAN).locator("td").all_inner_texts()
        assert mean[0] == "2.2500" and mean[1].startswith("2.1250 (-0.1250 ±")
        shown.locator("#comparison .bk-Canvas").first.wait_for(timeout=30_000)
        chips = shown.locator("#comparison [data-series]:visible")
        assert chips.all_inner_texts() == ["starling", "forked"] or chips.all_inner_texts() == ["forked", "starling"]
        visible = (
            "Bokeh.documents.flatMap(d => d.roots())[0].renderers.filter(r => r.visible).map(r => r.tags[0]).sort()"
        )
        assert set(shown.evaluate(visible)) == {"starling", "forked"}, "the curve of the third run is hidden"
        shown.locator("#runs input[value=phoenix]").check()
        with_a_third = shown.locator("#comparison tbody tr", has_text=MEAN).locator("td").all_inner_texts()
        assert with_a_third == [*mean, "-"], "the third run has no evaluation"
        assert set(shown.evaluate(visible)) == {"starling", "forked", "phoenix"}
        shown.locator("#runs input[value=starling]").uncheck()
        assert shown.locator("#comparison thead th").all_inner_texts() == ["", "forked", "phoenix"], "another base"
    assert problems == []


def page_of(prefix: Path, *words: str) -> tuple[str, dict[str, Any]]:
    """Return the page of runs, and its data: title of the first run -> title of the other -> rows and notes."""
    drawn = prefix / "runs.html"
    assert tootsie.main(["runs", "--prefix", str(prefix), "--page", str(drawn), *words]) == 0
    page = drawn.read_text()
    data = page.partition('<script id="runs-data" type="application/json">')[2].partition("</script>")[0]
    return page, json.loads(data)


def test_two_runs_have_the_same_figures_whatever_runs_stand_beside_them(
    forked: tuple[Path, Step[Any], Step[Any]], graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix, _, _ = forked
    alone = comparison_of(prefix, capsys, "starling", "forked")
    of_page = page_of(prefix)[1]["starling"]["forked"]
    third, evaluation = graph.step("phoenix"), graph.step("ema_eval/phoenix")
    commit(prefix, third, files={"metrics.parquet": metrics(1)}, metrics="metrics.parquet")
    measured = {"mean": 2.0, "average": {"name": "averaged"}, "by_domain": {"code": 2.0}}
    other_text = {"num_bytes": {"code": 5_000}, "num_tokens": {"code": 1_000}}
    commit(prefix, evaluation, averages=[measured], **other_text)
    page = page_of(prefix)[1]
    assert page["starling"]["forked"] == of_page
    assert not any("Held-out text" in note for note in of_page["notes"])
    assert any("Held-out text of code" in note for note in page["starling"]["phoenix"]["notes"])
    capsys.readouterr()
    together = {
        each["name"]: each for each in comparison_of(prefix, capsys, "starling", "forked", "phoenix")["measures"]
    }
    for measure in alone["measures"]:
        assert together[measure["name"]]["values"][:2] == measure["values"], measure["name"]
        assert together[measure["name"]]["differences"][:2] == measure["differences"], measure["name"]
    assert together[MEAN]["values"][2] is None and together["bits per byte, mean of code"]["values"] == [2.5, None, 2.0]
    assert ["bits per byte, mean of code", "2.5000", "2.0000 (-0.5000)"] in page["starling"]["phoenix"]["figures"]


def test_losses_of_runs_of_unequal_length_stand_at_the_same_tokens(tmp_path: Path, graph: Graph) -> None:
    for name, loss, steps in (("kestrel", 4.5, 2), ("phoenix", 6.5, 4)):
        table = MetricsTable()
        for step in range(1, steps + 1):
            table.append(MetricsRow(step, 1_000 * step, 4, 9, 0.1, loss - step, 0.3, 0.4, 0.5, 0.6, 0.7))
        step_of = graph.step(name)
        commit(tmp_path / name, step_of, files={"metrics.parquet": table.to_parquet()}, metrics="metrics.parquet")
    runs = read_runs([str(tmp_path / "kestrel"), str(tmp_path / "phoenix")], forks={})
    drawn = {run.name: lines_of(run, run.name)[0] for run in runs}
    shorter, longer = drawn["kestrel"], drawn["phoenix"]
    assert shorter.panel == longer.panel == LOSS
    assert list(shorter.tokens) == [1_000, 2_000] and list(longer.tokens) == [1_000, 2_000, 3_000, 4_000]
    assert list(longer.values[:2] - shorter.values) == [2.0, 2.0]


def test_a_run_under_two_prefixes_has_a_box_for_each(
    tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        table = {"metrics.parquet": metrics(1, 2)}
        commit(tmp_path / name, graph.step("kestrel"), files=table, metrics="metrics.parquet")
    page, data = page_of(tmp_path / "a", "--also", str(tmp_path / "b"))
    boxes = re.findall('type="checkbox" value="([^"]*)"', page)
    assert len(set(boxes)) == 2 and set(boxes) == set(data)
    assert [name in box for box, name in zip(sorted(boxes), (f"{tmp_path}/a", f"{tmp_path}/b"), strict=True)] == [
        True
    ] * 2


@pytest.mark.parametrize("damage", ["no file", "no Parquet", "no row", "no column", "not recorded", "predictions"])
def test_a_run_without_readable_metrics_is_left_out_of_the_comparison_with_a_note(
    forked: tuple[Path, Step[Any], Step[Any]], graph: Graph, damage: str
) -> None:
    prefix, _, _ = forked
    recorded = {} if damage == "not recorded" else {"metrics": "metrics.parquet"}
    tables = {
        "no Parquet": b"PAR1",
        "no row": metrics(),
        "no column": to_parquet(pa.table({"step": [1]})),
        "predictions": metrics(1),
    }
    files = {"metrics.parquet": tables[damage]} if damage in tables else {}
    commit(prefix, graph.step("phoenix"), files=files, **recorded)
    if damage == "predictions":
        commit(prefix, graph.step("ema_eval/phoenix"), files={"predictions.parquet": b"PAR1"})
    page, data = page_of(prefix)
    assert set(data) == {"starling", "forked"}
    (note,) = re.findall("<p>(Not compared: .*?)</p>", page, re.DOTALL)
    check_message(html.unescape(note))


def test_damaged_predictions_are_an_error_that_names_the_file(
    forked: tuple[Path, Step[Any], Step[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    prefix, _, _ = forked
    damaged = next(prefix.rglob("ema_eval/forked*/**/predictions.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-5])
    assert tootsie.main(["runs", "starling", "forked", "--compare", "--prefix", str(prefix)]) == 1
    check_message(capsys.readouterr().err)


def test_repeated_seeds_tell_the_noise_better_than_windows(
    forked: tuple[Path, Step[Any], Step[Any]], graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix, base, _ = forked
    repeated = base.fork("repeated", seed=7)
    commit(prefix, repeated)
    on_repeat = graph.step("ema_eval/starling").forked("ema_eval/repeated", [value_change("phase", repeated)])
    other = {"code": 3_000, "web": 8_000}
    commit(prefix, on_repeat, averages=[], hot_mean=2.5, num_bytes=other)
    assert comparison_of(prefix, capsys, "starling", "forked")["other_text"] == []
    assert comparison_of(prefix, capsys, "starling", "repeated")["other_text"] == ["web"]
    _, difference = compared(prefix, capsys, "starling", "forked")[1][MEAN]["differences"]
    # 2.25 and 2.5 have a variance of 1/32.
    assert difference["source"] == "seeds" and difference["is_noise"]
    assert math.isclose(difference["stderr"], 0.25)


def test_a_setting_has_six_digits_unless_these_hide_its_change() -> None:
    assert in_few_digits("{a: 0.57142857142857142, b: 1e-05}", "0.5") == ("{a: 0.571429, b: 1e-05}", "0.5")
    assert in_few_digits("0.3333333333", "0.3333333334") == ("0.3333333333", "0.3333333334")
    assert in_few_digits("v0.12345678", "0.12345678.txt") == ("v0.12345678", "0.12345678.txt")


def test_a_comparison_needs_two_finished_runs_and_a_price_a_machine(
    tmp_path: Path, graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(tmp_path, graph.step("kestrel"))
    for words in (["--compare"], ["--price", "v5p-8=1"], ["--price", "v4-8=nan"]):
        assert tootsie.main(["runs", "--prefix", str(tmp_path), *words]) == 1
        check_message(capsys.readouterr().err.partition(" `")[0])
