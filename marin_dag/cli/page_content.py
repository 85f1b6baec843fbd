"""Page content: what a recipe adds to the page of page_server.py, such as curves and reports.

The engine knows only that there is markup with scripts, values that change, and views: whole pages behind a link.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from marin_dag.errors import UserError


class PageContent(Protocol):
    """Methods are called by several threads, and read nothing but the store."""

    @property
    def style(self) -> str:
        """CSS of the markup."""

    @property
    def markup(self) -> str:
        """HTML that is sent to a client without a key, so it holds nothing of a run but names of the recipe."""

    @property
    def scripts(self) -> Sequence[str]:
        """Scripts of the markup; the content security policy allows exactly these."""

    def values(self, low: float | None, high: float | None) -> dict[str, Any]:
        """Return `figures` (values for the script, between two places of their x axis), `alarms` and `views`.

        An alarm has `name` of a step, `text`, `at` (a place of the x axis) and `fix` (a command, or ""). A view has
        `name` and `title`.
        """

    def view(self, name: str) -> str:
        """Return a whole HTML page; raise UserError where no view has the name or nothing is there to show."""


class NoContent:
    """The content of a recipe that adds none."""

    style = markup = ""
    scripts: Sequence[str] = ()

    def values(self, low: float | None, high: float | None) -> dict[str, Any]:
        """Return nothing to show."""
        return {"figures": {}, "alarms": [], "views": []}

    def view(self, name: str) -> str:
        """Raise UserError."""
        raise UserError(f"page: {name!r} is no view.")
