"""Figures of a run: what is drawn over the tokens is what was recorded."""

import dataclasses

import numpy as np
import pytest

from runtime.report.html import macro
from runtime.report.page import render
from runtime.report.run_plots import domains, loss, scores, source_losses, timeline
from tests.runtime.report.drawn import figures, panels


def test_the_timeline_has_each_phase_rate_batch_size_and_share(report):
    (phases, rates, batches), (mixture,) = figures(timeline(report, ""))
    ends = {mark.data["y"][0]: (mark.data["left"][0], mark.data["right"][0]) for mark in phases.of("HBar")}
    assert ends == {phase.name: (phase.start_tokens, phase.consumed_tokens) for phase in report.phases}
    (phoenix,) = (mark for mark in rates.marks if mark.name == "phoenix")
    curve = next(phase.curve for phase in report.phases if phase.name == "phoenix")
    drawn = np.interp(curve.consumed_tokens, phoenix.data["x"], phoenix.data["y"])
    np.testing.assert_allclose(drawn, curve.learning_rate, rtol=1e-6)
    assert rates.y_range["end"] > max(phase.curve.learning_rate.max() for phase in report.phases)
    assert {mark.name: mark.data["y"][-1] for mark in batches.marks}["starling"] == 32
    tops = {mark.name: mark.data["top"] for mark in mixture.of("Quad")}
    assert max(top for found in tops.values() for top in found) == pytest.approx(1.0)
    spans = next(phase.mixture for phase in report.main_line if phase.name == "phoenix")
    high = next(mark for mark in mixture.of("Quad") if mark.name == "web_high")
    assert high.data["left"][:2] == [span.begin_tokens for span in spans]
    assert len({panel.x_range["name"] for panel in (phases, rates, batches, mixture)}) == 1, "they zoom together"


def test_the_loss_is_drawn_as_recorded_and_smoothed_over_it(report):
    (panel,) = panels(loss(report, ""))
    main_line = panel.of("Line", "main line")
    assert [mark.name for mark in main_line[::2]] == [phase.name for phase in report.main_line]
    np.testing.assert_allclose(main_line[0].data["y"], report.phases[0].curve.loss, rtol=1e-7)
    assert {mark.series for mark in panel.marks} == {"main line", *(phase.name for phase in report.branches)}
    assert panel.y_range["end"] < report.main_line[0].curve.loss[0], "the first fall would make all else a flat line"
    assert 'data-do="smooth"' in loss(report, "") and 'data-do="log"' in loss(report, "")


def test_a_source_has_no_line_where_no_phase_drew_from_it(report):
    late = report.source_curves[5].source
    (panel,) = panels(source_losses(report, ""))
    first = {mark.series: mark.data["x"][0] for mark in reversed(panel.marks)}
    assert list(dict.fromkeys(mark.series for mark in panel.marks)) == [curve.source for curve in report.source_curves]
    assert first["web_pages"] < 0.01 * panel.x_range["end"] and first[late] > 0.25 * panel.x_range["end"]


def test_a_report_without_any_average_is_a_page(report):
    bare = tuple(dataclasses.replace(found, averages={}) for found in report.evaluations)
    assert "Bits per byte by domain" in render(dataclasses.replace(report, evaluations=bare))


def test_each_of_several_averages_is_drawn_and_stands_in_the_tables_by_its_name(report, example):
    several = example.with_two_averages(report, "phoenix")
    tips = [tip for panel in panels(domains(several, "")) for tip in panel.tips if tip.startswith("phoenix")]
    assert len(tips) == 3 * len(report.domains) and sum("slow" in tip for tip in tips) == len(report.domains)
    table = macro("tables.html", "domains", several)
    weights = [line.split("</td>")[0] for line in table.split("phoenix</th>")[1].split("<td>")[1:4:1]]
    assert weights[0] == "averaged" and "slow" in table
    phases = macro("tables.html", "phases", several)
    assert "averaged 0.995, slow 0.9999" in phases and "<td>0.995</td>" in phases


def test_every_figure_of_the_page_has_data(page):
    for found in figures(page):
        for panel in found:
            assert panel.marks and all(len(column) for mark in panel.marks for column in mark.data.values())


def test_results_are_marks_at_the_tokens_of_their_phase(report):
    panel = panels(domains(report, ""))[0]
    (averaged,) = panel.of("Scatter", "averaged")
    evaluated = [item for item in report.evaluations if item.averages]
    main_line = [item for item in evaluated if item.phase in {phase.name for phase in report.main_line}]
    assert averaged.data["x"] == [item.consumed_tokens for item in main_line]
    assert averaged.data["y"] == [item.best[panel.title] for item in main_line]
    (branches,) = panel.of("Scatter", "branches")
    assert len(branches.data["x"]) == len(report.branches) and not panel.of("Line", "branches")
    found = panels(scores(report))
    assert sum(len(drawn.tips) for drawn in found) == len(report.scores)
