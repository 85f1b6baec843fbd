"""Contents of the report as plain values, without engine or files; a value that is not finite is refused."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from runtime.data.consumption import Consumption, SourceUse
from runtime.evaluation.task_score import TaskScore, leading_of_each_task
from runtime.evaluation.window_noise import Losses
from runtime.optim.ema import HOT, Ema
from runtime.report.recipe import Change
from runtime.training.observer import Alarm

EASY_NATS = 0.05
"""Median loss of a window below which its text, or its template, may have been trained on."""


def _check_finite(where: str, value: float, cure: str) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which no plot can show; {cure}")


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Metrics of a phase, one row a training step; `step` counts finished steps since the start of the run."""

    step: np.ndarray
    consumed_tokens: np.ndarray
    loss: np.ndarray
    """Mean cross-entropy in nats a token."""
    learning_rate: np.ndarray
    global_batch_size: np.ndarray
    """Sequences."""

    def __post_init__(self) -> None:
        cure = "the phase diverged or its metrics are damaged: look at its loss around that step."
        for name, values in vars(self).items():
            for row in np.flatnonzero(~np.isfinite(values))[:1]:
                _check_finite(f"Curve.{name}[{row}] (step {self.step[row]})", values[row], cure)

    def __len__(self) -> int:
        return int(self.step.size)


