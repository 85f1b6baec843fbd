"""Mix chart: what each phase takes from each source, as one drawing that needs no page around it."""

import math
from collections.abc import Mapping, Sequence

from runtime.data.consumption import SourceUse
from runtime.report.markup import Markup, element, joined
from runtime.report.scales import Scale, tokens_label

# The light colours of the page (runtime/report/theme.py); a file of its own has no variables to take them from.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b9649a", "#c98a00", "#3f9fd8", "#7a7a1f", "#6b5b95")
WIDTH, ROW, BAR, NAMES, FIGURES = 900, 24, 15, 190, 150
FONT = "12px system-ui,sans-serif"


def mix_chart(uses: Sequence[SourceUse], labels: Mapping[str, str], title: str) -> str:
    """Return an SVG: a row for each source, its bar cut by phase, tokens and epochs beside it.

    Args:
        uses: By leg in the order of the run; epochs are those by the end of a leg.
        labels: What to call a source; one without goes by its name.
        title: Above the drawing.
    """
    legs = list(dict.fromkeys(use.phase for use in uses))
    total: dict[str, int] = {}
    for use in uses:
        total[use.source] = total.get(use.source, 0) + use.num_tokens
    order = sorted(total, key=lambda source: (-total[source], source))
    scale = Scale(0, max(*total.values(), 1), NAMES, WIDTH - FIGURES)
    top = 62
    parts = [_text(title, 8, 22, font_weight="600"), *_legend(legs, 44)]
    for row, source in enumerate(order):
        y = top + row * ROW
        parts.append(_text(labels.get(source, source), NAMES - 8, y + BAR - 3, text_anchor="end"))
        begin, epochs = 0, 0.0
        for use in (use for use in uses if use.source == source):
            low, high = scale(begin), scale(begin + use.num_tokens)
            tip = element("title", f"{use.phase}: {tokens_label(use.num_tokens)} tokens")
            shape = {"x": low, "y": float(y), "width": max(high - low, 0.5), "height": float(BAR)}
            parts.append(element("rect", tip, fill=COLOURS[legs.index(use.phase) % len(COLOURS)], **shape))
            begin, epochs = begin + use.num_tokens, use.epochs
        summary_text = f"{tokens_label(begin)}, {epochs:.2f} epochs" if math.isfinite(epochs) else tokens_label(begin)
        parts.append(_text(summary_text, scale(begin) + 6, y + BAR - 3))
    height = top + len(order) * ROW + 8
    drawing = element(
        "svg",
        element("rect", width=WIDTH, height=height, fill="#fff"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
    )
    return str(drawing)


def _legend(legs: Sequence[str], y: float) -> list[Markup]:
    found, x = [], float(NAMES)
    for index, leg in enumerate(legs):
        found.append(element("rect", x=x, y=y - 9, width=10, height=10, fill=COLOURS[index % len(COLOURS)]))
        found.append(_text(leg, x + 14, y))
        x += 28 + 6.8 * len(leg)
    return found


def _text(words: str, x: float, y: float, **attributes: str) -> Markup:
    style = f"font:{attributes.pop('font_weight', '400')} {FONT}"
    return element("text", joined([words]), x=x, y=y, style=style, fill="#16191d", **attributes)
