"""Evaluations of milestones: the evaluations at the end of each phase, repeated while the phases train."""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.background import Background
from marin_dag.graph.graph import Graph
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.resources import Cpu, Resources
from marin_dag.graph.step import Step
from marin_dag.values.changes import value_change, value_changes
from pipelines.machines import MACHINES, resources_named
from pipelines.phases import phases_in
from runtime.optim.ema import HOT
from steps.ema_eval import ema_eval
from steps.hf_export import hf_export
from steps.joined_scores import SCORING_KINDS
from steps.lm_eval import lm_eval
from steps.phase_config import TrainPhaseConfig

OPTION = "--evaluate-every"
MAX_WAITING = 8
"""Milestones of a phase whose evaluations may wait for machines; older ones are skipped."""

Build = Callable[[argparse.Namespace], Sequence[Step[Any]]]


@dataclasses.dataclass(frozen=True)
class _Templates:
    """The evaluation, exports and scores that a recipe has of one phase."""

    evaluations: tuple[Step[Any], ...] = ()
    exports: tuple[Step[Any], ...] = ()
    scores: tuple[Step[Any], ...] = ()


def evaluate_every(
    results: Sequence[Step[Any]],
    steps: int,
    *,
    phases: Sequence[Step[Any]] = (),
    resources: Resources | None = None,
    max_waiting: int | None = MAX_WAITING,
) -> list[Step[Any]]:
    """Return the evaluations, exports and scores of `results`, repeated every `steps` training steps of their phases.

    Each starts when its milestone is published, the newest first, and no phase waits for it.

    Args:
        results: `ema_eval`, `hf_export`, `lm_eval` and `joined_scores` steps at the end of phases.
        steps: distance of the milestones in training steps since the start of the run.
        phases: further phases; a kind of result that a phase lacks is copied from the last phase that has this kind.
        resources: machines of the evaluations; if not given, those of the scores, else of each result.
        max_waiting: milestones of a phase that may wait for machines; evaluations of older ones are skipped.

    Raises:
        UserError: `steps` is below 1, or an evaluation would take the machines from its phase.
    """
    if steps < 1:
        raise UserError(f"{OPTION} {steps}: give a number of training steps, 1 or more.")
    every = [step for step in Graph(results).steps if step.kind in (ema_eval, hf_export, lm_eval)]
    templates = _templates(every)
    if not templates:
        raise UserError(
            f"{OPTION}: the recipe evaluates no phase. Return steps of `recipe.evaluate` or `recipe.score` from it."
        )
    machines = resources or next((step.resources for of in templates.values() for step in of.scores), None)
    found: list[Step[Any]] = []
    for phase in phases_in([*phases, *(_phase_of(step) for step in every if _is_at_end(step))]).values():
        own, borrowed = templates.get(phase.name, _Templates()), _last_of_each(templates)
        for at in _milestones(phase.config, steps):
            place = functools.partial(_placed, phase, Background(phase.name, at, max_waiting), machines)
            found += _repeated(phase, at, own, borrowed, place)
    return found


def with_milestones(build: Build, parsed: argparse.Namespace) -> Sequence[Step[Any]]:
    """Return the recipe's targets and, with `--evaluate-every`, the evaluations of every phase's milestones."""
    targets = build(parsed)
    if parsed.evaluate_every is None:
        return targets
    steps = Graph(targets).steps
    known = {step.name for step in steps}
    machines = None if parsed.evaluate_on is None else resources_named(parsed.evaluate_on)
    phases = list(phases_in(steps).values())
    added = evaluate_every(targets, parsed.evaluate_every, phases=phases, resources=machines)
    return [*targets, *(step for step in added if step.name not in known)]


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    what = "also evaluate, export and score each phase at every Nth training step, while the phases train"
    parser.add_argument(OPTION, metavar="N", type=int, help=what)
    parser.add_argument("--evaluate-on", metavar="MACHINE", help=f"machine of these evaluations: {MACHINES}")


def milestone_of(step: Step[Any]) -> OutputRef[Step[Any]]:
    """Return the phase, at its end or at a milestone, that an evaluation, an export or a score reads."""
    reference: OutputRef[Step[Any]] = (step.config.export.step if step.kind in SCORING_KINDS else step).config.phase
    return reference


