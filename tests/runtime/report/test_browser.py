"""The pages in a real browser: what is clicked, pointed at and dragged works, and nothing is loaded or refused.

The tests need a browser, which no package of the index carries (Debian's chromium), and are skipped without one.
"""

import contextlib
import csv
import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from runtime.report import curve_plots, heat_map, pages
from runtime.report.contents import HeatWindow
from runtime.report.curve_plots import Line
from runtime.report.html import document, macro, source
from runtime.report.markup import marked, printable
from runtime.report.norm_plots import LayerNorms
from runtime.report.page import render
from runtime.report.recipe import Change
from runtime.report.theme import MAIN
from runtime.tracking.stalls import DataStalls, Stall
from tests.browser import NEEDS_CHROMIUM, running_browser
from tests.runtime.report.test_heat_map import fill_in_the_blanks, moment

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
HOSTILE = "$$x^2$$</script>\u202e<b>@{y}"


@pytest.fixture(scope="module")
def browser():
    with running_browser() as found:
        yield found


@contextlib.contextmanager
def opener(browser, folder):
    """Yield a function that opens a page's text; raise for each error, warning and request of the page."""
    contexts, problems = [], []

    def opened(text: str, width: int = 1100, **options):
        path = folder / "page.html"
        path.write_text(text)
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        shown = context.new_page()
        shown.on("console", lambda message: message.type in ("error", "warning") and problems.append(message.text))
        shown.on("pageerror", lambda error: problems.append(str(error)))
        shown.on("request", lambda request: request.url.startswith(("file:", "blob:")) or problems.append(request.url))
        shown.goto(path.as_uri())
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def open_page(browser, tmp_path):
    with opener(browser, tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def shown(browser, page, tmp_path_factory):
    """Yield the example report, opened once; each test leaves it as it was."""
    with opener(browser, tmp_path_factory.mktemp("page")) as opened:
        yield opened(page)


def draw_all(shown) -> int:
    """Scroll to each figure until it is drawn; return the number of panels."""
    figures = shown.locator("figure").all()
    for figure in figures:
        figure.scroll_into_view_if_needed()
        figure.locator(".bk-Canvas").first.wait_for(timeout=30_000)
    return sum(figure.locator(".panel").count() for figure in figures)


def figure_of(shown, section: str):
    figure = shown.locator(f"section:has(#{section}) figure").first
    figure.scroll_into_view_if_needed()
    figure.locator(".bk-Canvas").first.wait_for(timeout=30_000)
    return figure


def until(shown, condition) -> None:
    """Wait at most half a minute; the page itself may not evaluate text, so the test asks again and again."""
    for _ in range(300):
        if condition():
            return
        shown.wait_for_timeout(100)
    raise AssertionError("the page did not come to it within 30 s")


def plots(shown, title: str, expression: str):
    """Return the value of an expression of `plot`, for the plot with this title."""
    return shown.evaluate(
        "([title, code]) => { const plot = Bokeh.documents.flatMap(d => d.roots()).filter(p => p.title.text === title)"
        f".at(-1); return ({expression}) }}",
        [title, expression],
    )


def place_of(figure, x, y):
    """Return where a value of a figure's first panel is in the window."""
    return figure.locator(".panel").first.evaluate(
        "(panel, [x, y]) => { const view = Bokeh.index.roots.find(each => panel.contains(each.el)), f = view.frame;"
        "const box = view.canvas_view.el.getBoundingClientRect();"
        "return [box.left + f.x_scale.compute(x), box.top + f.y_scale.compute(y)] }",
        [x, y],
    )


def words_of(tip) -> str:
    return tip.evaluate(
        "e => [...e.shadowRoot.children].filter(c => c.tagName !== 'STYLE').map(c => c.innerText).join(' ')"
    )


LOSS = "train loss (nats a token)"


def test_pointing_at_the_loss_shows_its_exact_value(shown, report):
    canvas = figure_of(shown, "loss").locator(".bk-Canvas").first.bounding_box()
    shown.mouse.move(canvas["x"] + canvas["width"] * 0.6, canvas["y"] + canvas["height"] * 0.5)
    tip = shown.locator(".bk-Tooltip", has_text="phoenix").first
    tip.wait_for(timeout=5_000)
    words = words_of(tip)
    tokens = int(re.search(r"tokens\s*:?\s*([\d,]+)", words).group(1).replace(",", ""))
    value = float(re.search(r"value\s*:?\s*([\d.]+)", words).group(1))
    curve = next(phase.curve for phase in report.phases if phase.name == "phoenix")
    (row,) = np.flatnonzero(curve.consumed_tokens == tokens)
    assert value == pytest.approx(curve.loss[row], abs=5e-5)


def test_pointing_at_the_mixture_shows_the_share_of_a_source(shown, report):
    figure = shown.locator("#timeline ~ figure").nth(1)
    figure.scroll_into_view_if_needed()
    figure.locator(".bk-Canvas").wait_for(timeout=30_000)
    canvas = figure.locator(".bk-Canvas").bounding_box()
    shown.mouse.move(canvas["x"] + canvas["width"] * 0.2, canvas["y"] + canvas["height"] * 0.5)
    tip = shown.locator(".bk-Tooltip", has_text="of sequences").first
    tip.wait_for(timeout=5_000)
    share = report.main_line[0].mixture[0].shares["web_pages"]
    assert f"web_pages: {share:.2%} of sequences" in words_of(tip)


def test_the_reason_of_a_drop_is_found_by_clicking(shown, report):
    stage = next(stage for stage in report.stages if stage.samples)
    stages = shown.locator("section:has(#filtered) > details", has_text=f"{stage.source}, {stage.stage}:")
    stages.first.locator("summary").first.click()
    sample = stage.samples[0]
    reason = stages.first.locator("details", has_text=f"{sample['reason']}:").first
    reason.locator("summary").click()
    assert reason.locator("pre").first.inner_text().split() == printable(sample["excerpt"]).split()


def test_a_loss_a_fork_and_texts_are_found_by_clicking(report, example, open_page):
    """A person knows a number of tokens and the name of a fork, and has the page."""
    forked = example.with_phase(report, "dessert_v3", fork_of="dessert_bad", changes=(Change("z_loss", "0", "1e-4"),))
    windows = {
        name: {("web", "a"): (3.0, 100), ("web", "b"): (end, 100)}
        for name, end in (("dessert_v3", 9.0), ("dessert_bad", 3.0))
    }
    evaluations = tuple(
        dataclasses.replace(each, windows=windows.get(each.phase, {}), num_tokens={"web": 200}, num_bytes={"web": 800})
        for each in forked.evaluations
    )
    texts = [
        (
            name,
            SimpleNamespace(
                weights="hot", texts=(SimpleNamespace(prompt="The sea", text=f" of {name}", is_whole=True),)
            ),
        )
        for name in (phase.name for phase in report.main_line[:3])
    ]
    forked = dataclasses.replace(forked, evaluations=evaluations, texts=texts)
    shown = open_page(render(forked))

    shown.locator("nav a", has_text="Train loss").click()
    figure = figure_of(shown, "loss")
    curve = next(phase.curve for phase in report.main_line if phase.name == "phoenix")
    row = len(curve) // 2
    tokens, loss = int(curve.consumed_tokens[row]), float(curve.loss[row])
    shown.mouse.move(*place_of(figure, tokens, loss))
    tip = shown.locator(".bk-Tooltip", has_text=f"{tokens:,}").first
    tip.wait_for(timeout=5_000)
    value = float(re.search(r"value\s*:?\s*([\d.]+)", words_of(tip)).group(1))
    assert value == pytest.approx(loss, abs=5e-5)

    shown.locator("nav a", has_text="Forks").click()
    row = shown.locator("section:has(#forks) tbody tr", has_text="dessert_v3")
    assert row.is_visible() and "z_loss: 1e-4" in row.inner_text() and ", noise" in row.inner_text()
    shown.locator("nav a", has_text="Texts").click()
    written = shown.locator("section:has(#texts) .sample").all_inner_texts()
    assert [text.split()[-1] for text in written] == [phase.name for phase in report.main_line[:3]]


def test_an_entry_of_the_legend_hides_and_shows_its_series(shown):
    chip = figure_of(shown, "loss").locator("[data-series=cooldown_v2]")
    visible = "plot.renderers.filter(r => r.tags[0] === 'cooldown_v2').map(r => r.visible)"
    assert plots(shown, LOSS, visible) == [True] * 2, "its values and their smoothed line"
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false" and plots(shown, LOSS, visible) == [False] * 2
    chip.click()
    assert plots(shown, LOSS, visible) == [True] * 2


def test_all_figures_over_tokens_zoom_together_by_drag_and_button(shown):
    figure_of(shown, "timeline")
    figure = figure_of(shown, "loss")
    whole = plots(shown, LOSS, "[plot.x_range.start, plot.x_range.end]")
    canvas = figure.locator(".bk-Canvas").first.bounding_box()
    middle = canvas["y"] + canvas["height"] / 2
    shown.mouse.move(canvas["x"] + canvas["width"] * 0.4, middle)
    shown.mouse.down()
    shown.mouse.move(canvas["x"] + canvas["width"] * 0.6, middle, steps=5)
    shown.mouse.up()
    start, end = plots(shown, LOSS, "[plot.x_range.start, plot.x_range.end]")
    assert end - start == pytest.approx((whole[1] - whole[0]) * 0.21, rel=0.15)
    assert plots(shown, "learning rate", "[plot.x_range.start, plot.x_range.end]") == [start, end]
    figure_of(shown, "timeline").locator("[data-do=out]").click()
    wider = plots(shown, LOSS, "plot.x_range.end - plot.x_range.start")
    assert wider == pytest.approx(2 * (end - start)), "linked panels zoom once, however many there are"
    figure.locator("[data-do=in]").click()
    figure.locator("[data-do=right]").click()
    assert plots(shown, LOSS, "plot.x_range.start") == pytest.approx((start + end) / 2), "half a window further"
    assert plots(shown, "learning rate", "plot.x_range.end") == plots(shown, LOSS, "plot.x_range.end")
    for _ in range(9):
        figure.locator("[data-do=left]").click()
    assert plots(shown, LOSS, "plot.x_range.start") == 0, "no further than the run"
    figure.locator("[data-do=reset]").click()
    assert plots(shown, LOSS, "[plot.x_range.start, plot.x_range.end]") == whole


def test_the_axis_turns_logarithmic_and_fits_what_is_shown(shown, report):
    figure = figure_of(shown, "loss")
    figure.locator("[data-do=log]").click()
    until(shown, lambda: plots(shown, LOSS, "plot.y_scale.type") == "LogScale")
    figure.locator(".bk-Canvas").first.wait_for()
    figure.locator("[data-do=fit]").click()
    assert plots(shown, LOSS, "plot.y_range.end") > report.phases[0].curve.loss[0]
    assert plots(shown, LOSS, "plot.y_range.start") <= min(phase.curve.loss.min() for phase in report.phases)
    figure.locator("[data-do=log]").click()
    until(shown, lambda: plots(shown, LOSS, "plot.y_scale.type") == "LinearScale")


def test_the_slider_smooths_and_at_0_does_not(shown):
    slider = figure_of(shown, "loss").locator("[data-do=smooth]")
    columns = "(() => { const d = plot.renderers[0].data_source.data, g = n => Array.from(d.get ? d.get(n) : d[n]);"
    spread = columns + " return Math.max(...g('smooth').map((v, i) => Math.abs(v - g('y')[i]))) })()"
    assert plots(shown, LOSS, spread) > 0.05
    smoothed = slider.input_value()
    slider.fill("0")
    assert plots(shown, LOSS, spread) < 1e-12
    slider.fill(smoothed)


def test_the_data_of_a_figure_comes_as_csv(shown, report):
    figure = figure_of(shown, "loss")
    with shown.expect_download() as download:
        figure.locator("[data-do=csv]").click()
    rows = list(csv.reader(Path(download.value.path()).read_text().splitlines()))
    assert rows[0] == ["panel", "series", "x", "y"]
    curve = report.phases[0].curve
    found = [row for row in rows if row[1] == "kestrel"]
    assert [int(row[2]) for row in found] == curve.consumed_tokens.tolist()
    np.testing.assert_allclose([float(row[3]) for row in found], curve.loss, rtol=1e-7)


def test_figures_and_tips_turn_with_the_colour_scheme(shown):
    canvas = figure_of(shown, "loss").locator(".bk-Canvas").first.bounding_box()
    colour = "(c => c.value ?? c)(plot.renderers[0].glyph.line_color)"
    assert plots(shown, LOSS, colour) == MAIN
    shown.emulate_media(color_scheme="dark")
    until(shown, lambda: plots(shown, LOSS, colour) == "#5db4f0")
    shown.mouse.move(canvas["x"] + canvas["width"] * 0.6, canvas["y"] + canvas["height"] * 0.5)
    tip = shown.locator(".bk-Tooltip", has_text="phoenix").first
    tip.wait_for(timeout=5_000)
    colours = tip.evaluate("e => { const s = getComputedStyle(e); return [s.backgroundColor, s.color] }")
    assert colours == ["rgb(25, 29, 34)", "rgb(236, 239, 242)"]
    shown.emulate_media(color_scheme="light")
    until(shown, lambda: plots(shown, LOSS, colour) == MAIN)


def test_axes_count_tokens_in_capital_letters(shown):
    figure_of(shown, "loss")
    labels = "plot.below[0].formatter.doFormat([2e6, 3e9, 1.5e12, 2e3], {})"
    assert plots(shown, LOSS, labels) == ["2M", "3B", "1.5T", "2k"]


def test_every_figure_of_the_report_is_drawn_and_none_is_wider_than_the_page(page, open_page):
    shown = open_page(page, 390, has_touch=True)
    num_panels = draw_all(shown)
    until(shown, lambda: shown.evaluate("Bokeh.documents.flatMap(d => d.roots()).length") == num_panels)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
    assert shown.evaluate("Bokeh.documents.flatMap(d => d.roots()).every(p => p.renderers.length)")


def other_pages(report) -> dict[str, str]:
    norms = np.abs(np.random.default_rng(0).normal(1, 0.2, (3, 50)))
    norms[1, 7] = np.nan
    layers = LayerNorms(HOSTILE, ("layer 0", HOSTILE, "embed_tokens"), np.arange(50), norms)
    line = Line(curve_plots.LOSS, HOSTILE, HOSTILE, np.array([1e3, 3e3]), np.array([1.5, 1.4]))
    stalls = DataStalls(HOSTILE, 2, 100.0, 12.0, {HOSTILE: 12.0}, (Stall(4, HOSTILE, 7.5),))
    shown = {
        "number": 0, "id": HOSTILE, "source": HOSTILE, "metadata": HOSTILE, "text": marked(HOSTILE, ()),
        "bytesCut": 3, "reason": HOSTILE, "detail": "2", "rule": "rules.0", "cluster": 1,
        "beside": [[HOSTILE, [[HOSTILE, HOSTILE]]]],
    }  # fmt: skip
    found = {"documents": [shown, shown], "next": 7, "total": 9}
    finding = {"rule": "rules.0", "reason": HOSTILE, "isLeast": True, "limit": 1.0, "values": [None, 2.0]}
    sample = {"documents": [[0, HOSTILE, HOSTILE], [1, "b", "c"]], "findings": [finding], "total": 9}
    documents = macro("documents.html", "of_step", {"kept": found, "dropped": found}, sample)
    return {
        "documents": document(HOSTILE, HOSTILE, documents, scripts=(source("documents.js"),)),
        "curves": curve_plots.page(HOSTILE, [line], [layers]),
        "stalls": pages.stalls_page(HOSTILE, [stalls], []),
        "timeline": pages.timeline_page(HOSTILE, report.phases, "words"),
    }


@pytest.mark.parametrize("name", ["curves", "stalls", "timeline", "documents"])
def test_other_pages_open_and_show_hostile_names_as_text(report, open_page, name):
    shown = open_page(other_pages(report)[name], 390)
    draw_all(shown)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
    assert shown.locator("b").count() == 0
    assert json.loads(shown.evaluate("JSON.stringify(document.title)")).startswith("$$x^2$$</script>")


def test_a_heat_map_shows_a_token_its_moments_and_their_change(open_page):
    windows = fill_in_the_blanks()
    moments = ["kestrel at 100", "kestrel at 200"]
    earlier = moment([-4.0] * (len(windows[0].texts) - 1))
    windows = [HeatWindow(w.domain, w.digest, w.texts, [earlier, *w.moments]) for w in windows[:2]]
    shown = open_page(heat_map.page("Heat map", moments, windows))
    assert shown.locator("#moment-name").inner_text() == moments[-1]
    tokens = shown.locator("#text span")
    assert "".join(tokens.all_inner_texts()).replace("\u2423", " ") == "".join(windows[0].texts)
    alphas = [float(re.findall(r"[\d.]+", tokens.nth(i).evaluate("e => getComputedStyle(e).background"))[3])
              for i in (1, 2)]  # fmt: skip
    assert alphas[0] < 0.1 < 0.5 < alphas[1], "the blank stands out"
    assert shown.locator("#token").inner_text().startswith('hardest token: "Ada"')
    tokens.nth(2).hover()
    assert '"Ada"' in shown.locator("#token").inner_text() and "loss 6.000" in shown.locator("#token").inner_text()
    shown.locator("#against").select_option("1")
    tokens.nth(1).hover()
    assert "3.990" in shown.locator("#token").inner_text()
    shown.locator("#moment").fill("0")
    assert shown.locator("#moment-name").inner_text() == moments[0]
    shown.locator("#window").select_option("1")
    assert "Alan" in shown.locator("#text").inner_text()


def test_the_hardest_token_of_a_domain_after_each_phase_is_found_in_the_report(shown, report):
    section = shown.locator("section:has(#tokens)")
    (label,) = [text for text in section.locator("#window option").all_inner_texts() if text.startswith("math")]
    section.locator("#window").select_option(label=label)
    window = next(window for window in report.windows if window.domain == "mathematics")
    for place, (name, found) in enumerate(zip(report.moments, window.moments, strict=True)):
        section.locator("#moment").fill(str(place))
        assert section.locator("#moment-name").inner_text() == name
        hardest = int(np.nanargmin(found.log_prob))
        first, second, *_ = section.locator("#token").inner_text().splitlines()
        assert json.loads(first.removeprefix("hardest token: ")) == printable(window.texts[hardest])
        assert f"loss {-found.log_prob[hardest]:.3f} nats" in second


def test_a_heat_map_fits_a_telephone(open_page):
    shown = open_page(heat_map.page("Heat map", ["now"], fill_in_the_blanks()), width=390)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
