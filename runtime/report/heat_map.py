"""Heat map: held-out text whose background shows how well a model predicts each token, at moments of its training.

The page draws a window at one moment, or the change between two moments. A moment is a step of a phase under one set of
weights, so moments also compare EMA weights, phases and forks.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from runtime.report.contents import HeatWindow, Moment
from runtime.report.html import document, macro, source
from runtime.report.recipe import counted

MOST_CELLS, MOST_CELLS_OF_A_REPORT = 48_000, 18_000
"""Tokens times moments of a page, which then have about 3 MB; figures of a report may take 3.8 MB of its 5."""
FEWEST_TOKENS = 24
"""Tokens of a window that a page shows in any case."""


def tokens_shown(num_windows: int, num_moments: int, most_cells: int = MOST_CELLS) -> int:
    """Return how many tokens of each window a page shows at most."""
    return max(FEWEST_TOKENS, most_cells // (num_windows * num_moments))


def page(
    title: str,
    moments: Sequence[str],
    windows: Sequence[HeatWindow],
    notes: Sequence[str] = (),
    *,
    text: str = "held-out text",
) -> str:
    """Return the whole page.

    Args:
        moments: their names: branches, then the main line, each in the order of training; the last is the newest.
        windows: at least one; suspiciously easy ones come first, then the hardest.
        notes: sentences below the map.
        text: what the windows are of.
    """
    lead = f"{counted(len(windows), 'window')} of {text} at {counted(len(moments), 'moment')}."
    return document(title, lead, heat_map(moments, windows), notes=notes, scripts=(source("heat_map.js"),))


def heat_map(moments: Sequence[str], windows: Sequence[HeatWindow], most_cells: int = MOST_CELLS) -> Markup:
    """Return the map of windows, one a document: suspiciously easy ones, then the hardest first."""
    ordered = sorted(
        windows, key=lambda window: (not window.is_suspicious, -window.mean_loss, window.domain, window.digest)
    )
    num_shown = tokens_shown(len(ordered), len(moments), most_cells)
    is_cut = any(len(window.texts) > num_shown for window in ordered)
    data = {"moments": moments, "windows": [_data(window, num_shown) for window in ordered]}
    return macro("heat_map.html", "heat_map", moments, ordered, data, num_shown if is_cut else None)


def _data(window: HeatWindow, num_shown: int) -> dict[str, Any]:
    moments = [None if moment is None else _moment_data(moment, num_shown) for moment in window.moments]
    return {"texts": window.texts[:num_shown], "moments": moments}


def _moment_data(moment: Moment, num_shown: int) -> dict[str, Any]:
    def rounded(values: np.ndarray, digits: int) -> list[float | None]:
        return [round(value, digits) if math.isfinite(value) else None for value in values[:num_shown].tolist()]

    ranks = moment.rank[:num_shown].tolist()
    log_probs = [[round(value, 2) for value in values] for values in moment.likely_log_prob[:num_shown].tolist()]
    return {
        "logProb": rounded(moment.log_prob, 3),
        "rank": ranks,
        "entropy": rounded(moment.entropy, 2),
        "likely": [
            [*zip(words, values, strict=True)] if rank >= 0 else []
            for rank, words, values in zip(ranks, moment.likely[:num_shown], log_probs, strict=True)
        ],
    }
