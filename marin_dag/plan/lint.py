"""Lint: warnings about steps whose configs are valid but perhaps not what the author meant."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from marin_dag.graph.graph import Graph


class LintWarning(NamedTuple):
    """A warning about one step."""

    text: str
    cure: Mapping[str, str]
    """Field to the text that `--set STEP.FIELD=TEXT` takes, of the config that the author may have meant."""

    def options(self, step: str = "") -> str:
        """Return the cure as --set options; without `step`, as `fork` takes them."""
        owner = f"{step}." if step else ""
        return shlex.join(word for field, text in self.cure.items() for word in ("--set", f"{owner}{field}={text}"))


Lint = Callable[[Graph], Mapping[str, Sequence[LintWarning]]]
"""Returns the warnings about the steps of a graph, by name."""


def no_lint(graph: Graph) -> Mapping[str, Sequence[LintWarning]]:
    return {}
