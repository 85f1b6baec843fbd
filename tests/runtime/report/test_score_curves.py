"""The page of scores over tokens: a panel a measure, a curve a set of weights, and bars of one standard error."""

from runtime.report.score_curves import ScorePoint, page
from tests.runtime.report.drawn import panels

POINTS = (
    ScorePoint("kestrel", "hot", 5, 500, "bits per byte", 1.5, None, None),
    ScorePoint("kestrel", "ema", 5, 500, "bits per byte", 1.25, None, None),
    ScorePoint("kestrel", "hot", 5, 500, "piqa", 0.5, 0.125, 0.5),
    ScorePoint("kestrel", "hot", 9, 900, "piqa", 0.75, 0.25, 0.5),
)


def test_each_point_has_a_bar_of_one_standard_error_where_it_is_known():
    bits, piqa = panels(page("Scores", POINTS))
    assert [mark.name for mark in bits.of("Line")] == ["kestrel", "kestrel, ema"] and not bits.of("Segment")
    (line,), (bars,) = piqa.of("Line"), piqa.of("Segment")
    assert line.data == {"x": [500, 900], "y": [0.5, 0.75]}
    assert (bars.data["y0"], bars.data["y1"]) == ([0.375, 0.5], [0.625, 1.0])
