"""The lines that a finished run ends with, read from the records of its steps."""

import statistics
from collections.abc import Iterator
from typing import Any

from marin_dag.cli.session import Finished
from marin_dag.graph.step import Step
from marin_dag.quantities import counted
from pipelines.milestone_evaluations import is_of_training, milestone_of
from pipelines.phases import main_line_of, phases_in, run_phases_in
from runtime.evaluation.task_score import implausible, leading_of_each_task
from steps.documents import DocumentsResult
from steps.ema_eval import EmaEvalResult, ema_eval
from steps.joined_scores import whole_scores
from steps.lm_eval import LmEvalResult


def headline(run: Finished) -> Iterator[str]:
    """Yield the final model's quality, what was dropped from the user's files, and the time that the run took."""
    steps = run.graph.steps
    phases = phases_in(steps)
    if phases:
        final = main_line_of(run_phases_in(phases))[-1]
        at_end = [step for step in steps if is_of_training(step) and step.background is None]
        of_final = [step for step in at_end if milestone_of(step).step.name == final]
        evaluations = (step for step in of_final if step.kind is ema_eval)
        scores = iter(whole_scores(of_final))
        yield from quality(final, _result(run, evaluations), _result(run, scores))
    for name in run.steps:
        if name.startswith("extract/") and (result := run.result(name)) is not None:
            yield from _unreadable(name, result)
    if run.seconds is not None:
        minutes, seconds = divmod(round(run.seconds), 60)
        yield f"done in {minutes} min {seconds} s" if minutes else f"done in {seconds} s"


def quality(phase: str, evaluation: EmaEvalResult | None, scored: LmEvalResult | None) -> Iterator[str]:
    """Yield bits per byte and scores of a phase, as far as they are there."""
    if evaluation is not None:
        average = evaluation.averages[0] if evaluation.averages else None
        weights, value = ("weights", evaluation.hot_mean) if average is None else ("EMA weights", average.mean)
        domains = "1 held-out domain" if len(evaluation.hot) == 1 else f"{len(evaluation.hot)} held-out domains"
        yield (
            f"{phase}: {value:.3f} bits per byte ({weights}, mean of {domains}) after "
            f"{evaluation.consumed_tokens:,} tokens"
        )
    if scored is None:
        return
    scores = leading_of_each_task(score for score in scored.scores if score.chance is not None)
    if scores:
        accuracy = statistics.fmean(score.value for score in scores)
        chance = statistics.fmean(score.chance or 0.0 for score in scores)
        tasks = counted(len(scores), "task")
        yield f"{phase}: lm-eval mean accuracy {accuracy:.3f} over {tasks}; guessing gives {chance:.3f}"
    for s in scored.scores:
        if (warning := implausible(s)) is not None:
            yield f"lm-eval, {s.measure}: {warning}"


def _unreadable(name: str, result: DocumentsResult) -> Iterator[str]:
    dropped = {reason: count for reason, count in result.dropped.items() if reason != "empty"}
    if dropped:
        listed = ", ".join(f"{reason}: {count:,}" for reason, count in dropped.items())
        yield f"{name} dropped documents that it could not read ({listed})"


def _result(run: Finished, steps: Iterator[Step]) -> Any:
    step = next(steps, None)
    return None if step is None else run.result(step.name)
