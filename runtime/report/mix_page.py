"""The mix of a run as a page: what each phase takes from each source."""

import math
from collections.abc import Mapping, Sequence

from runtime.data.consumption import SourceUse
from runtime.report.document import document
from runtime.report.figures import figure
from runtime.report.panel import series_of, stacked_bars
from runtime.report.recipe import tokens_label

CAPTION = "Point at a bar for the epochs by the end of the phase."


def page(title: str, uses: Sequence[SourceUse], labels: Mapping[str, str]) -> str:
    """Return a row for each source, most tokens first, its bar cut by phase.

    Args:
        title: heading of the page.
        uses: by phase in the order of the run; epochs are those by the end of a phase.
        labels: source to its shown name, where that differs.
    """
    total: dict[str, int] = {}
    for use in uses:
        total[use.source] = total.get(use.source, 0) + use.num_tokens
    order = sorted(total, key=lambda source: (-total[source], source))
    pieces: dict[str, dict[str, tuple[float, str]]] = {labels.get(source, source): {} for source in order}
    for use in uses:
        name = labels.get(use.source, use.source)
        epochs = f", {use.epochs:.2f} epochs by its end" if math.isfinite(use.epochs) else ""
        tip = f"{name}, {use.phase}: {tokens_label(use.num_tokens)} tokens{epochs}"
        pieces[name][use.phase] = (float(use.num_tokens), tip)
    series = series_of(list(dict.fromkeys(use.phase for use in uses)))
    shown = figure([stacked_bars("tokens", pieces, series)], CAPTION, legend=series)
    return document(title, "Tokens that each phase takes from each source.", shown)
