"""Report contents: results and files of a report's inputs, as the plain values that its page shows."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from marin_dag.graph.inputs import Input
from runtime.data.consumption import Consumption, MixtureFinding, PhaseDraws, SourceUse, tallied
from runtime.evaluation.stored_predictions import PREDICTIONS_FILE, read_predictions
from runtime.evaluation.window_noise import window_losses
from runtime.optim.ema import HOT
from runtime.optim.schedule import WsdS
from runtime.report import readings
from runtime.report.contents import (
    Evaluation,
    Export,
    HeatWindow,
    MixtureSpan,
    OtherWeights,
    Phase,
    PhaseAlarm,
    Report,
    Score,
    SourceCurve,
    Stage,
    name_of_weights,
)
from runtime.report.heat_map import MOST_CELLS_OF_A_REPORT, tokens_shown
from runtime.tracking.metrics import MetricsTable
from runtime.training.figure_checks import first_loss_of
from steps.decontaminate import DecontaminateResult
from steps.ema_eval import EmaEvalResult
from steps.filter import FilterResult
from steps.phase_result import FINAL_LOSS_STEPS
from steps.report_config import ReportConfig, phase_of


def contents_of(config: ReportConfig) -> Report:
    """Return results and files of the inputs as the plain values that the page shows."""
    draws = {name: readings.read_draws(phase.join(phase.result.source_losses)) for name, phase in config.phases.items()}
    metrics = {name: readings.read_metrics(phase.join(phase.result.metrics)) for name, phase in config.phases.items()}
    order = page_order(config)
    phases = _phases(config, order, metrics, draws)
    names = [*order, *config.others]
    exports = sorted(config.exports, key=lambda name: (names.index(phase_of(name, names)), name))
    predictions = _predictions(config, order)
    branches_first = sorted(phases, key=lambda phase: phase.is_main)  # the newest moment is that of the final model
    shown = [phase.name for phase in branches_first if phase.same_as is None and phase.name in predictions]
    return Report(
        title=config.title,
        introduction=config.introduction,
        command=config.command,
        phases=phases,
        others=tuple(_other_weights(config, name) for name in config.others),
        evaluations=tuple(
            _evaluation(config, name, predictions.get(name)) for name in names if name in config.evaluations
        ),
        texts=tuple(
            (phase, written.result)
            for phase in names
            for name, written in config.texts.items()
            if phase_of(name, names) == phase
        ),
        exports=tuple(_export(name, phase_of(name, names), config.exports[name]) for name in exports),
        scores=tuple(score for name in exports if name in config.scores for score in _scores(name, config)),
        stages=_stages(config),
        caches=sorted((_label(config, name), cache.result) for name, cache in config.caches.items()),
        consumption=_consumption(config, phases, metrics, draws) if config.caches else None,
        source_curves=_source_curves(config),
        alarms=tuple(
            alarm for phase in phases if phase.same_as is None for alarm in _alarms(config, phase, metrics[phase.name])
        ),
        final_loss_steps=FINAL_LOSS_STEPS,
        moments=tuple(name_of_weights(name, _weights(config.evaluations[name].result)) for name in shown),
        windows=_windows(config, [predictions[name] for name in shown]),
        law=None if config.law is None else config.law.result,
    )


def _label(config: ReportConfig, source: str) -> str:
    return config.labels.get(source, source)


def _labelled(config: ReportConfig, values: Mapping[str, float]) -> dict[str, float]:
    return {_label(config, source): value for source, value in values.items()}


def _renamed(config: ReportConfig, value: Any) -> Any:
    """Return a value about a source with the source's label."""
    return dataclasses.replace(value, source=_label(config, value.source))


def _source_curves(config: ReportConfig) -> tuple[SourceCurve, ...]:
    last = config.phases[config.main_line[-1]]
    curves = readings.read_source_curves(last.join(last.result.source_losses))
    return tuple(sorted((_renamed(config, curve) for curve in curves), key=lambda curve: curve.source))


