"""Remarks: what is right about a step, may be run as it is, and is perhaps not what a person meant."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from marin_dag.graph.graph import Graph


class Remark(NamedTuple):
    """One of them; `cure` is field to text, as `--set STEP.FIELD=TEXT` takes it, of what may be meant instead."""

    text: str
    cure: Mapping[str, str]

    def options(self, step: str = "") -> str:
        """The cure as options of the command line; without `step`, as `fork` takes them."""
        owner = f"{step}." if step else ""
        return shlex.join(word for field, text in self.cure.items() for word in ("--set", f"{owner}{field}={text}"))


Remarks = Callable[[Graph], Mapping[str, Sequence[Remark]]]
"""What a pipeline has to say of the steps of a graph, by name."""


def no_remarks(graph: Graph) -> Mapping[str, Sequence[Remark]]:
    """Of a pipeline that has nothing to say."""
    return {}
