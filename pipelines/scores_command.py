"""scores: show the scores of each phase at its milestones and its end."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from marin_dag.cli.session import Session
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store
from pipelines.milestone_evaluations import OPTION, is_of_weights, milestone_of
from pipelines.output import Shown, aligned, command
from pipelines.phases import wanted_phases
from runtime.evaluation.task_score import leading_of_each_task
from runtime.optim.ema import HOT
from steps.ema_eval import EmaEvalResult, ema_eval
from steps.lm_eval import lm_eval
from steps.merge_config import MergeCheckpointsConfig
from steps.phase_config import TrainPhaseConfig

if TYPE_CHECKING:
    from runtime.report.score_curves import ScorePoint

TRAINED = (TrainPhaseConfig, MergeCheckpointsConfig)
BITS_PER_BYTE = "bits per byte"


@command(
    "scores [PHASE...]",
    "show the scores of each phase over tokens, also at milestones (--evaluate-every)",
    "--set --json",
)
def scores(session: Session) -> Shown:
    graph = session.graph()
    wanted = {name for names in wanted_phases(session, graph).values() for name in names}
    every = read_points(graph, session.store)
    points = [point for point in every if point.phase in wanted] if session.parsed.names else every
    if not points:
        none = f"no phase has scores under {session.store.prefix} as the recipe is now; {OPTION} N makes some"
        return Shown([none], document=list)
    rows = [["phase", "weights", "after step", "tokens", "measure", "value", "±"]]
    for point in points:
        error = "" if point.stderr is None else f"{point.stderr:.4f}"
        place = [f"{point.step:,}", f"{point.tokens:,}"]
        rows.append([point.phase, point.weights, *place, point.measure, f"{point.value:.4f}", error])
    return Shown(aligned(rows, left=(0, 1, 4)), document=lambda: [*map(dataclasses.asdict, points)])


def read_points(graph: Graph, store: Store) -> "list[ScorePoint]":
    """Return the finished evaluations and scores of a graph, sorted by measure and tokens."""
    steps = [step for step in graph.steps if step.kind in (ema_eval, lm_eval) and is_of_weights(step, *TRAINED)]
    records = Records(store).find_all({step.key for step in steps})
    found: list[ScorePoint] = []
    for step in steps:
        if step.key in records:
            result = step.kind.result_type.model_validate(records[step.key].result)
            measured = _bits_per_byte if step.kind is ema_eval else _tasks
            found += measured(milestone_of(step).step.name, result)
    return sorted(dict.fromkeys(found), key=lambda point: (point.measure, point.tokens, point.phase, point.weights))


def _bits_per_byte(phase: str, result: EmaEvalResult) -> "Iterator[ScorePoint]":
    from runtime.report.score_curves import ScorePoint

    means: Mapping[str, float] = {HOT: result.hot_mean} | {each.average.name: each.mean for each in result.averages}
    for weights, value in means.items():
        yield ScorePoint(phase, weights, result.step, result.consumed_tokens, BITS_PER_BYTE, value, None, None)


def _tasks(phase: str, result: Any) -> "Iterable[ScorePoint]":
    from runtime.report.score_curves import ScorePoint

    for score in leading_of_each_task(result.scores):
        figures = (score.measure, score.value, score.stderr, score.chance)
        yield ScorePoint(phase, result.weights, result.step, result.consumed_tokens, *figures)