def _alarms(config: ReportConfig, phase: Phase, metrics: MetricsTable) -> tuple[PhaseAlarm, ...]:
    if phase.same_as is not None:
        return ()
    mixture = config.mixtures.get(phase.name)
    rate, model = config.learning_rates.get(phase.name), config.untrained.get(phase.name)
    resets = {segment.start_step for segment in mixture.segments} if mixture else set()
    return readings.alarms_of(
        metrics,
        phase.name,
        begin_step=phase.start_step,
        resets_at=lambda step: step in resets or (isinstance(rate, WsdS) and rate.jumps_at(step)),
        first_loss=None if model is None else first_loss_of(model),
    )


def _consumption(
    config: ReportConfig, phases: Sequence[Phase], metrics: Mapping[str, MetricsTable], draws: Mapping[str, pa.Table]
) -> Consumption:
    """Return the tokens that each phase took from each source since the start of the run, by its log of draws.

    Findings cover whole paths: to the end of the main line, and to the end of each branch.
    """
    by_name = {phase.name: phase for phase in phases}
    num_tokens = {name: cache.result.num_train_tokens for name, cache in config.caches.items()}
    uses: list[SourceUse] = []
    findings: dict[tuple[str, str], MixtureFinding] = {}
    for phase in phases:
        way = [phase]
        while way[0].parent is not None:
            way.insert(0, by_name[way[0].parent])
        # A branch may leave its parent before the parent ends, and reads only what the parent had read until then.
        ends = [later.start_step for later in way[1:]] + [phase.step]
        read = [
            PhaseDraws(
                part.name,
                readings.drawn_between(draws[phase.name], part.start_step, end),
                readings.sequence_length_at(metrics[part.name], end),
            )
            for part, end in zip(way, ends, strict=True)
            if part.start_step < end
        ]
        found = tallied(read, num_tokens=num_tokens)
        uses += [_renamed(config, use) for use in found.uses if use.phase == phase.name]
        if not phase.is_main or phase.name == config.main_line[-1]:
            for item in (_renamed(config, finding) for finding in found.findings):
                findings.setdefault((item.kind, item.source), item)
    return Consumption(tuple(uses), tuple(findings.values()))


def page_order(config: ReportConfig) -> list[str]:
    """Return the main line, then the branches, each with what starts from it right behind it."""
    waiting = sorted(set(config.phases) - set(config.main_line))
    order = list(config.main_line)
    # A stack: what is to come first lies on top.
    pending = [name for place in (None, *order) for name in waiting if config.parents.get(name) == place][::-1]
    while pending:
        name = pending.pop()
        order.append(name)
        pending += [other for other in reversed(waiting) if config.parents.get(other) == name]
    if lost := sorted(set(waiting) - set(order)):
        raise ValueError(f"parents: {lost} start from no phase of the report, or from each other in a circle.")
    return order


def _phases(
    config: ReportConfig, order: Sequence[str], metrics: Mapping[str, MetricsTable], draws: Mapping[str, pa.Table]
) -> tuple[Phase, ...]:
    made: dict[str, Phase] = {}
    first_names: dict[str, str] = {}
    for name in order:
        result, parent = config.phases[name].result, config.parents.get(name)
        start_step = 0 if parent is None else _start_step(config, name, made[parent])
        curve = readings.curve_after(metrics[name], start_step)
        if not len(curve) or result.final_loss is None:
            raise ValueError(f"{name}: the skip rule skipped every training step. Remove the phase from the report.")
        first_name = first_names.setdefault(config.phases[name].key, name)
        mixture = config.mixtures.get(name)
        spans: Sequence[MixtureSpan] = ()
        if mixture is not None:
            tokens_at = functools.partial(readings.tokens_at, metrics[name])
            spans = readings.drawn_spans(draws[name], mixture, start_step, result.step, tokens_at)
        made[name] = Phase(
            name=name,
            parent=parent,
            is_main=name in config.main_line,
            start_step=start_step,
            step=result.step,
            start_tokens=readings.tokens_at(metrics[name], start_step),
            consumed_tokens=result.consumed_tokens,
            final_loss=result.final_loss,
            averages=result.averages,
            curve=curve,
            mixture=tuple(dataclasses.replace(span, shares=_labelled(config, span.shares)) for span in spans),
            changes=config.recipe.get(name, ()),
            same_as=None if first_name == name else first_name,
            fork_of=config.forks.get(name),
            fork_reason=config.fork_reasons.get(name, ""),
            num_targets=int(metrics[name].column("num_targets", start_step).sum()),
        )
    return tuple(made.values())


