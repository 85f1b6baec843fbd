"""Page content: a recipe's additions to the page of page_server.py, such as curves and reports.

The engine knows only markup with scripts, values that change, and views: whole pages behind a link.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from marin_dag.errors import UserError


class PageContent:
    """The additions of a recipe, here none; several threads call the methods, which only read the store."""

    style: str = ""
    """CSS of the markup."""
    markup: str = ""
    """HTML that the server sends to clients without a key: it contains names of the recipe and no data of a run."""
    scripts: Sequence[str] = ()
    """Scripts of the markup; the content security policy allows exactly these."""

    def values(self, low: float | None, high: float | None) -> dict[str, Any]:
        """Return `figures` (values for the script, between two places of their x axis), `alarms` and `views`.

        An alarm has `name` of a step, `text`, `at` (a place of the x axis), `fix` (a command, or "") and more for the
        scripts, which get a chosen alarm as the event "alarm". A view has `name` and `title`.
        """
        return {"figures": {}, "alarms": [], "views": []}

    def view(self, name: str) -> str:
        """Return a whole HTML page; raise UserError if no view has the name, or the view has no data yet."""
        raise UserError(f"page: {name!r} is no view; this recipe has none.")

    def data(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return what a script of the markup asks for at `/data`; raise UserError for an unknown query."""
        raise UserError("page: this recipe has no data for scripts.")