def is_of_training(step: Step[Any]) -> bool:
    """Return whether a step evaluates, exports or scores a phase that trains, and not imported or merged weights."""
    return is_of_weights(step, TrainPhaseConfig)


def is_of_weights(step: Step[Any], *kinds: type[BaseModel]) -> bool:
    """Return whether a step evaluates, exports or scores weights of a step whose config is of one of these types."""
    if step.kind in SCORING_KINDS:
        return step.config.export.step.kind is hf_export and is_of_weights(step.config.export.step, *kinds)
    return step.kind in (ema_eval, hf_export) and isinstance(step.config.phase.step.config, kinds)


def _is_at_end(step: Step[Any]) -> bool:
    return is_of_training(step) and milestone_of(step).at is None


def _phase_of(step: Step[Any]) -> Step[Any]:
    phase: Step[Any] = milestone_of(step).step
    return phase


def _templates(results: Sequence[Step[Any]]) -> dict[str, _Templates]:
    found: dict[str, _Templates] = {}
    for step in filter(_is_at_end, results):
        of = found.get(_phase_of(step).name, _Templates())
        field = {ema_eval: "evaluations", hf_export: "exports", lm_eval: "scores"}[step.kind]
        found[_phase_of(step).name] = dataclasses.replace(of, **{field: (*getattr(of, field), step)})
    return found


def _last_of_each(templates: Mapping[str, _Templates]) -> _Templates:
    """Return the first evaluation, and the first export with its scores, of the last phase that has any."""
    evaluations = [of.evaluations[:1] for of in templates.values() if of.evaluations]
    exports = [of for of in templates.values() if of.exports]
    export = exports[-1].exports[:1] if exports else ()
    scores = tuple(step for of in exports[-1:] for step in of.scores if step.config.export.step is export[0])
    return _Templates(evaluations[-1] if evaluations else (), export, scores)


def _milestones(phase: TrainPhaseConfig, steps: int) -> range:
    return range((phase.begin_step // steps + 1) * steps, phase.until_step + 1, steps)


def _repeated(
    phase: Step[Any], at: int, own: _Templates, borrowed: _Templates, place: Callable[[Step[Any]], Step[Any]]
) -> Iterator[Step[Any]]:
    """Yield the results of a phase at one milestone, without those that the recipe itself has at the phase's end."""
    is_end = at == phase.config.until_step
    for template in own.evaluations or borrowed.evaluations:
        if not (is_end and own.evaluations):
            # On other machines than the phase's, its number of copies may not divide the devices.
            fields: dict[str, Any] = {"phase": phase.at(step=at), "replica_parallel": 1}
            yield place(template.forked(_name(template, phase, at), list(value_changes(fields))))
    if is_end and own.exports:
        return
    kept = {HOT, *(average.name for average in phase.config.averages)}
    for template in own.exports or borrowed.exports:
        weights = template.config.weights if template.config.weights in kept else HOT
        model_name = f"{template.config.model_name} after step {at:,}"
        fields = {"phase": phase.at(step=at), "weights": weights, "model_name": model_name}
        export = place(template.forked(_name(template, phase, at), list(value_changes(fields))))
        yield export
        scores = [score for score in (own if own.exports else borrowed).scores if score.config.export.step is template]
        for score in scores:
            name = _name(score, phase, at, is_alone=len(scores) == 1)
            yield place(score.forked(name, [value_change("export", export)]))


def _name(template: Step[Any], phase: Step[Any], at: int, *, is_alone: bool = True) -> str:
    """Return the name of a template's repetition; a borrowed one that is not alone keeps the last part of its name."""
    if _phase_of(template) is phase:
        return f"{template.name}-step-{at}"
    part = "" if is_alone else f"/{PurePosixPath(template.name).name}"
    return f"{template.kind.name}/{phase.name}{part}-step-{at}"


def _placed(phase: Step[Any], background: Background, machines: Resources | None, step: Step[Any]) -> Step[Any]:
    """Return the step in the background, on its machines; raise UserError if its phase would wait for the machines."""
    placed = step if machines is None else step.on(machines)
    if placed.resources == phase.resources and not isinstance(placed.resources, Cpu):
        raise UserError(
            f"{placed.name}: runs on {placed.resources} like {phase.name}, which would wait for this step. Give "
            "evaluations their own machines: --evaluate-on MACHINE, or recipe.evaluate_every(..., resources=...)."
        )
    return placed.in_background(background)
