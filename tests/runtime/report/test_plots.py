"""Scales, lines and figures: values land where they belong."""

import dataclasses
import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.report.branch_plots import branch_groups
from runtime.report.contents import Score
from runtime.report.page import render, summary
from runtime.report.plots import TEXT_SIZE, Frame, band_name_rows, binned, extremes, line, path_of, rounded_up
from runtime.report.run_plots import loss_range, main_bands, mixture_stretches, timeline
from runtime.report.scales import (
    Scale,
    bytes_label,
    counted,
    fitted,
    padded,
    rate_label,
    text_width,
    tick_labels,
    tokens_label,
)
from runtime.report.score_plots import _interval, average_gap, domain_panels, gaps
from runtime.report.sections import domains_table, phases_table
from tests.catalogue import expect_error

FINITE = st.floats(-1e12, 1e12, allow_nan=False)


@given(name=st.text(min_size=1, max_size=100), room=st.floats(0, 700))
def test_a_name_is_cut_in_its_middle_to_the_room_that_there_is(name, room):
    shown = fitted(name, room, TEXT_SIZE)
    if text_width(name, TEXT_SIZE) <= room:
        assert shown == name
    else:
        assert len(shown) <= 3 or text_width(shown, TEXT_SIZE) <= room
        before, _, after = shown.partition("…") if "…" not in name else (shown, "", "")
        assert name.startswith(before) and name.endswith(after)
    assert len({fitted(f"{'z_loss-' * 9}{number}", 200, TEXT_SIZE) for number in range(8)}) == 8


def test_a_linear_scale_maps_its_ends_and_its_middle():
    scale = Scale(10, 20, 100, 300)
    assert (scale(10), scale(15), scale(20)) == (100, 200, 300)
    downwards = Scale(0, 1, 300, 100)
    assert downwards(0.25) == 250


def test_a_log_scale_gives_each_decade_the_same_room():
    scale = Scale(1e-5, 1e-2, 0, 300, "log")
    assert scale(1e-4) == pytest.approx(100)
    assert scale(1e-3) == pytest.approx(200)


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.inf)])
def test_a_scale_without_extent_is_refused(ends):
    with expect_error(ValueError):
        Scale(*ends, 0, 100)


def test_a_log_scale_refuses_zero():
    with expect_error(ValueError):
        Scale(0, 1, 0, 100, "log")


@given(low=FINITE, span=st.floats(1e-3, 1e12), at_most=st.integers(2, 12))
def test_ticks_lie_inside_and_are_not_too_many(low, span, at_most):
    scale = Scale(low, low + max(span, abs(low) * 1e-6), 0, 1)
    ticks = scale.ticks(at_most)
    assert len(ticks) <= at_most
    room = 1e-6 * (scale.high - scale.low) + 1e-9 * abs(low)
    assert all(scale.low - room <= tick <= scale.high + room for tick in ticks)


def test_log_ticks_are_powers_of_ten_where_there_are_many():
    assert Scale(1e-6, 2e-3, 0, 1, "log").ticks(5) == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3])
    assert Scale(1e-3, 4e-3, 0, 1, "log").ticks(5) == pytest.approx([1e-3, 2e-3])


def test_tick_labels_have_the_decimals_that_tell_them_apart():
    assert tick_labels([-0.1, -0.05, -1e-17, 0.05]) == ["-0.10", "-0.05", "0.00", "0.05"]
    assert tick_labels([0, 0.5, 1]) == ["0.0", "0.5", "1.0"]
    assert tick_labels([0, 250, 500]) == ["0", "250", "500"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12, "12"), (999, "999"), (1_000, "1.00k"), (840_123, "840k"), (12.75e12, "12.8T"), (4.2e6, "4.20M")],
)
def test_tokens_are_written_with_three_figures(value, text):
    assert tokens_label(value) == text


def test_bytes_and_rates_are_written_as_people_do():
    assert (bytes_label(512), bytes_label(30.1e6), bytes_label(2e9)) == ("512 B", "30.1 MB", "2.00 GB")
    assert (rate_label(1.7e-3), rate_label(1e-4), rate_label(0)) == ("1.7e-3", "1e-4", "0")


