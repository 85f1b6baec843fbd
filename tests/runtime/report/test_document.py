"""Figures: values arrive exactly, at most so many of them, under the names of their series."""

import numpy as np
import pytest
from bokeh.models import Range1d
from hypothesis import given
from hypothesis import strategies as st

from runtime.report.figure import figure
from runtime.report.panel import (
    Panel,
    Series,
    around,
    extremes,
    main_and_branches,
    series_of,
    settled,
)
from runtime.report.recipe import bytes_label, counted, tokens_label
from tests.runtime.report.drawn import panels

MAIN = Series("main line", "#005f9e")


def one_line(xs, ys):
    panel = Panel("loss", Range1d(0, 1), Range1d(0, 1))
    panel.line(MAIN, xs, ys)
    return figure([panel], "")


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=400), st.integers(8, 160))
def test_fewer_rows_keep_the_least_the_greatest_and_the_ends(values, most):
    xs, ys = np.arange(len(values)), np.array(values)
    kept_xs, kept_ys = extremes(xs, ys, most)
    assert (kept_ys.min(), kept_ys.max()) == (ys.min(), ys.max())
    assert (kept_xs[0], kept_xs[-1]) == (xs[0], xs[-1])
    assert len(kept_xs) <= most
    assert np.array_equal(ys[kept_xs], kept_ys)


def test_values_that_are_not_finite_are_dropped():
    xs, ys = extremes(np.array([1, 2, 3, 4]), np.array([1.0, np.nan, np.inf, 2.0]), 100)
    assert (xs.tolist(), ys.tolist()) == ([1, 4], [1, 2])


def test_tokens_and_losses_arrive_exactly():
    tokens, losses = [12_700_000_000_001, 2**52], np.array([2.8182817, 3.1415927], np.float32)
    (panel,) = panels(one_line(tokens, losses))
    data = panel.marks[0].data
    assert data["x"] == tokens and np.array_equal(np.float32(data["y"]), losses)


def test_equal_values_give_equal_bytes_whatever_was_drawn_before():
    first = one_line([1, 2], [3, 4])
    one_line([5], [6])
    assert one_line([1, 2], [3, 4]) == first


def test_no_name_or_tip_ends_the_element_that_holds_the_data_or_turns_the_text():
    name = "</script><script>alert(1)</script>\u202e@{y}{safe}"
    panel = Panel(name, Range1d(0, 1), [name])
    panel.draw(panel.plot.hbar, Series(name, MAIN.colour), ("y", "left", "right", "tip"), [(name, 0, 1, name)])
    text = figure([panel], name, legend=series_of([name]))
    assert text.count("<script") == text.count("</script") == 1 and "\u202e" not in text and "\\u202e" not in text
    (drawn,) = panels(text)
    assert drawn.tips == [name.replace("\u202e", "�")]


def test_text_of_a_run_is_in_no_template_of_a_tooltip():
    name = "@{y}{safe}"
    panel = Panel(name, Range1d(0, 1), Range1d(0, 1))
    panel.line(Series(name, MAIN.colour), [0], [1])
    panel.draw(panel.plot.scatter, Series(name, MAIN.colour), ("x", "y", "tip"), [(0, 1, name)])
    templates = [tool.tooltips for tool in panel.plot.toolbar.tools if hasattr(tool, "tooltips")]
    assert len(templates) == 2 and name not in str(templates)


def test_each_branch_has_a_colour_and_stroke_of_its_own():
    runs = main_and_branches([f"branch {index}" for index in range(25)])
    assert len({(series.colour, series.dash) for series in runs.values()}) == 26
    sources = series_of([f"source {index}" for index in range(25)])
    assert len({(series.colour, series.dash) for series in sources.values()}) == 25


def test_a_range_around_equal_values_has_an_extent():
    ends = around([3.0, 3.0])
    assert ends.start < 3 < ends.end


def test_the_upper_end_of_an_axis_is_of_the_values_behind_the_first_fall():
    tokens, values = np.array([1, 50, 100]), np.array([9.0, 3.0, 2.0])
    assert settled(tokens, values, 100).tolist() == [3, 2]
    assert settled(tokens[:1], values[:1], 100).tolist() == [9], "a run at its first steps"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12, "12"), (999, "999"), (1_000, "1.00k"), (840_123, "840k"), (12.75e12, "12.8T"), (4.2e6, "4.20M")],
)
def test_tokens_are_written_with_three_figures(value, text):
    assert tokens_label(value) == text


def test_bytes_and_counts_are_written_as_people_do():
    assert (bytes_label(512), bytes_label(30.1e6), bytes_label(2e9)) == ("512 B", "30.1 MB", "2.00 GB")
    assert [counted(number, "document") for number in (1, 0, 1_200)] == ["1 document", "0 documents", "1,200 documents"]
