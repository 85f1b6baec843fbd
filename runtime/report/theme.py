"""Colours of figures on a light page; `templates/style.css` holds the one that each has on a dark page."""

MAIN, BRANCH, PAGE, INK, MUTED, GRID = "#005f9e", "#c8500a", "#fffffe", "#16191d", "#6b747e", "#e3e6ea"
# Bokeh leaves its own white out of the JSON, where the script looks for colours: the page's is one shade off.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b9649a", "#c98a00", "#3f9fd8", "#7a7a1f", "#6b5b95")
DIVERGING = (
    "#005f9e", "#4d8fbb", "#94bbd6", "#cfe0ec", "#f3f5f7", "#f6dccb", "#eab08c", "#d9804b", "#c8500a",
)  # fmt: skip
"""Colours from below to above."""