def test_one_of_a_thing_is_written_in_the_singular():
    assert (counted(1, "document"), counted(0, "document"), counted(1_200, "document")) == (
        "1 document", "0 documents", "1,200 documents",
    )  # fmt: skip


def test_a_line_goes_through_its_values():
    frame = Frame(Scale(0, 100, 50, 150), Scale(0, 10, 200, 100))
    drawn = line(frame, [0, 50, 100], [0, 5, 10], "line")
    assert drawn == '<path d="M50 200L100 150L150 100" class="line"/>'


def test_a_line_is_cut_where_it_leaves_the_frame():
    frame = Frame(Scale(0, 2, 0, 200), Scale(0, 10, 100, 0))
    drawn = line(frame, [0, 1, 2], [20, 0, 5], "line")
    assert 'd="M50 0L100 100L200 50"' in drawn


def test_a_path_is_closed_when_asked():
    assert path_of([(0, 0), (1.26, 2)], closed=True) == "M0 0L1.3 2Z"


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=400), st.integers(3, 40))
def test_fewer_rows_keep_the_least_the_greatest_and_the_ends(values, columns):
    xs, ys = np.arange(len(values)), np.array(values)
    kept_xs, kept_ys = extremes(xs, ys, columns)
    assert kept_ys.min() == ys.min()
    assert kept_ys.max() == ys.max()
    assert (kept_xs[0], kept_xs[-1]) == (xs[0], xs[-1])
    assert len(kept_xs) <= max(4 * columns, 4)
    assert np.array_equal(ys[kept_xs], kept_ys)


def test_a_single_low_and_a_single_high_survive_in_a_long_curve():
    ys = np.zeros(10_000)
    ys[[1_234, 5_678]] = -1, 1
    kept_xs, kept_ys = extremes(np.arange(10_000), ys, 20)
    assert {1_234, 5_678} <= set(kept_xs.tolist()) and set(kept_ys.tolist()) == {-1, 0, 1}


def test_the_bar_of_a_score_reaches_as_far_as_holds_the_truth_19_times_in_20():
    low, high = _interval(Score("export", "piqa", 0, "acc", 0.5, 0.1, 0.5))
    assert (low, high) == pytest.approx((0.304, 0.696))


def test_bins_hold_every_row_once():
    xs, ys = np.arange(10), np.arange(10) * 2.0
    middle, means, lows, highs = binned(xs, ys, 4)
    assert len(middle) == 4
    assert np.average(means, weights=[2, 3, 2, 3]) == pytest.approx(ys.mean())
    assert (lows[0], highs[-1]) == (0, 18)


def test_names_of_narrow_bands_go_to_another_row():
    assert band_name_rows(1000, [("first", 0, 0.5), ("second", 0.5, 1)]) == 1
    assert band_name_rows(100, [("kestrel", 0, 0.4), ("deeper_starling", 0.4, 0.5), ("x", 0.5, 1)]) > 1


@pytest.mark.parametrize(("value", "top"), [(32, 40), (10, 10), (4096, 5000), (1, 1)])
def test_an_axis_ends_at_a_round_number(value, top):
    assert rounded_up(value) == top


def test_constant_values_still_have_a_scale():
    low, high = padded([3.0, 3.0])
    assert low < 3 < high


def test_the_bands_of_the_main_line_touch(report):
    found = main_bands(report)
    assert found[0].low == 0
    for before, after in itertools.pairwise(found):
        assert before.high == after.low


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


def test_each_branch_stands_with_the_phase_of_the_main_line_it_came_from(report):
    groups = {root.name: [branch.name for branch in branches] for root, branches in branch_groups(report)}
    assert groups["ocelot"] == ["cooldown_v2"]
    assert len(groups["jellyfish"]) == 9
    assert "raccoon_softer" in groups["jellyfish"], "through raccoon_soft"


def test_the_loss_axis_leaves_the_first_fall_out_and_says_where(report):
    low, high, cut = loss_range(report)
    assert low < min(phase.final_loss for phase in report.phases)
    assert report.main_line[0].curve.loss[0] > high
    assert 0 < cut < 0.06 * report.main_line[-1].consumed_tokens


