"""The report once more with the forks in it, so that an ablation can be compared with its base.

The page is a step of its own: a fork that fails or is dropped does not touch the report of the recipe.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from marin_dag.graph.fork import Fork
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from pipelines.reporting import RESULT_KINDS, report_on
from steps.ema_eval import ema_eval
from steps.report_config import ReportConfig
from steps.sample import sample
from steps.train_phase import train_phase

NAME = "report/forks"
ABSENT = "Not on this page, since they failed or cannot start"


def fork_report(graph: Graph, every: Sequence[Fork], absent: Sequence[Fork]) -> Sequence[Step[Any]]:
    """Return the report on what the step "report" shows and on the forks of its phases; nothing without such forks.

    Args:
        graph: the recipe with all forks and what follows them.
        every: the forks to show.
        absent: forks that would hold the page up; the page lists those of phases.
    """
    if "report" not in graph:
        return ()
    written = graph.step("report")
    shown = written.config
    if not isinstance(shown, ReportConfig):
        return ()
    bases = {fork.name: fork.base for fork in every}
    forks = {
        name: base
        for name, base in bases.items()
        if graph.step(name).kind is train_phase and _leads_to(base, shown.phases, bases)
    }
    if not forks:
        return ()
    results = [graph.step(item.step.name) for _, item in written.inputs if item.step.kind in RESULT_KINDS]
    at_end = [step for step in graph.steps if step.kind in (ema_eval, sample) and step.background is None]
    results += [step for step in at_end if step.config.phase.step.name in forks]
    listed = ", ".join(fork.name for fork in absent if graph.step(fork.name).kind is train_phase)
    page = report_on(
        results,
        name=NAME,
        title=f"{shown.title}, with its forks",
        introduction=f"{shown.introduction} {ABSENT}: {listed}." if listed else shown.introduction,
        command=shown.command,
        labels=shown.labels,
        further_phases=[graph.step(name) for name in (*shown.phases, *forks)],
        forks=forks,
        fork_reasons={fork.name: fork.reason for fork in every if fork.name in forks and fork.reason},
    )
    page.declared = None  # no line of a source file declares it
    return (page,)


def _leads_to(base: str, phases: Collection[str], bases: Mapping[str, str]) -> bool:
    """Return whether a fork's base is a phase of the report, or a fork of one."""
    while base in bases and base not in phases:
        base = bases[base]
    return base in phases
