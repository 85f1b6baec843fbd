"""The page as a whole: well-formed, self-contained, deterministic, and proof against what documents hold."""

import dataclasses
import functools
import hashlib
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from markupsafe import Markup

from runtime.data.consumption import Consumption, MixtureFinding, SourceUse
from runtime.report.contents import PhaseAlarm, Report, mean
from runtime.report.html import macro
from runtime.report.page import render, with_run
from runtime.report.recipe import Change
from runtime.training.observer import Alarm
from tests.catalogue import expect_error

VOID = {"meta", "input"}


class Reader(HTMLParser):
    """Keeps the tags, checks that each is closed by its own, and collects the text."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text, self.errors = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        names = [name for name, _ in attributes]
        if len(names) != len(set(names)):
            self.errors.append(f"<{tag}> has an attribute twice: {names}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.errors.append(f"</{tag}> closes something else")

    def handle_data(self, data):
        self.text.append(data)


@functools.cache
def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def table_of(name, report):
    """Return a table of the report, its rows in one line."""
    return macro("tables.html", name, report).replace("\n", "")


def num_scripts(reader):
    """Return the number of scripts that a browser runs; data do not count."""
    return sum(tag == "script" and "type" not in attributes for tag, attributes in reader.tags)


def test_every_tag_of_the_page_is_closed_in_its_place(page):
    reader = read(page)
    assert reader.errors == []
    assert reader.open == []


def test_the_page_loads_nothing_from_anywhere(page):
    for tag, attributes in read(page).tags:
        assert tag not in {"img", "link", "iframe", "object", "embed", "image", "use", "base", "video", "audio"}
        for name in ("src", "srcset", "xlink:href", "action", "data", "poster"):
            assert name not in attributes, (tag, attributes)
        if "href" in attributes:
            # What is linked is not loaded: one page that lies above this one, of the same run.
            is_followed = (tag, attributes["href"]) == ("a", "../run.html#run")
            assert is_followed or attributes["href"].startswith("#"), attributes
        assert not any(name.startswith("on") for name in attributes), attributes
        assert "url(" not in attributes.get("style", "")
    assert len(page) < 5_000_000
    style = re.search(r"<style>(.*?)</style>", page, re.S).group(1)
    assert "url(" not in style
    assert "@import" not in style


def test_every_link_leads_to_a_section(page):
    tags = read(page).tags
    keys = {attributes["id"] for _, attributes in tags if "id" in attributes}
    links = [href[1:] for tag, attributes in tags if tag == "a" and (href := attributes["href"]).startswith("#")]
    assert len(links) == 10
    assert set(links) <= keys


def test_what_differs_between_equal_runs_takes_the_place_of_the_link_to_it(page):
    assert '<a href="../run.html#run">The page of the run</a>' in page
    shown = with_run(page, Markup("<p>waited 3 s</p>"))
    assert "../run.html" not in shown and '<section id="run"><p>waited 3 s</p></section>' in shown
    assert read(shown).errors == [] and len(shown) < len(page)
    with expect_error(ValueError):
        with_run("<main></main>", Markup())


def test_alarms_stand_in_the_report_those_that_came_back_too(report):
    assert "No monitor raised an alarm." in render(report)
    alarms = (
        PhaseAlarm("kestrel", Alarm("loss_spike", 551, 11.67, 4.0, {}), 1_500_000, True),
        PhaseAlarm("ocelot", Alarm("creep", 900, 0.5, 0.25, {}), 2_000_000, False),
    )
    page = render(dataclasses.replace(report, alarms=alarms))
    section = "".join(read(page[page.index('id="alarms"') : page.index('id="domains"')]).text)
    assert section.count("the loss came back") == 1 and section.index("came back") < section.index("ocelot")
    assert "python pipelines/tootsie.py batch kestrel@551" in section and "1.50M" in section


def test_the_policy_of_the_page_allows_its_own_scripts_and_no_other(page):
    import base64

    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    policy = next(a["content"] for _, a in read(page).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert len(digests) == 3, "Bokeh's, that of figures and that of the heat map"
    allowed = "script-src " + " ".join(f"'sha256-{digest}'" for digest in digests)
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; {allowed}; base-uri 'none'; form-action 'none'"


def test_hostile_samples_are_shown_and_do_nothing(page, example):
    reader = read(page)
    assert num_scripts(reader) == 3
    assert "evil.example" in "".join(reader.text)
    assert not any("evil.example" in str(attributes) for _, attributes in reader.tags)
    assert "\u202e" not in page, "a control that reverses the direction of the text"
    assert "\x00" not in page


def test_hostile_names_are_escaped_wherever_they_stand(report):
    places = ("title", "introduction", "domain", "source", "phase", "task", "reason")
    name = {place: f"<script>alert('{place}')</script>\" onload=\"x" for place in places}
    stage = dataclasses.replace(report.stages[0], source=name["source"], dropped={name["reason"]: 3}, samples=())
    page = render(
        dataclasses.replace(
            report,
            title=name["title"],
            introduction=name["introduction"],
            phases=(report.phases[0], dataclasses.replace(report.phases[6], name=name["phase"], parent="kestrel")),
            evaluations=(dataclasses.replace(report.evaluations[0], hot={name["domain"]: 1.0}),),
            stages=(stage,),
            scores=(dataclasses.replace(report.scores[0], task=name["task"]),),
            exports=(dataclasses.replace(report.exports[0], phase="kestrel"),),
        )
    )
    reader = read(page)
    assert reader.errors == []
    assert num_scripts(reader) == 3
    assert not any("onload" in attributes for _, attributes in reader.tags)
    shown = "".join(reader.text) + str(reader.tags)
    assert all(f"alert('{place}')" in shown for place in places)


def test_the_same_report_gives_the_same_bytes_in_another_process(page):
    code = (
        "import runpy, sys; sys.argv = ['example_run', '-'];"
        "from runtime.report.page import render;"
        f"example = runpy.run_path({str(Path(__file__).with_name('example_run.py'))!r});"
        "sys.stdout.buffer.write(render(example['example_report']()).encode())"
    )
    root = Path(__file__).parents[3]
    found = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": found, "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    made = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=root, check=True, capture_output=True
    ).stdout
    assert made.decode() == page


def test_a_report_of_one_phase_alone_is_a_page(report, example):
    alone = dataclasses.replace(
        report,
        phases=report.phases[:1],
        evaluations=(),
        exports=(),
        scores=(),
        stages=(),
        caches=(),
    )
    page = render(alone)
    assert read(page).errors == []
    assert "What was filtered" not in page


def test_the_same_training_under_two_names_is_named_beside_the_branches(report, example):
    report = example.with_phase(report, "spoonbill_norms", same_as="spoonbill_hypnotic")
    page = "".join(read(render(report)).text)
    assert "spoonbill_norms is the same training as spoonbill_hypnotic." in page
    assert "and 9 side branches under 10 names" in page, "ten names, nine trainings"
    assert page.count("the same training as spoonbill_hypnotic") == 2, "below the loss, in the recipe"


def test_the_best_value_of_every_column_is_bold_the_mean_too(report):
    cells = re.findall(r'<td class="number best">([\d.]+)</td>', table_of("domains", report))
    means = [mean(evaluation.best) for evaluation in report.evaluations]
    assert len(cells) == len(report.domains) + 1
    assert f"{min(means):.4f}" in cells


def test_weights_are_never_bold_beside_an_average_however_good_they_are(report):
    last = report.evaluations[-1]
    assert last.averages
    for gap in (0.5, 0.0):
        hot = {domain: value - gap for domain, value in last.best.items()}
        better = dataclasses.replace(last, hot=hot)
        table = table_of("domains", dataclasses.replace(report, evaluations=(better,)))
        rows = dict(re.findall(r"<td>(averaged|weights)</td>(.*?)</tr>", table))
        assert rows["averaged"].count("best") == len(report.domains) + 1 and "best" not in rows["weights"]
        assert rows["weights"].count("quiet") == len(report.domains) + 1 and "quiet" not in rows["averaged"]
    alone = table_of("domains", dataclasses.replace(report, evaluations=(dataclasses.replace(last, averages={}),)))
    assert alone.count("number best") == len(report.domains) + 1


def test_the_mean_stands_before_the_domains_which_a_telephone_does_not_show_at_once(report):
    table = table_of("domains", report)
    assert re.findall(r"<th [^>]*>([^<]*)</th>", table)[:3] == ["phase", "weights", "mean"]
    first = report.evaluations[0]
    values = re.search(r"<td>weights</td>(.*?)</tr>", table)[1]
    expected = [mean(first.hot), *(first.hot[domain] for domain in report.domains)]
    assert re.findall(r">([\d.]+)</td>", values) == [f"{value:.4f}" for value in expected]


def test_one_document_is_written_in_the_singular(report):
    stage = dataclasses.replace(report.stages[0], dropped={"no main text": 1}, samples=())
    page = "".join(read(table_of("dropped", dataclasses.replace(report, stages=(stage,)))).text)
    assert "1 document dropped" in page
    assert "1 documents" not in page


def test_a_name_that_goes_on_in_the_rows_below_is_one_cell_over_all_of_them(report):
    page = table_of("recipe", report)
    assert re.search(r'<th scope="rowgroup" rowspan="2">ocelot</th><td rowspan="2">kestrel</td>', page)
    assert "<th" in page and not re.search(r"<th[^>]*></th>", page), "a row whose name is empty"


def test_a_first_phase_that_starts_from_an_import_does_not_start_from_scratch(report):
    first = report.phases[0]
    assert (
        first.parent is None and "scratch</" in table_of("phases", report) and "scratch</" in table_of("recipe", report)
    )
    begin = Change("start", "", "llama (weights)")
    imported = dataclasses.replace(first, changes=(begin, *first.changes))
    report = dataclasses.replace(report, phases=(imported, *report.phases[1:]))
    for page in (table_of("phases", report), table_of("recipe", report)):
        assert "llama (weights)</" in page and "scratch</" not in page


def test_forks_of_any_number_stand_beside_what_they_repeat(report, example):
    assert table_of("forks", report) == ""
    forked = example.with_phase(report, "spoonbill_zloss", fork_of="spoonbill_norms")
    forked = example.with_phase(forked, "dessert_v3", fork_of="dessert_bad", changes=(Change("z_loss", "0", "1e-4"),))
    forked = example.with_phase(forked, "dessert_v3", fork_reason="does it hold <the head>?")
    page = table_of("forks", forked)
    assert re.findall(r'<th scope="row">([^<]+)</th><td>([^<]+)</td>', page) == [
        ("dessert_v3", "dessert_bad"), ("spoonbill_zloss", "spoonbill_norms"),
    ]  # fmt: skip
    assert "z_loss: 1e-4" in page and "does it hold &lt;the head&gt;?" in page
    by_name = {phase.name: phase for phase in forked.phases}
    assert f"{by_name['dessert_v3'].final_loss - by_name['dessert_bad'].final_loss:+.3f}" in page
    found = {evaluation.phase: mean(evaluation.best) for evaluation in forked.evaluations}
    difference = f">{found['dessert_v3'] - found['dessert_bad']:+.4f}"
    assert f"{difference}<" in page

    def measured(evaluation, spread):
        losses = {("web", "a"): (3.0, 100), ("web", "b"): (3.0 + spread, 100)}
        return dataclasses.replace(evaluation, windows=losses, num_tokens={"web": 200}, num_bytes={"web": 800})

    verdict = "worse" if found["dessert_v3"] > found["dessert_bad"] else "better"
    for spread, word in ((0.001, verdict), (9.0, "noise")):
        evaluations = [measured(each, spread * (each.phase == "dessert_v3")) for each in forked.evaluations]
        page = table_of("forks", dataclasses.replace(forked, evaluations=tuple(evaluations)))
        # Two windows of 100 tokens: the variance of both, over two windows.
        stderr = spread / math.sqrt(2) * 200 / (800 * math.log(2)) / math.sqrt(2)
        assert f"{difference} ± {stderr:.4f}, {word}<" in page
    evaluations = [
        dataclasses.replace(each, averages={}) if each.phase == "dessert_v3" else each for each in forked.evaluations
    ]
    page = table_of("forks", dataclasses.replace(forked, evaluations=tuple(evaluations)))
    assert ": trained weights against averaged weights<" in page


def test_the_epochs_of_a_source_and_its_findings_are_on_the_page(report):
    uses = (
        SourceUse("kestrel", "code", 2_870, 0.003583),
        SourceUse("ocelot", "code", 2_870, math.inf),
        SourceUse("starling", "code", 4_000_000, 5.5),
    )
    often = MixtureFinding("over_epochs", "code", "is read 5.50 times in all.")
    found = Consumption(uses, (often, MixtureFinding("never_drawn", "papers", "is never drawn.")))
    page = "".join(read(table_of("sources", dataclasses.replace(report, consumption=found))).text)
    assert "inf × (2.87k)" in page, "a source smaller than one sequence"
    assert "0.00358 × (2.87k)" in page and "5.5 × (4.00M)" in page
    assert all(str(finding) in page for finding in found.findings)
    assert "×" not in table_of("sources", report)


def test_a_run_of_one_update_whose_rate_is_0_is_a_page(report):
    first = report.phases[0]
    last = {name: values[-1:] for name, values in vars(first.curve).items()}
    curve = dataclasses.replace(first.curve, **{**last, "learning_rate": np.zeros(1)})
    begin = first.consumed_tokens - 2048
    one = dataclasses.replace(first, curve=curve, start_step=1199, start_tokens=begin, num_targets=9)
    page = render(Report("One update", "", "python RECIPE.py", (one,)))
    assert read(page).errors == [] and "learning rate" in page


def test_drops_by_rule_are_summed_over_sources_with_their_shares(report):
    first, second = (
        dataclasses.replace(
            report.stages[0], source=source, stage="filter", num_documents=kept, num_bytes=1_000 * kept,
            dropped={"too short": 30, "odd": odd}, dropped_bytes={"too short": 6_000, "odd": 0}, samples=(),
        )
        for source, kept, odd in (("books", 160, 10), ("web", 170, 0))
    )  # fmt: skip
    page = "".join(read(table_of("rules", dataclasses.replace(report, stages=(first, second)))).text)
    assert "3.51 %" in page
    assert "Dropped by rule, over all sources" in page
    after = " ".join(page.partition("Dropped by rule, over all sources")[2].split())
    # 60 of 400 documents, 12,000 of 342,000 bytes
    for output in (
        "too short",
        "60",
        "15 %",
        "12.0 kB (3.51 %)",
        "books 30, web 30",
        "odd",
        "10",
        "2.5 %",
        "books 10",
    ):
        place = after.find(output)
        assert place >= 0, output
        after = after[place + len(output) :]


def test_rules_of_a_stage_without_documents_have_no_share(report):
    empty = dataclasses.replace(report.stages[0], num_documents=0, num_bytes=0, dropped={"short": 0}, dropped_bytes={})
    made = table_of("rules", dataclasses.replace(report, stages=(empty,)))
    assert '<td>short</td><td class="number">0</td><td class="number quiet">–</td>' in made.replace("\n", "")
