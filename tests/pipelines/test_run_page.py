"""The page of a run: its curves over all attempts, thinned for what is shown, its alarms and its views."""

import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from marin_dag.cli import polled
from marin_dag.cli.watched import Watched
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.plan.plan import make_plan
from pipelines import live_batches, run_curves, tootsie
from pipelines.corpus import laptop_corpus
from pipelines.run_curves import LoggedPhase
from pipelines.run_page import RunPage
from pipelines.scales import LAPTOP
from pipelines.trained_batch import Row, TrainedBatch
from runtime.data.cache import CacheError
from runtime.data.order import LoaderError
from runtime.report.curve_plots import ANSWERS, BITS, GRADIENT, LOSS, MOST_POINTS, SPEED, Line, line_panels, thinned
from runtime.report.panel import MAIN_LINE, main_and_branches, token_range
from runtime.tables.parquet_bytes import TableError
from runtime.tracking.curves import ANSWER_BITS_PER_BYTE
from runtime.training.checkpoint_reader import CheckpointError
from steps.report import ReportResult
from steps.sample import SampleResult, SampleText
from tests import browser
from tests.browser import NEEDS_CHROMIUM
from tests.catalogue import check_message, expect_error
from tests.pipelines.committed import commit
from tests.pipelines.test_curves_command import save

TEXT = {"bits_per_byte": {"hot": {"web": 1.0}}, "tokens_per_domain": 64}
STALLS = {"elapsed_seconds": 10.0, "waited_for_data_seconds": 1.0, "waited_by_cause": {"drawing": 1.0}}


def log(prefix, digest, attempt, *events):
    file = prefix / "work" / digest / "events" / attempt
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(event)}\n" for event in events) + '{"event": "cut sh')


def progress(step, loss, speed=1000.0):
    fields = {"event": "progress", "step": step, "consumed_tokens": step * 1000}
    return {**fields, "loss": loss, "tokens_per_second": speed, **STALLS}


def begin(step):
    return {"event": "begin", "step": step, "elapsed_seconds": 0.0}


def validation(step, bits):
    return {
        "event": "validation",
        "step": step,
        "consumed_tokens": step * 1000,
        "mean_bits_per_byte": {"hot": bits},
        **TEXT,
    }


