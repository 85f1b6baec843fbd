"""Headline: the few lines that a finished run ends with, read from the records of its steps."""

from collections.abc import Iterator

from marin_dag.cli.session import Finished
from runtime.evaluation.task_score import implausible

FINAL_PHASE = "deeper_starling"


def headline(run: Finished) -> Iterator[str]:
    """What the final model is worth, what was left out of the user's files, and how long it took."""
    evaluation, scored = run.result(f"ema_eval/{FINAL_PHASE}"), run.result(f"lm_eval/{FINAL_PHASE}")
    if evaluation is not None:
        first = evaluation.averages[0] if evaluation.averages else None
        weights, value = ("hot", evaluation.hot_mean) if first is None else ("averaged", first.mean)
        domains = "1 held-out domain" if len(evaluation.hot) == 1 else f"{len(evaluation.hot)} held-out domains"
        yield (
            f"{FINAL_PHASE}: {value:.3f} bits per byte ({weights} weights, mean of {domains}) after "
            f"{evaluation.consumed_tokens:,} tokens"
        )
    if scored is not None:
        from runtime.report.contents import Score, leading, mean

        scores = leading(
            [Score(FINAL_PHASE, s.task, s.num_fewshot, s.metric, s.value, s.stderr, s.chance) for s in scored.scores]
        )
        if scores:
            accuracy = mean({score.label: score.value for score in scores})
            chance = mean({score.label: score.chance or 0.0 for score in scores})
            yield f"lm-eval: mean accuracy {accuracy:.3f} over {len(scores)} tasks; guessing gives {chance:.3f}"
        for s in scored.scores:
            if (said := implausible(value=s.value, chance=s.chance, num_items=s.num_items)) is not None:
                yield f"lm-eval, {s.task}, {s.num_fewshot}-shot, {s.metric}: {said}"
    for name in run.steps:
        if name.startswith("extract/") and (result := run.result(name)) is not None:
            left_out = {reason: count for reason, count in result.dropped.items() if reason != "empty"}
            if left_out:
                listed = ", ".join(f"{reason}: {count:,}" for reason, count in left_out.items())
                yield f"{name} left out what it could not read ({listed})"
    if run.seconds is not None:
        minutes, seconds = divmod(round(run.seconds), 60)
        yield f"done in {minutes} min {seconds} s" if minutes else f"done in {seconds} s"
