"""The report once more with the forks in it, so that an ablation can be read beside what it left.

A page of its own: a fork that fails, or is dropped again, must not touch the report of the recipe itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from marin_dag.graph.fork import Fork
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from pipelines.reporting import graph_of, parents_of, recipe_of, with_report
from steps.ema_eval import ema_eval
from steps.report import report
from steps.report_config import ReportConfig
from steps.train_phase import train_phase

NAME = "report/forks"
LEFT_OUT = "Not on this page, since they failed or cannot start"


def fork_report(graph: Graph, every: Sequence[Fork], left_out: Sequence[Fork]) -> Sequence[Step[Any]]:
    """The page over everything that the report of `graph` shows and the forks of its phases; none without such forks.

    Args:
        graph: with all forks in it, and what follows them.
        every: the forks.
        left_out: further ones, which would hold the page up; it names those of phases.
    """
    bases = {fork.name: fork.base for fork in every}
    written = graph.step("report")
    shown = written.config
    if not isinstance(shown, ReportConfig):
        raise TypeError(f"the step 'report' has a {type(shown).__name__}; a page with forks is made of a ReportConfig.")
    phases = {name: graph.step(name) for name in shown.phases}
    forks = {
        name: base
        for name, base in bases.items()
        if graph.step(name).kind is train_phase and _leads_to(base, phases, bases)
    }
    if not forks:
        return ()
    phases |= {name: graph.step(name) for name in forks}
    evaluations = {name: graph.step(item.name) for name, item in shown.evaluations.items()}
    evaluations |= _evaluations(graph, forks)
    everything = [*(item.step for _, item in written.inputs), *phases.values(), *evaluations.values()]
    nodes = {node.name: node for node in graph_of(everything)}
    absent = ", ".join(fork.name for fork in left_out if graph.step(fork.name).kind is train_phase)
    inputs = list({step.name: step for step in everything}.values())
    config = shown.model_copy(
        update={
            "title": f"{shown.title}, with its forks",
            "introduction": f"{shown.introduction} {LEFT_OUT}: {absent}." if absent else shown.introduction,
            "phases": phases,
            "parents": parents_of(phases),
            "forks": forks,
            "fork_reasons": {fork.name: fork.reason for fork in every if fork.name in forks and fork.reason},
            "mixtures": {name: phase.config.mixture for name, phase in phases.items()},
            "recipe": recipe_of(phases, shown.labels),
            "evaluations": evaluations,
            "graph": with_report(tuple(nodes.values()), NAME, inputs),
        }
    )
    page = report(NAME, ReportConfig.model_validate(dict(config)))
    page.declared = None  # in no source file
    return (page,)


def _leads_to(base: str, phases: Mapping[str, Step[Any]], bases: Mapping[str, str]) -> bool:
    """Whether a fork's base is a phase of the report, or a fork of one."""
    while base in bases and base not in phases:
        base = bases[base]
    return base in phases


def _evaluations(graph: Graph, forks: Mapping[str, str]) -> dict[str, Step[Any]]:
    """Fork -> its evaluation."""
    found = {}
    for step in graph.steps:
        if step.kind is ema_eval and (of := step.config.phase.step.name) in forks:
            found[of] = step
    return found
