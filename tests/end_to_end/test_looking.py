"""Commands and the page over a whole run: one figure has one name, rows and texts are those of the run."""

import contextlib
import io
import json
import re
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.store.local import LocalStore
from pipelines import recipe
from pipelines.live_batches import LiveBatches
from pipelines.phases import phases_in, run_phases_in
from pipelines.run_curves import LoggedPhase
from runtime.report.curve_plots import BITS
from tests.end_to_end.conftest import Reference
from tests.end_to_end.tiny_tootsie import add_arguments, build

LAST = "deeper_starling"


class Look:
    """Calls of the tiny Tootsie's commands in this process, which only read its run."""

    def __init__(self, reference: Reference, ground: Path) -> None:
        self._options = ["--prefix", str(reference.prefix), "--texts", str(ground / "texts")]

    def __call__(self, *words: str, out: io.StringIO | None = None) -> str:
        out = out or io.StringIO()
        with contextlib.redirect_stdout(out):
            code = recipe.main(build, name="tiny", add_arguments=add_arguments, argv=[*words, *self._options])
        assert code == 0, out.getvalue()
        return out.getvalue()


@pytest.fixture
def look(reference: Reference, ground: Path) -> Look:
    return Look(reference, ground)


@pytest.fixture
def store(reference: Reference) -> LocalStore:
    return LocalStore(str(reference.prefix))


def record_of(store: LocalStore, step: Step[Any]) -> Record:
    return Records(store).get(step.key)


def logged(store: LocalStore, graph: Graph, name: str) -> LoggedPhase:
    phases = phases_in(graph.steps)
    phase = LoggedPhase(store, phases[name], run_phases_in(phases)[name], longest=phases[name], is_main=True)
    phase.refresh()
    return phase


def test_bits_per_byte_of_a_phase_are_one_figure_in_the_terminal_the_report_and_the_table_of_runs(
    reference: Reference, graph: Graph, store: LocalStore, look: Look
) -> None:
    evaluated = record_of(store, graph.step(f"ema_eval/{LAST}")).result
    (average,) = evaluated["averages"]
    mean = average["mean"]
    assert mean == pytest.approx(statistics.fmean(average["by_domain"].values()))
    name = f"mean of {len(average['by_domain'])} held-out domains"
    assert f"{LAST}: {mean:.3f} bits per byte (EMA weights, {name})" in reference.ended.output
    report = record_of(store, graph.step("report"))
    page = (reference.prefix / report.output_path / report.result["page"]).read_text()
    assert f"<b>{mean:.3f}</b><small>bits per byte, {name}, EMA weights of {LAST}</small>" in page
    rows = re.findall(rf">{LAST}</th><td>([^<]+)</td><td[^>]*>([\d.]+)</td>", page)
    assert (average["average"]["name"], f"{mean:.4f}") in rows
    (run,) = json.loads(look("runs", LAST, "--json"))["runs"]
    assert run["bits_per_byte"] == mean


def test_bits_per_byte_while_training_are_one_figure_on_the_page_and_in_curves_and_are_named_so(
    graph: Graph, store: LocalStore, look: Look
) -> None:
    (line,) = [line for line in logged(store, graph, LAST).lines() if (line.panel, line.name) == (BITS, LAST)]
    shown = look("curves", LAST)
    assert f"{line.values[-1]:.4f} bits per byte (weights, mean of " in shown and "while training)" in shown


def test_the_rows_that_the_page_shows_are_those_of_the_step(graph: Graph, store: LocalStore) -> None:
    session: Any = SimpleNamespace(store=store, line=lambda *words: " ".join(words))
    phase = logged(store, graph, LAST)
    batches = LiveBatches(session, [phase])
    step = graph.step(LAST).config.until_step - 1
    found = batches.data({"phase": LAST, "tokens": str(round(phase.tokens_at(step)))})
    assert (found["step"], found["is_recorded"]) == (step, True)
    config = graph.step(LAST).config
    assert sum(each["rows"] for each in found["sources"]) == config.global_batch_size
    for row in found["rows"]:
        assert sum(each["tokens"] for each in row["documents"]) == config.sequence_length
        assert all(each["document"] and each["text"] for each in row["documents"])


def test_batch_shows_rows_and_their_losses_by_the_weights_before_the_step(
    graph: Graph, look: Look, tmp_path: Path
) -> None:
    config = graph.step(LAST).config
    page = tmp_path / "batch.html"
    found, _ = json.JSONDecoder().raw_decode(
        look("batch", f"{LAST}@{config.until_step}", "--heat", "--json", "--page", str(page))
    )
    assert found["weights_of_step"] == config.begin_step and found["is_recorded"]
    losses = [row["loss"] for row in found["rows"]]
    assert losses == sorted(losses, reverse=True) and len(losses) == config.global_batch_size
    tokens = found["rows"][0]["tokens"]
    assert -statistics.fmean(each["log_prob"] for each in tokens if "log_prob" in each) == pytest.approx(
        losses[0], abs=1e-3
    )
    assert found["rows"][0]["documents"][0]["document"] in page.read_text()


class Pieces(io.StringIO):
    """Output that keeps what was there at each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[str] = []

    def flush(self) -> None:
        if self.getvalue() != "".join(self.flushed[-1:]):
            self.flushed.append(self.getvalue())


def test_sample_streams_the_same_text_for_the_same_seed_also_from_a_file(look: Look, tmp_path: Path) -> None:
    prompts, out = ("The module", "def open"), Pieces()
    options = ("--temperature", "0.8", "--top-p", "0.9", "--seed", "3", "--max-new-tokens", "20")
    shown = look("sample", LAST, "--prompt", prompts[0], "--prompt", prompts[1], *options, out=out)
    in_a_line = [text for text in out.flushed if not text.endswith("\n")]
    assert any(len(text) > len(prompts[0]) and prompts[1] not in text for text in in_a_line), "as it comes, in order"
    file, template = tmp_path / "prompts.txt", tmp_path / "chat_template.jinja"
    file.write_text("\n".join(prompts) + "\n")
    again = json.loads(look("sample", LAST, "--prompts", str(file), *options, "--json"))["texts"]
    assert [text["prompt"] for text in again] == [*prompts]
    assert shown.strip() == "\n\n".join(f"{text['prompt']}{text['text']}" for text in again).strip()
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>")
    chat = look(
        "sample", LAST, "--prompt", prompts[0], "--max-new-tokens", "4", "--chat-template", str(template), "--json"
    )
    assert json.loads(chat)["texts"][0]["prompt"] == prompts[0]
