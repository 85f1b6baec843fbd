"""What the report says about the graph itself: its steps, and what each phase changes, read off the steps."""

from collections.abc import Iterable, Mapping

from marin_dag.graph.step import Step
from pipelines.timeline import phase_before
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.report.recipe import described
from steps.phase_config import TrainPhaseConfig, chosen_settings
from steps.phase_timeline import changes
from steps.report_config import GraphNode, RecipeChange


def graph_of(targets: Iterable[Step]) -> tuple[GraphNode, ...]:
    """The targets and every step that they read, inputs first. A step "kind/source" or "kind/phase" stands in the row
    of that source or phase, any other, and a phase, in the row of its own name."""
    found: dict[str, GraphNode] = {}

    def visit(step: Step) -> None:
        if step.name in found:
            return
        inputs = list(dict.fromkeys(item.step.name for _, item in step.inputs))
        for _, item in step.inputs:
            visit(item.step)
        # A phase's name is whole: a fork may be called "z_loss/one", and its evaluation is "ema_eval/z_loss/one".
        group = step.name if isinstance(step.config, TrainPhaseConfig) else step.name.partition("/")[2] or step.name
        found[step.name] = GraphNode(name=step.name, kind=step.kind.name, inputs=tuple(inputs), group=group)

    for target in targets:
        visit(target)
    return tuple(found.values())


def with_report(nodes: tuple[GraphNode, ...], name: str, inputs: Iterable[Step]) -> tuple[GraphNode, ...]:
    """The graph with the report itself, which cannot be read off a step that does not exist yet."""
    return (*nodes, GraphNode(name=name, kind="report", inputs=tuple(step.name for step in inputs), group=name))


def parents_of(phases: Mapping[str, Step]) -> dict[str, str]:
    """Phase -> the phase it starts from, for those that start from one."""
    starts = {name: phase_before(phase) for name, phase in phases.items()}
    return {name: start.step.name for name, start in starts.items() if start is not None}


def recipe_of(
    phases: Mapping[str, Step], labels: Mapping[str, str] | None = None
) -> dict[str, tuple[RecipeChange, ...]]:
    """What each phase sets otherwise than the one it starts from; a first phase says all that it sets.

    `labels` are what to call sources whose key is not what a person calls them.
    """
    labels = labels or {}
    parents = parents_of(phases)
    found = {}
    for name, phase in phases.items():
        if name in parents:
            start = phases[parents[name]].config
            pairs = [(item.field, item.before, item.after) for item in changes(start, phase.config)]
        else:
            pairs = [(field, None, value) for field, value in chosen_settings(phase.config).items()]
            if phase.predecessor is not None:
                pairs.insert(0, ("start", None, f"{phase.predecessor.step.name} ({phase.config.restore})"))
        found[name] = tuple(
            RecipeChange(
                field=field,
                before="" if name not in parents else described(_labelled(before, labels)),
                after=described(_labelled(after, labels)),
            )
            for field, before, after in pairs
        )
    return found


def _labelled(value: object, labels: Mapping[str, str]) -> object:
    if not isinstance(value, MixtureSchedule):
        return value
    return MixtureSchedule(
        tuple(
            MixtureSegment(
                segment.start_step, {labels.get(key, key): weight for key, weight in segment.weights.items()}
            )
            for segment in value.segments
        )
    )