def _other_weights(config: ReportConfig, name: str) -> OtherWeights:
    """Return merged or imported weights as the first of their results counts their steps and tokens."""
    results: list[Input[Any]] = [config.evaluations[name]] if name in config.evaluations else []
    names = (*config.phases, *config.others)
    results += [found for each, found in {**config.exports, **config.texts}.items() if phase_of(each, names) == name]
    return OtherWeights(name, results[0].result.step, results[0].result.consumed_tokens)


def _start_step(config: ReportConfig, name: str, parent: Phase) -> int:
    """Return the training steps before the first that a phase has for itself."""
    result, before = config.phases[name].result, config.phases[parent.name].result
    if result.begin_step > before.begin_step:
        return result.begin_step
    # One training, cut in two: a part begins where the other ended, a stop of its parent where the parent did.
    return parent.step if result.step > parent.step else parent.start_step


def _weights(evaluation: EmaEvalResult) -> str:
    """Return the weights that phases are compared under: the first average, or the trained weights."""
    return next((measured.average.name for measured in evaluation.averages), HOT)


def _predictions(config: ReportConfig, order: Sequence[str]) -> dict[str, pa.Table]:
    """Return what the evaluation of each phase kept of single tokens."""
    found = {}
    for name in order:
        if name not in config.evaluations:
            continue
        evaluation = config.evaluations[name]
        path = evaluation.join(PREDICTIONS_FILE)
        filesystem, local = fsspec.core.url_to_fs(path)
        if filesystem.exists(local):  # an evaluation of zero windows keeps none
            found[name] = read_predictions(path).filter(pc.field("weights") == _weights(evaluation.result))
    return found


def _windows(config: ReportConfig, predictions: Sequence[pa.Table]) -> tuple[HeatWindow, ...]:
    """Return one window of each domain: the first in the order of their hashes."""
    found = readings.window_tables(predictions)
    if config.tokenizer is None or not found:
        return ()
    digests = dict(sorted(found, reverse=True))  # of equal domains, the last in this order counts
    first = {(domain, digest): found[domain, digest] for domain, digest in sorted(digests.items())}
    with fsspec.open(config.tokenizer.join(config.tokenizer.result.tokenizer), "rb") as file:
        tokenizer = Tokenizer.from_str(file.read().decode())
    num_shown = tokens_shown(len(first), len(predictions), MOST_CELLS_OF_A_REPORT)
    windows = readings.heat_windows(first, tokenizer, num_shown)
    return tuple(dataclasses.replace(window, domain=_label(config, window.domain)) for window in windows)


def _evaluation(config: ReportConfig, name: str, predictions: pa.Table | None) -> Evaluation:
    found = config.evaluations[name].result
    averages = {measured.average.name: _labelled(config, measured.by_domain) for measured in found.averages}
    windows = {} if predictions is None else window_losses(predictions, _weights(found))
    return Evaluation(
        name,
        found.consumed_tokens,
        _labelled(config, found.hot),
        averages,
        windows,
        found.num_tokens,
        found.num_bytes,
    )


def _export(name: str, phase: str, export: Input[Any]) -> Export:
    # Name and attempt would be different for the same identity, so the page shows what finds them below any prefix.
    folder = f"outputs/**/*-{export.digest[:8]}/*/{export.result.folder}"
    return Export(name, phase, export.result.weights, export.digest[:8], folder)


def _scores(name: str, config: ReportConfig) -> list[Score]:
    return [Score(**vars(score), export=name) for score in config.scores[name].result.scores]


def _stages(config: ReportConfig) -> tuple[Stage, ...]:
    made = []
    for source, stages in sorted((_label(config, name), stages) for name, stages in config.sources.items()):
        for stage, found in stages.items():
            result = found.result
            path = result.dropped_samples
            samples = readings.read_samples(found.join(path), config.samples_per_reason) if path else ()
            hits = result.hits_by_task if isinstance(result, DecontaminateResult) else {}
            counts = (result.num_documents, result.num_bytes, result.dropped, result.dropped_bytes)
            edits = (result.num_edited, result.num_bytes_removed) if isinstance(result, FilterResult) else (0, 0)
            made.append(Stage(source, stage, *counts, samples, hits, *edits))
    return tuple(made)
