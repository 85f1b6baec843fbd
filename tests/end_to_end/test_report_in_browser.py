"""The page of a whole run in a real browser: a reader who knows a question finds the answer by clicking."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Record, Records
from marin_dag.store.local import LocalStore
from tests.browser import NEEDS_CHROMIUM, running_browser
from tests.end_to_end.conftest import Reference
from tests.runtime.report.test_browser import figure_of, opener, place_of, words_of

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
PHASE = "jellyfish"
"""A phase with one mixture."""


@pytest.fixture(scope="module")
def shown(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield the page whose address the run ended with, opened once."""
    address = reference.ended.output.splitlines()[-1].removeprefix("  report: ")
    with running_browser() as browser, opener(browser, tmp_path_factory.mktemp("page")) as opened:
        yield opened(Path(address).read_text())


def record_of(reference: Reference, graph: Graph, name: str) -> Record:
    return Records(LocalStore(str(reference.prefix))).get(graph.step(name).key)


def table_of(reference: Reference, graph: Graph, name: str, file: str) -> pa.Table:
    return pq.read_table(reference.prefix / record_of(reference, graph, name).output_path / file)


def follow(shown: Any, title: str) -> Any:
    """Click on a link at the top; return its section."""
    link = shown.locator("nav a", has_text=title)
    link.click()
    place = link.get_attribute("href")
    return shown.locator(f"section{place}, section:has({place})")


def test_the_loss_and_the_mixture_at_a_number_of_tokens(shown: Any, reference: Reference, graph: Graph) -> None:
    config = graph.step(PHASE).config
    rows = table_of(reference, graph, PHASE, "metrics.parquet").to_pylist()
    row = rows[(config.begin_step + config.until_step) // 2]
    follow(shown, "Train loss")
    figure = figure_of(shown, "loss")
    shown.mouse.move(*place_of(figure, row["consumed_tokens"], row["loss"]))
    tip = shown.locator(".bk-Tooltip", has_text=f"{row['consumed_tokens']:,}").first
    tip.wait_for(timeout=10_000)
    (value,) = re.findall(r"value\s*:?\s*([\d.]+)", words_of(tip))
    assert float(value) == pytest.approx(row["loss"], abs=5e-5)

    drawn = table_of(reference, graph, PHASE, "source_losses.parquet")
    drawn = drawn.filter((pc.field("step") > config.begin_step) & (pc.field("step") <= config.until_step))
    counts = drawn.group_by("source").aggregate([("num_sequences", "sum")]).to_pylist()
    total = sum(each["num_sequences_sum"] for each in counts)
    follow(shown, "Timeline")
    figure = shown.locator("section:has(#timeline) figure").nth(1)
    figure.scroll_into_view_if_needed()
    figure.locator(".bk-Canvas").wait_for(timeout=30_000)
    shown.mouse.move(*place_of(figure, row["consumed_tokens"], 0.02))
    tip = shown.locator(".bk-Tooltip", has_text="of sequences").first
    tip.wait_for(timeout=10_000)
    source, share = re.findall(r"(\w+): ([\d.]+%) of sequences", words_of(tip))[0]
    shares = {each["source"]: f"{each['num_sequences_sum'] / total:.2%}" for each in counts}
    assert shares[source] == share


def test_what_a_branch_changed_and_whether_it_helped(shown: Any, reference: Reference, graph: Graph) -> None:
    recipe = follow(shown, "Recipe").inner_text()
    assert re.search(r"↳ spoonbill_focused_zloss\s+spoonbill_norms_half\s+z_loss\s+\S+\s+1e-4", recipe)
    domains = follow(shown, "Bits per byte").locator("tbody tr").all_inner_texts()
    for name in ("spoonbill_focused_zloss", "spoonbill_hypnotic"):
        (average,) = record_of(reference, graph, f"ema_eval/{name}").result["averages"]
        (row,) = [row for row in domains if row.startswith(f"↳ {name}")]
        assert f"{average['mean']:.4f}" in row


def test_the_hardest_token_of_a_window_after_each_phase(shown: Any, reference: Reference, graph: Graph) -> None:
    section = follow(shown, "token by token")
    labels = section.locator("#window option").all_inner_texts()
    (label,) = [label for label in labels if label.startswith("math")]
    section.locator("#window").select_option(label=label)
    window, last = label.split()[1].removesuffix(":"), int(section.locator("#moment").get_attribute("max"))
    seen = []
    for place in range(last + 1):
        section.locator("#moment").fill(str(place))
        phase, _, weights = section.locator("#moment-name").inner_text().partition(", ")
        found = table_of(reference, graph, f"ema_eval/{phase}", "predictions.parquet")
        found = found.filter(pc.field("weights") == (weights.removesuffix(" weights") or "hot"))
        least = pc.min(found.filter(pc.field("window") == window)["log_prob"]).as_py()
        first, second, *_ = section.locator("#token").inner_text().splitlines()
        assert json.loads(first.removeprefix("hardest token: "))
        assert f"loss {-least:.3f} nats" in second
        seen.append(phase)
    assert seen[-6:] == ["kestrel", "ocelot", "jellyfish", "phoenix", "starling", "deeper_starling"]


def test_what_the_phases_write_why_a_document_was_dropped_and_what_training_waited_for(shown: Any) -> None:
    texts = follow(shown, "Texts").locator(".texts").all()
    assert len(texts) == 3
    assert [text.splitlines()[0].split(",")[0] for text in texts[0].locator(".sample").all_inner_texts()] == [
        "kestrel", "ocelot", "jellyfish", "phoenix", "starling", "deeper_starling"
    ]  # fmt: skip
    stage = follow(shown, "What was filtered").locator("details", has_text="web, filter:").first
    stage.locator("summary").first.click()
    reason = stage.locator("details", has_text="too few words:").first
    reason.locator("summary").click()
    assert "short" in reason.locator("pre").all_inner_texts()
    stalls = follow(shown, "While it trained").locator("tbody tr").all_inner_texts()
    assert any(row.startswith("kestrel") for row in stalls)
    shown.locator("section#run figure .bk-Canvas").first.wait_for(timeout=30_000)
