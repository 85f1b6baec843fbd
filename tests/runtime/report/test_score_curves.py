"""Measures over tokens: a panel each, a curve for each set of weights, and bars of the 95 % interval."""

from bokeh.models import Range1d, Span

from runtime.report.score_curves import ScorePoint, _panel, measures
from tests.runtime.report.drawn import panels

POINTS = (
    ScorePoint("kestrel", "hot", 5, 500, "bits per byte", 1.5),
    ScorePoint("kestrel", "ema", 5, 500, "bits per byte", 1.25),
    ScorePoint("kestrel", "hot", 5, 500, "piqa", 0.5, 0.125, 0.5),
    ScorePoint("kestrel", "hot", 9, 900, "piqa", 0.75, 0.25, 0.5),
)


def test_each_point_has_a_bar_that_holds_the_truth_19_times_in_20_where_its_error_is_known():
    bits, piqa = panels(measures(POINTS, end=900))
    assert [mark.name for mark in bits.of("Scatter")] == ["kestrel", "kestrel, ema"] and not bits.of("Segment")
    (line,), (bars,) = piqa.of("Line"), piqa.of("Segment")
    assert line.data == {"x": [500, 900], "y": [0.5, 0.75]}
    assert (bars.data["y0"], bars.data["y1"]) == ([0.255, 0.26], [0.745, 1.24])
    assert piqa.tips[0] == "kestrel after step 5: 0.5000 ± 0.1250"


def test_chance_is_a_line_at_its_height():
    (line,) = _panel("piqa", POINTS[2:], Range1d(0, 1)).plot.select({"type": Span})
    assert (line.dimension, line.location) == ("width", 0.5)