@pytest.fixture(scope="module")
def graph():
    return Graph([tootsie.tootsie(LAPTOP, laptop_corpus(LAPTOP))[0]])


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Return the session of a call of `page`, caught before it serves."""
    found = []
    monkeypatch.setattr(polled, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(
        "marin_dag.cli.page_server.PageServer.__init__", lambda *_: (_ for _ in ()).throw(UserError("x"))
    )
    monkeypatch.setattr("pipelines.run_page.RunPage.__init__", lambda self, session, graph: found.append(session))
    tootsie.main(["page", "--prefix", str(tmp_path)])
    monkeypatch.undo()
    monkeypatch.setattr(polled, "POLL_SECONDS", 0.0)
    return found[0]


@pytest.fixture
def trained(tmp_path, graph):
    """Log a run whose second attempt restarts at step 20 after an alarm at step 30; return its digest."""
    digest = graph.step("kestrel").digest
    save(tmp_path, digest, 20, loss=3.0)
    odd = {"row": 2, "source": "math", "row_loss": 11.67, "median_row_loss": 3.94}
    alarm = {"event": "alarm", "monitor": "loss_spike", "figure": 9.5, "limit": 4.25, **odd}
    log(
        tmp_path, digest, "1.jsonl", begin(0), validation(0, 8.0), progress(10, 3.5, 500.0),
        {**alarm, "step": 15}, progress(30, 9.0), {**alarm, "step": 30},
    )  # fmt: skip
    log(tmp_path, digest, "2.jsonl", begin(20), progress(25, 2.5), validation(25, 2.0))
    log(tmp_path, digest, "2.host1.jsonl", begin(0), progress(99, 99.0))
    return digest


def test_curves_span_all_attempts_without_repeated_training_steps(session, graph, trained):
    figures = RunPage(session, graph).values(None, None)["figures"]
    loss = figures[LOSS]["lines"]["kestrel"]
    assert loss["x"] == [step * 1000 for step in [*range(1, 21), 25]] and loss["y"] == [3.0] * 20 + [2.5]
    assert figures[BITS]["lines"]["kestrel"] == {"x": [0, 25_000], "y": [8, 2]}
    assert figures[SPEED]["lines"]["kestrel"] == {"x": [10_000, 25_000], "y": [500, 1000]}
    assert figures["end"] == pytest.approx(25_250) and len(figures[GRADIENT]["lines"]["kestrel"]["x"]) == 20
    assert list(RunPage(session, graph).values(11_000.0, 12_000.0)["figures"][LOSS]["lines"]["kestrel"]["x"]) == [
        10_000, 11_000, 12_000, 13_000,
    ]  # fmt: skip


def test_each_line_names_the_phase_whose_rows_a_click_shows(session, graph, trained, tmp_path):
    answers = {ANSWER_BITS_PER_BYTE: {"hot": {"piqa": 1.0}}, "num_answers": {"piqa": 3}}
    log(tmp_path, trained, "3.jsonl", begin(25), validation(26, 2.0) | answers)
    phases = run_curves.logged_phases(session, graph, [["kestrel"], ["phoenix"]])
    for phase in phases:
        phase.refresh()
    lines = [line for phase in phases for line in phase.lines()]
    legend = main_and_branches(["piqa"])
    panels = {panel.plot.title.text: panel for panel in line_panels(lines, legend, token_range(1))}
    assert [mark.tags for mark in panels[ANSWERS].plot.renderers] == [["piqa", "kestrel"]]
    names = {"kestrel": "kestrel", "phoenix": "phoenix", "phoenix, averaged weights": "phoenix"}
    assert {mark.name: mark.tags[1] for mark in panels[BITS].plot.renderers} == names
    assert {mark.tags[1] for panel in panels.values() for mark in panel.plot.renderers} == {"kestrel", "phoenix"}


def test_alarms_say_where_they_are_and_which_command_helps(session, graph, trained):
    (alarm,) = RunPage(session, graph).values(None, None)["alarms"]
    assert (alarm["name"], alarm["at"]) == ("kestrel", graph.step("kestrel").config.global_batch_size * 15 * 256)
    assert "rollback kestrel" in alarm["fix"] and "11.67" in alarm["text"]


@pytest.fixture
def batches(monkeypatch):
    """Return the training steps whose batches are read: two rows of web and two of math, with a letter a token."""
    read = []

    def find_batch(store, phase, step, command):
        read.append((phase.name, step))

        def rows(store, places):
            letters = np.arange(97, 101)
            return [Row(at, sources[at], 1, letters, np.array([0, 0, 0, 1]), [f"{at}#<b>", None]) for at in places]

        sources = ["web", "web", "math", "math"]
        losses = {"math": 7.8, "web": math.nan}
        found = SimpleNamespace(step=step, is_recorded=step < 25, sources=sources, losses=losses, rows=rows)
        found.data = lambda: TrainedBatch.data(found)
        return found

    tokenizer = SimpleNamespace(get_vocab_size=lambda: 128)
    monkeypatch.setattr(live_batches, "find_batch", find_batch)
    monkeypatch.setattr(live_batches, "tokenizer_of", lambda *_: SimpleNamespace(tokenizer=tokenizer))
    monkeypatch.setattr("runtime.data.token_bytes.token_texts", lambda tokenizer, tokens: [*map(chr, tokens)])
    return read


def test_an_alarm_and_a_point_of_a_curve_show_the_rows_of_their_training_step(session, graph, trained, batches):
    page = RunPage(session, graph)
    (alarm,) = page.values(None, None)["alarms"]
    found = page.data({"phase": alarm["name"], "step": str(alarm["step"])})
    assert (found["step"], [row["row"] for row in found["rows"]]) == (15, [2, 0, 3, 1]), "the odd row is the first"
    assert [(row.get("loss"), row.get("others")) for row in found["rows"][:2]] == [(11.67, 3.94), (None, None)]
    documents = [{"document": "2#<b>", "tokens": 3, "text": "abc"}, {"document": None, "tokens": 1, "text": "d"}]
    assert found["rows"][0]["documents"] == documents and found["is_recorded"]
    assert found["sources"] == [{"name": "math", "rows": 2, "loss": 7.8}, {"name": "web", "rows": 2, "loss": None}]
    assert "batch kestrel@15 --heat" in found["command"]
    of_web = page.data({"phase": "kestrel", "tokens": str(round(alarm["at"])), "source": "web"})
    assert (of_web["step"], [row["row"] for row in of_web["rows"]]) == (15, [0, 1])
    assert batches == [("kestrel", 15)], "a recorded batch is read once"
    for _ in range(2):
        page.data({"phase": "kestrel", "step": "40"})
    assert batches[1:] == [("kestrel", 40)] * 2, "one that is not recorded yet may change"


@pytest.mark.parametrize(
    "query", [{"phase": "x", "step": "1"}, {"phase": "kestrel"}, {"phase": "kestrel", "step": "-1"},
              {"phase": "kestrel", "step": "9" * 19}, {"phase": "kestrel", "step": "0"}],
)  # fmt: skip
def test_rows_of_no_training_step_are_refused(session, graph, trained, query):
    with expect_error(UserError):
        RunPage(session, graph).data(query)


def test_a_batch_that_was_asked_for_again_is_kept_and_the_oldest_is_forgotten(session, graph, batches):
    page = RunPage(session, graph)
    for step in (1, 2, 3, 4, 3, 3, 1, 5, 1, 3, 4, 2):
        page.data({"phase": "kestrel", "step": str(step)})
    assert [step for _, step in batches] == [1, 2, 3, 4, 5, 2], "5 took the place of 2"


def test_a_slow_read_delays_no_other_training_step_and_equal_clicks_read_once(session, graph, batches, monkeypatch):
    page, is_open, find_batch = RunPage(session, graph), threading.Event(), live_batches.find_batch

    def slow(store, phase, step, command):
        found = find_batch(store, phase, step, command)
        assert step != 7 or is_open.wait(60)
        return found

    monkeypatch.setattr(live_batches, "find_batch", slow)
    with ThreadPoolExecutor(3) as viewers:
        clicks = [viewers.submit(page.data, {"phase": "kestrel", "step": "7"}) for _ in range(2)]
        try:
            other = viewers.submit(page.data, {"phase": "kestrel", "step": "8"})
            assert other.result(60)["step"] == 8 and not any(click.done() for click in clicks)
        finally:
            is_open.set()
        assert [click.result(60)["step"] for click in clicks] == [7, 7]
    assert sorted(batches) == [("kestrel", 7), ("kestrel", 8)]


@pytest.mark.parametrize("error", [CacheError, CheckpointError, LoaderError, TableError])
def test_damaged_data_is_an_error_of_the_page_and_of_the_command(session, graph, tmp_path, capsys, monkeypatch, error):
    def find_batch(*_):
        raise error("web/train: cut short.")

    monkeypatch.setattr(live_batches, "find_batch", find_batch)
    monkeypatch.setattr("pipelines.batch_command.find_batch", find_batch)
    with expect_error(UserError):
        RunPage(session, graph).data({"phase": "kestrel", "step": "1"})
    assert tootsie.main(["batch", "kestrel@1", "--prefix", str(tmp_path)]) == 1
    check_message(capsys.readouterr().err)


def test_the_training_step_of_a_number_of_tokens_is_that_after_which_a_run_has_them(session, graph):
    for phase in run_curves.logged_phases(session, graph, [["kestrel"], ["phoenix"]]):
        config = graph.step(phase.name).config
        for step in (config.begin_step + 1, config.until_step):
            assert phase.step_at(round(phase.tokens_at(step))) == step
        assert phase.step_at(0) == config.begin_step + 1 and phase.step_at(10**12) == config.until_step


def test_phases_of_one_digest_show_the_rows_of_the_one_that_ends_last(session, graph, batches, tmp_path):
    half = graph.step("kestrel").fork("half", until_step=20)
    rest = half.then("rest", until_step=60)
    assert half.digest == rest.digest
    odd = {"row": 2, "source": "math", "row_loss": 11.67, "median_row_loss": 3.94}
    alarm = {"event": "alarm", "step": 30, "monitor": "loss_spike", "figure": 9.5, "limit": 4.25, **odd}
    log(tmp_path, half.digest, "1.jsonl", begin(0), alarm, {**alarm, "step": 35, "monitor": "low_loss"})
    page = RunPage(session, Graph([rest]))
    spike, other = page.values(None, None)["alarms"]
    assert (spike["name"], spike["step"]) == ("half", 30) and "rollback rest" in spike["fix"]
    assert "batch rest@35" in other["fix"]
    for place in ({"step": "30"}, {"tokens": str(round(spike["at"]))}):
        found = page.data({"phase": "half", **place})
        assert found["step"] == 30 and "batch rest@30" in found["command"]
    assert set(batches) == {("rest", 30)}
    (phase,) = run_curves.logged_phases(session, Graph([rest]), [["half", "rest"]])
    assert (phase.step_at(0), phase.step_at(10**12)) == (1, 60)


def test_an_alarm_whose_loss_came_back_needs_no_rollback(session, graph, trained, tmp_path):
    recovered = {"event": "recovered", "step": 15}
    place = {"row": 2, "source": "web", "row_loss": 0.01, "median_row_loss": 4.0}
    odd = {"event": "alarm", "step": 22, "monitor": "low_loss", "figure": 0.1, "limit": 1, **place}
    log(tmp_path, trained, "3.jsonl", begin(20), {"event": "skipped", "step": 21}, recovered, odd)
    alarm, skipped, other = RunPage(session, graph).values(None, None)["alarms"]
    assert "15" in alarm["text"] and alarm["text"].endswith("came back") and "rollback" not in alarm["fix"]
    assert "21" in skipped["text"] and "batch kestrel@22" in other["fix"]


def test_equal_views_are_read_and_drawn_once_and_unchanged_logs_are_not_read_again(
    session, graph, trained, monkeypatch
):
    looks, page = [], RunPage(session, graph)
    monkeypatch.setattr(polled, "POLL_SECONDS", 60.0)
    monkeypatch.setattr(LoggedPhase, "refresh", lambda self: looks.append(self.name))
    with ThreadPoolExecutor(10) as viewers:
        seen = [*viewers.map(lambda _: page.values(None, None), range(10))]
    assert all(values is seen[0] for values in seen), "ten viewers are one"
    assert len(looks) == len(set(looks)) > 0
    monkeypatch.undo()
    monkeypatch.setattr(polled, "POLL_SECONDS", 0.0)
    page.values(None, None)
    monkeypatch.setattr(run_curves, "_kept", lambda *_: pytest.fail("no log has grown"))
    page.values(None, None)


def test_a_long_run_is_thinned_to_what_is_shown_and_keeps_its_extremes():
    tokens = np.arange(1.0, 1_400_001.0)
    values = np.full(len(tokens), 2.0)
    values[700_000], values[700_003] = 11.0, math.nan
    line = Line(LOSS, "long", MAIN_LINE, tokens, values)
    whole = thinned([line], None, None)[LOSS]["lines"]["long"]
    assert len(whole["x"]) <= MOST_POINTS and max(whole["y"]) == 11
    near = thinned([line], 699_990.0, 700_010.0)[LOSS]["lines"]["long"]
    assert near["x"] == [float(x) for x in range(699_989, 700_012) if x != 700_004]


def test_the_report_with_forks_is_a_view_beside_the_report(session, graph):
    report = graph.step("report")
    both = Graph([report, report.fork("report/forks", title="Tootsie, with its forks")])
    for name in ("report", "report/forks"):
        commit(session.store, both.step(name), ReportResult(page="report.html"), output_path=f"made/{name}")
        session.store.write(f"made/{name}/report.html", f"<p>{name}".encode())
    page = RunPage(session, both)
    titles = {view["name"]: view["title"] for view in page.values(None, None)["views"]}
    assert titles["report/forks"] == "Tootsie, with its forks" != titles["report"]
    assert page.view("report/forks") == "<p>report/forks"


def test_a_view_that_is_not_there_is_refused(session, graph, trained):
    for name in ("report", "../x", "heat-map", "texts"):
        with expect_error(UserError):
            RunPage(session, graph).view(name)
    assert "kestrel" in RunPage(session, graph).view("stalls")
    text = SampleText(prompt="<b>", text="a", is_whole=True)
    written = SampleResult(step=1, consumed_tokens=1, weights="hot", texts=(text,))
    commit(session.store, graph.step("sample/kestrel"), written)
    assert "<div>kestrel</div><pre><bdi><b>&lt;b&gt;</b>a</bdi>" in RunPage(session, graph).view("texts")


POINT = """() => {
  const view = Bokeh.index.roots[0], box = view.canvas_view.el.getBoundingClientRect();
  const data = view.model.renderers[0].data_source.data, at = name => data.get(name)[11];
  return [box.x + view.frame.x_scale.compute(at('x')), box.y + view.frame.y_scale.compute(at('y'))] }"""
"""Where the twelfth point of the loss is."""
EMA_POINT = """() => {
  const view = Bokeh.index.roots.find(each => each.model.title.text.startsWith('held-out'));
  view.el.scrollIntoView({block: 'center'});
  const mark = view.model.renderers.find(each => each.name === 'phoenix, averaged weights').data_source.data;
  const box = view.canvas_view.el.getBoundingClientRect(), at = name => mark.get(name)[0];
  return [box.x + view.frame.x_scale.compute(at('x')), box.y + view.frame.y_scale.compute(at('y'))] }"""
"""Where the point of the EMA weights is."""


@pytest.mark.slow
@NEEDS_CHROMIUM
@pytest.mark.parametrize("width", [390, 1100])
def test_the_page_shows_curves_steps_and_views_in_a_browser(session, graph, trained, batches, width, tmp_path):
    measured = validation(10, 4.0) | {"mean_bits_per_byte": {"hot": 4.0, "averaged": 6.0}}
    log(tmp_path, graph.step("phoenix").digest, "1.jsonl", begin(0), measured)
    watched = Watched("tootsie", make_plan(graph, session.store), session.store)
    with browser.run_page(watched, RunPage(session, graph), width=width) as shown:
        shown.locator("#graph .step").first.wait_for(timeout=60_000)
        canvas = shown.locator("figure .bk-Canvas").first
        canvas.wait_for(timeout=60_000)
        shown.locator("#alarms .row").wait_for()
        canvas.scroll_into_view_if_needed()
        shown.mouse.click(*shown.evaluate(POINT))
        shown.locator("#batch-note", has_text="Step 23 of kestrel").wait_for()
        shown.mouse.click(*shown.evaluate(EMA_POINT))
        shown.locator("#batch-note", has_text="of phoenix").wait_for()
        with shown.expect_response(lambda response: "low=" in response.url):
            shown.locator("[data-do=in]").click()
        canvas.hover()
        shown.locator(".bk-Tooltip", has_text="kestrel").first.wait_for(timeout=30_000)
        shown.locator("#alarms button").click()
        shown.locator("#batch-rows .reason", has_text="11.670").wait_for()
        assert shown.locator("#batch b").count() == 0, "an id is a text"
        shown.locator("#batch-sources button", has_text="web").click()
        shown.locator("#batch-note", has_text="of which 2 are").wait_for()
        shown.locator("#graph .lane", has_text="kestrel").locator(".step").first.click()
        assert "train_phase: " in shown.locator("#step").inner_text()
        with shown.context.expect_page() as opened:
            shown.locator("#views button", has_text="data stalls").click()
        opened.value.locator("h1", has_text="Data stalls").wait_for()
        with shown.context.expect_page() as again:
            shown.evaluate(f"window.open({json.dumps(opened.value.url)}, '_blank', 'noopener')")
        assert "worked once" in again.value.locator("body").inner_text()
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        shown.evaluate("AbortSignal.timeout = () => AbortSignal.abort(new DOMException('', 'TimeoutError'))")
        shown.locator("#alarms button").click()
        for place in ("#batch-note", "#message"):
            shown.locator(place, has_text="minute").wait_for()
            check_message(shown.locator(place).inner_text())


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_run_of_1_400_000_updates_is_zoomed_in_a_browser_and_keeps_its_extremes(session, graph, monkeypatch):
    tokens = np.arange(1.0, 1_400_001.0)
    values = 2 + np.sin(tokens / 1e4)
    values[700_000] = 11.0
    line = Line(LOSS, "kestrel", MAIN_LINE, tokens, values)
    monkeypatch.setattr(LoggedPhase, "refresh", lambda self: None)
    monkeypatch.setattr(LoggedPhase, "lines", lambda self: [line] if self.name == "kestrel" else [])
    drawn = "Bokeh.documents[0].roots()[0].renderers[0].data_source.data.get('y')"
    pause = "new Promise(done => { const since = Date.now(); setTimeout(() => done(Date.now() - since)) })"
    watched = Watched("tootsie", make_plan(graph, session.store), session.store)
    with browser.run_page(watched, RunPage(session, graph)) as shown:
        sizes = []
        shown.on(
            "response", lambda answer: "/values" in answer.url and sizes.append(int(answer.headers["content-length"]))
        )
        shown.reload()
        shown.locator("figure .bk-Canvas").first.wait_for(timeout=60_000)
        shown.locator("[data-do=in]").click()  # without values yet, or with them: the range is that of the run
        ends = "(range => [range.start, range.end])(Bokeh.documents[0].roots()[0].x_range)"
        until = time.monotonic() + 60
        while shown.evaluate(ends)[1] < 1_000:
            assert time.monotonic() < until, "the values do not come"
            shown.wait_for_timeout(100)
        for _ in range(3):
            # The page itself may not evaluate text, so the test asks again and again.
            until = time.monotonic() + 60
            while not 2 < (num_points := shown.evaluate(f"{drawn}.length")) <= MOST_POINTS:
                assert time.monotonic() < until, f"{num_points} points"
                shown.wait_for_timeout(100)
            assert shown.evaluate(f"Math.max(...{drawn})") == 11
            assert shown.evaluate(pause) < 2_000, "the page answers"
            with shown.expect_response(lambda response: "low=" in response.url):
                shown.locator("[data-do=in]").click()
        assert 0 < max(sizes) < 500_000