def test_a_gap_is_hot_minus_averaged(report):
    found = {evaluation.phase: evaluation for evaluation in report.evaluations}
    assert gaps(found["kestrel"]) == {}
    hot, averages = found["ocelot"].hot, found["ocelot"].averages
    assert gaps(found["ocelot"])["averaged"]["code"] == hot["code"] - averages["averaged"]["code"]


def test_the_gap_is_drawn_right_of_zero_where_the_average_is_better(report):
    drawn = average_gap(report, 1040)
    zero = float(re.search(r'<line x1="([\d.]+)"[^>]*class="zero"', drawn).group(1))
    middles = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"[^>]*class="dot main"', drawn)]
    assert len(middles) == 5, "kestrel keeps no average"
    assert all(x > zero for x in middles)


def test_each_of_several_averages_is_drawn_and_stands_in_the_tables_by_its_name(report, example):
    several = example.with_two_averages(report, "phoenix")
    drawn = average_gap(several, 1040)
    assert re.findall(r">(phoenix[^<]*)</text>", drawn) == ["phoenix, averaged", "phoenix, slow"]
    means = re.findall(r'data-tip="(phoenix[^"]*), mean of \d+ domains: \+([\d.]+)"', drawn)
    assert [name for name, _ in means] == ["phoenix, averaged", "phoenix, slow"]
    assert float(means[1][1]) == pytest.approx(2 * float(means[0][1]), abs=2e-4)
    assert ">ocelot</text>" in drawn, "one average needs no name"
    panels = domain_panels(several, 1040)
    tips = re.findall(r'<rect [^>]*class="dot main" data-tip="([^"]+)"', panels)
    assert len(tips) == len(report.domains)
    assert all(re.search(r"after phoenix .*: averaged [\d.]+, slow [\d.]+, weights [\d.]+$", tip) for tip in tips)
    assert 'class="dot main" data-tip' not in "".join(re.findall(r"<rect[^>]*>", domain_panels(report, 1040)))
    table = domains_table(several)
    rows = re.findall(r"<tr>.*?</tr>", table)
    begin = next(number for number, row in enumerate(rows) if ">phoenix<" in row)
    weights = [re.search(r"<td>([a-z]+)</td>", row).group(1) for row in rows[begin : begin + 3]]
    assert weights == ["averaged", "slow", "hot"]
    assert "averaged 0.995, slow 0.9999" in phases_table(several) and "<td>0.995</td>" in phases_table(several)
    assert "Squares: further averages" in render(several) and "Squares" not in render(report)
    last = example.with_two_averages(report, "deeper_starling")
    told = [list(summary(shown)["bits_per_byte"]["averages"]) for shown in (several, last)]
    assert told == [["averaged"], ["averaged", "slow"]]


@pytest.mark.parametrize("width", [358.0, 1040.0])
def test_what_is_said_beside_a_gap_ends_on_the_figure(report, example, width):
    drawn = average_gap(example.with_phase(report, "spoonbill_norms", same_as="spoonbill_hypnotic"), width)
    x, said = re.search(r'<text x="([\d.]+)"[^>]*class="quiet">((?:the same training )?as [^<]*)<', drawn).groups()
    assert float(x) + text_width(said, 11) <= width
    assert said.startswith("as" if width < 600 else "the same training as")


def test_all_domain_panels_span_the_same_bits(report):
    evaluations = tuple(
        dataclasses.replace(item, hot={"flat": 1.0 + 1e-3 * index, "steep": 2.0 - 0.1 * index}, averages={})
        for index, item in enumerate(report.evaluations[:6])
    )
    drawn = domain_panels(dataclasses.replace(report, evaluations=evaluations), 1040)
    marks = re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"[^>]*data-tip="(flat|steep) after', drawn)
    heights = {name: [float(y) for y, found in marks if found == name] for name in ("flat", "steep")}
    ratio = (max(heights["steep"]) - min(heights["steep"])) / (max(heights["flat"]) - min(heights["flat"]))
    assert ratio == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize("width", [358.0, 1040.0])
def test_the_timeline_stays_inside_its_width(report, width):
    drawn = timeline(report, width)
    for attribute in ("x", "x1", "x2", "cx"):
        for value in re.findall(rf' {attribute}="(-?[\d.]+)"', drawn):
            assert 0 <= float(value) <= width