@dataclasses.dataclass(frozen=True)
class MixtureSpan:
    """Tokens of the run during which the shares of the sources are the same."""

    begin_tokens: float
    end_tokens: float
    shares: Mapping[str, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Phase:
    """A phase of the run, with the training steps that it made itself."""

    name: str
    parent: str | None
    is_main: bool
    start_step: int
    """Training steps finished before its first one."""
    step: int
    start_tokens: int
    """Tokens consumed before its first training step."""
    consumed_tokens: int
    final_loss: float
    averages: tuple[Ema, ...]
    """The first is what evaluations and exports take unless they name another."""
    curve: Curve
    mixture: tuple[MixtureSpan, ...] = ()
    changes: tuple[Change, ...] = ()
    same_as: str | None = None
    """The phase before it in the report that is the same training under another name: one identity, one output."""
    fork_of: str | None = None
    """The phase that it is with other settings, where it was made on the command line."""
    fork_reason: str = ""
    num_targets: int | None = None
    """Positions with a next token to predict; the others are padding and the ends of documents and sequences."""

    def __post_init__(self) -> None:
        where = f"phases[{self.name!r}].final_loss"
        _check_finite(where, self.final_loss, "the phase diverged; fork it from before that.")


@dataclasses.dataclass(frozen=True)
class OtherWeights:
    """Merged or imported weights with results on the page, which no phase of it trained."""

    name: str
    step: int
    consumed_tokens: int
    is_main: bool = False
    same_as: str | None = None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Bits per byte for each held-out domain at the end of a phase."""

    phase: str
    consumed_tokens: int
    hot: Mapping[str, float]
    averages: Mapping[str, Mapping[str, float]]
    """Figures of each average by name; the first is the one that `best` returns. Empty without averages."""
    windows: Losses = dataclasses.field(default_factory=dict)
    """Losses of some windows under the weights of `best`, for the noise of a fork's difference."""
    num_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Tokens of all evaluated text, by domain."""
    num_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for which, values in self.by_weights.items():
            for domain, value in values.items():
                _check_finite(f"evaluations[{self.phase!r}].{which}[{domain!r}]", value, "evaluate the phase again.")

    @property
    def best(self) -> Mapping[str, float]:
        """Figures of the first average, or of the weights if there is none."""
        return next(iter(self.averages.values()), self.hot)

    @property
    def by_weights(self) -> dict[str, Mapping[str, float]]:
        """Figures of each average, then of the trained weights."""
        return {**self.averages, HOT: self.hot}


def mean(values: Mapping[str, float]) -> float:
    """Unweighted mean over domains or tasks."""
    return math.fsum(values.values()) / len(values)


@dataclasses.dataclass(frozen=True)
class Export:
    """A model in Hugging Face form: which weights of which phase, and where it lies; no path of a machine."""

    name: str
    phase: str
    weights: str
    digest: str
    folder: str


@dataclasses.dataclass(frozen=True)
class Score(TaskScore):
    """A score of an export."""

    export: str = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        where = f"scores[{self.export!r}][{self.task!r}]"
        _check_finite(f"{where}.value", self.value, "run the evaluation again; a task without items has no score.")
        _check_finite(f"{where}.stderr", self.stderr or 0.0, "write None where it is not known.")

    def __str__(self) -> str:
        return f"{self.value:.3f}" if self.stderr is None else f"{self.value:.3f} ± {self.stderr:.3f}"


def leading(scores: Sequence[Score]) -> list[Score]:
    """Return one accuracy for each task and export; metrics without chance, such as a perplexity, are for the table."""
    by_export: dict[str, list[Score]] = {}
    for score in scores:
        if score.chance is not None:
            by_export.setdefault(score.export, []).append(score)
    return [score for same in by_export.values() for score in leading_of_each_task(same)]


@dataclasses.dataclass(frozen=True)
class SourceCurve:
    """The train loss on one source, a row for each training step that drew from it."""

    source: str
    step: np.ndarray
    """Finished training steps, this one included."""
    loss: np.ndarray
    """Mean cross-entropy over the positions of that source, nats a token."""


@dataclasses.dataclass(frozen=True)
class PhaseAlarm:
    """An alarm of a monitor about a phase."""

    phase: str
    alarm: Alarm
    tokens: int
    """Consumed tokens since the start of the run."""
    has_recovered: bool
    """Whether the loss came back within the steps after it."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """Documents of a source that one step kept and dropped."""

    source: str
    stage: str
    num_documents: int
    num_bytes: int
    dropped: Mapping[str, int]
    """Documents, by reason."""
    dropped_bytes: Mapping[str, int]
    """Bytes of their texts, by reason; 0 of what could not be read."""
    samples: Sequence[Mapping[str, str]] = ()
    """Some of these documents, as `drops.read_samples` returns them. Their texts are untrusted."""
    hits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Overlaps with evaluation items, by task; a document may have several, or be kept all the same."""
    num_edited: int = 0
    """Documents that lost lines and stayed."""
    num_bytes_removed: int = 0
    """UTF-8 bytes of these lines."""

    @property
    def num_dropped(self) -> int:
        """Documents."""
        return sum(self.dropped.values())

    @property
    def num_bytes_dropped(self) -> int:
        """UTF-8 bytes of the dropped documents."""
        return sum(self.dropped_bytes.values())


def name_of_weights(phase: str, weights: str) -> str:
    """Return the name of a phase's weights: that of the phase, with the name of EMA weights."""
    return phase if weights == HOT else f"{phase}, {weights} weights"


@dataclasses.dataclass(frozen=True, eq=False)
class Moment:
    """The predictions of a window's tokens by one set of weights; NaN and -1 where a token is not predicted."""

    log_prob: Float32[np.ndarray, "token"]
    """Natural logarithm."""
    rank: Int32[np.ndarray, "token"]
    entropy: Float32[np.ndarray, "token"]
    likely: Sequence[Sequence[str]]
    """Texts of the likeliest tokens, for each token that a page shows."""
    likely_log_prob: Float32[np.ndarray, "shown likely"]


@dataclasses.dataclass(frozen=True, eq=False)
class HeatWindow:
    """A window of held-out text."""

    domain: str
    digest: str
    texts: Sequence[str]
    """Text of each token."""
    moments: Sequence[Moment | None]
    """Predictions at each moment of the page; None where there are none."""

    @property
    def newest(self) -> Moment:
        """The last moment with predictions."""
        return next(moment for moment in reversed(self.moments) if moment is not None)

    @property
    def is_suspicious(self) -> bool:
        """Whether the window is as easy as text that was trained on, perhaps except for a few blanks."""
        return float(-np.nanmedian(self.newest.log_prob)) < EASY_NATS

    @property
    def mean_loss(self) -> float:
        """Mean loss of the predicted tokens at the newest moment, in nats."""
        return float(-np.nanmean(self.newest.log_prob))


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """Everything on the page. `phases` are in order of the main line, each branch after the phase it leaves."""

    title: str
    introduction: str
    command: str
    """Command that calls the recipe, such as "python pipelines/tootsie.py"."""
    phases: tuple[Phase, ...]
    """The phases; at least one of them is of the main line."""
    evaluations: tuple[Evaluation, ...] = ()
    exports: tuple[Export, ...] = ()
    scores: tuple[Score, ...] = ()
    stages: tuple[Stage, ...] = ()
    caches: Sequence[tuple[str, Any]] = ()
    """Sources with their results of the step `tokenize`."""
    consumption: Consumption | None = None
    """Tokens that each phase takes from each source, since the start of the run."""
    source_curves: tuple[SourceCurve, ...] = ()
    """Curves of the main line."""
    alarms: tuple[PhaseAlarm, ...] = ()
    """Alarms of the phases, in their order, without alarms of machines, which differ between equal runs."""
    final_loss_steps: int = 1
    """Number of training steps that a final loss is the mean of."""
    texts: Sequence[tuple[str, Any]] = ()
    """Phases in their order, with their results of the step `sample`."""
    moments: tuple[str, ...] = ()
    """Phases with their weights (`name_of_weights`) whose predictions `windows` have: branches, then the main line."""
    windows: tuple[HeatWindow, ...] = ()
    others: tuple[OtherWeights, ...] = ()
    law: Any = None
    """Result of the step `fit_scaling_law`, which is a plain value as it is; None without a ladder."""

    @property
    def models(self) -> tuple[Phase | OtherWeights, ...]:
        """All that has results: the phases, then the weights that none of them trained."""
        return (*self.phases, *self.others)

    @property
    def main_line(self) -> tuple[Phase, ...]:
        """Phases that lead to the final model."""
        return tuple(phase for phase in self.phases if phase.is_main)

    @property
    def branches(self) -> tuple[Phase, ...]:
        """Phases that leave the main line."""
        return tuple(phase for phase in self.phases if not phase.is_main)

    @property
    def uses(self) -> dict[tuple[str, str], SourceUse]:
        """Use of each source by each phase, by source and phase."""
        return {} if self.consumption is None else {(use.source, use.phase): use for use in self.consumption.uses}

    @property
    def domains(self) -> tuple[str, ...]:
        """Held-out domains of all evaluations, sorted."""
        return tuple(sorted({domain for evaluation in self.evaluations for domain in evaluation.hot}))

    def evaluation_of(self, phase: Phase | OtherWeights) -> Evaluation | None:
        """Return the evaluation of a phase, if there is one."""
        return next((item for item in self.evaluations if item.phase == phase.name), None)
