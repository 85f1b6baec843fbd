"""Documents page: what a step keeps and drops side by side, and sliders that show what another threshold would drop."""

from collections.abc import Mapping
from typing import Any

from runtime.report.html import document
from runtime.report.page_html import macro, source


def page(title: str, lead: str, lists: Mapping[str, Mapping[str, Any]], sample: Mapping[str, Any] | None) -> str:
    """Return the whole page.

    Args:
        lists: data of the lists "kept" and "dropped".
        sample: measures of a filter's sample; None for other steps.
    """
    shown = macro("documents.html", "of_step", lists, sample)
    return document(title, lead, shown, scripts=(source("documents.js"),))
