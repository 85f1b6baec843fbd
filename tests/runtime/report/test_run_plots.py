"""Figures of a run: what is drawn over the tokens is what was recorded."""

import dataclasses
import json

import numpy as np
import pytest

from runtime.report.contents import Score
from runtime.report.page import render, summary
from runtime.report.result_plots import domain_panels, score_panels
from runtime.report.run_plots import (
    loss,
    loss_range,
    mixture_stretches,
    source_losses,
    timeline,
)
from runtime.report.tables import domains_table, phases_table
from tests.runtime.report.drawn import figures, panels


def test_a_mixture_changes_at_the_tokens_of_its_step(report):
    stretches = mixture_stretches(report.main_line)
    phoenix = next(phase for phase in report.main_line if phase.name == "phoenix")
    row = int(np.flatnonzero(phase_steps := phoenix.curve.step == 1600)[0])
    assert phase_steps.any()
    change = float(phoenix.curve.consumed_tokens[row])
    assert change in [stretch.high for stretch in stretches]
    assert change in [stretch.low for stretch in stretches]
    assert stretches[0].shares["web_pages"] == pytest.approx(0.93)
    assert len(stretches) == 5, "kestrel and ocelot share one, and so do the starlings"


def test_the_timeline_has_each_phase_rate_batch_size_and_share(report):
    phases, rates, batches, mixture = panels(timeline(report, ""))
    ends = {mark.data["row"][0]: (mark.data["low"][0], mark.data["high"][0]) for mark in phases.of("HBar")}
    assert ends == {phase.name: (phase.start_tokens, phase.consumed_tokens) for phase in report.phases}
    (phoenix,) = (mark for mark in rates.marks if mark.name == "phoenix")
    curve = next(phase.curve for phase in report.phases if phase.name == "phoenix")
    drawn = np.interp(curve.consumed_tokens, phoenix.data["x"], phoenix.data["y"])
    np.testing.assert_allclose(drawn, curve.learning_rate, rtol=1e-6)
    assert {mark.name: mark.data["y"][-1] for mark in batches.marks}["starling"] == 32
    tops = {mark.name: mark.data["top"] for mark in mixture.of("Quad")}
    assert max(top for found in tops.values() for top in found) == pytest.approx(1.0)
    assert len({panel.x_range["name"] for panel in (phases, rates, batches, mixture)}) == 1, "they zoom together"


def test_a_rate_of_0_is_not_on_the_log_axis(report):
    branch = report.branches[0]
    still = dataclasses.replace(branch.curve, learning_rate=0 * branch.curve.learning_rate)
    beside = dataclasses.replace(
        report, phases=(*report.main_line, dataclasses.replace(branch, curve=still)),
        evaluations=(), exports=(), scores=(),
    )  # fmt: skip
    _, rates, _, _ = panels(timeline(beside, ""))
    assert [mark.name for mark in rates.marks] == [phase.name for phase in report.main_line]
    assert rates.marks[0].data["x"][0] == report.phases[0].curve.consumed_tokens[1]
    assert all(value > 0 for mark in rates.marks for value in mark.data["y"])


def test_the_loss_is_drawn_as_recorded_and_smoothed_over_it(report):
    (panel,) = panels(loss(report, ""))
    main_line = panel.of("Line", "main line")
    assert [mark.name for mark in main_line[::2]] == [phase.name for phase in report.main_line]
    np.testing.assert_allclose(main_line[0].data["y"], report.phases[0].curve.loss, rtol=1e-7)
    assert {mark.series for mark in panel.marks} == {"main line", *(phase.name for phase in report.branches)}
    assert 'data-do="smooth"' in loss(report, "") and 'data-do="log"' in loss(report, "")


def test_the_loss_axis_leaves_the_first_fall_out_and_says_where(report):
    ends, cut = loss_range(report)
    assert ends.low < min(phase.final_loss for phase in report.phases)
    assert report.main_line[0].curve.loss[0] > ends.high
    assert 0 < cut < 0.06 * report.main_line[-1].consumed_tokens


def test_a_source_has_no_line_where_no_phase_drew_from_it(report):
    late = report.source_curves[5].source
    (panel,) = panels(source_losses(report, ""))
    first = {mark.series: mark.data["x"][0] for mark in reversed(panel.marks)}
    assert list(dict.fromkeys(mark.series for mark in panel.marks)) == [curve.source for curve in report.source_curves]
    assert first["web_pages"] < 0.01 * panel.x_range["end"] and first[late] > 0.25 * panel.x_range["end"]


def test_the_final_loss_of_each_branch_is_a_mark(report):
    (panel,) = panels(loss(report, ""))
    finals = {mark.series: mark.data["y"][0] for mark in panel.of("Scatter")}
    assert finals == {phase.name: phase.final_loss for phase in report.branches}


def test_a_report_without_any_average_is_a_page(report):
    bare = tuple(dataclasses.replace(found, averages={}) for found in report.evaluations)
    assert "Bits per byte by domain" in render(dataclasses.replace(report, evaluations=bare))


def test_each_of_several_averages_is_drawn_and_stands_in_the_tables_by_its_name(report, example):
    several = example.with_two_averages(report, "phoenix")
    tips = [tip for panel in panels(domain_panels(several, "")) for tip in panel.tips if " after phoenix " in tip]
    assert len(tips) == 3 * len(report.domains) and all(", slow " in tip and ", weights " in tip for tip in tips)
    table = domains_table(several)
    weights = [line.split("</td>")[0] for line in table.split("phoenix</th>")[1].split("<td>")[1:4:1]]
    assert weights[0] == "averaged" and "slow" in table
    assert "averaged 0.995, slow 0.9999" in phases_table(several) and "<td>0.995</td>" in phases_table(several)
    last = example.with_two_averages(report, "deeper_starling")
    shown = [list(json.loads(json.dumps(summary(found)))["bits_per_byte"]["averages"]) for found in (several, last)]
    assert shown == [["averaged"], ["averaged", "slow"]]


def test_all_domain_panels_span_the_same_bits(report):
    evaluations = tuple(
        dataclasses.replace(item, hot={"flat": 1.0 + 1e-3 * index, "steep": 2.0 - 0.1 * index}, averages={})
        for index, item in enumerate(report.evaluations[:6])
    )
    drawn = panels(domain_panels(dataclasses.replace(report, evaluations=evaluations), ""))
    spans = [panel.y_range["end"] - panel.y_range["start"] for panel in drawn]
    assert spans[0] == pytest.approx(spans[1])


def test_a_score_has_a_bar_that_holds_the_truth_19_times_in_20(report):
    one = dataclasses.replace(report, scores=(Score("jellyfish", "piqa", 0, "acc", 0.5, 0.1, 0.5),))
    (panel,) = panels(score_panels(one, ""))
    (bar,) = panel.of("HBar")
    assert (bar.data["low"][0], bar.data["high"][0]) == pytest.approx((0.304, 0.696))
    assert panel.tips[-1].endswith("0.5000 ± 0.1000 (standard error); chance 0.5")


def test_every_figure_of_the_page_has_data(page):
    for found in figures(page):
        for panel in found:
            assert panel.marks and all(len(column) for mark in panel.marks for column in mark.data.values())
