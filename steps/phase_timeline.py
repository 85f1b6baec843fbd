"""Phase timeline: the phases of a run, what each changes, and the abrupt changes that a phase must acknowledge.

A run is a chain of phases. Each starts at the step where its predecessor ends and has all settings; a recipe writes
only the changes. All arithmetic is exact integers or float64 on plain values, so that a plan needs no JAX.
"""

import dataclasses
import json
from collections.abc import Mapping

from marin_dag.errors import RefusedConfigError
from runtime.optim.optimizer import chosen
from runtime.training.restore import RESTORES_POSITION
from steps.phase_config import ABRUPT_FIELDS, COMPARED_FIELDS, TrainPhaseConfig

RELATIVE_RATE_TOLERANCE = 1e-6
"""Learning rates closer than this are equal: the end of a segment and the start of the next are computed apart."""


@dataclasses.dataclass(frozen=True)
class SettingChange:
    """A setting that differs from the phase before."""

    field: str
    before: object
    after: object
    is_abrupt: bool
    """The phase has to acknowledge the change."""


def changes(before: TrainPhaseConfig, after: TrainPhaseConfig) -> tuple[SettingChange, ...]:
    """Return the settings that differ; a learning rate is abrupt only where the two rates do not meet."""
    found = []
    for field in COMPARED_FIELDS:
        old, new = getattr(before, field), getattr(after, field)
        is_abrupt = field in ABRUPT_FIELDS
        match field:
            case "restore":
                old = "everything"  # its default, since the value of the phase before acted at that phase's start
            case "skip_batches":
                old = 0  # likewise
            case "caches":
                old, new = _replaced_caches(before, after)
                is_abrupt = after.restore in RESTORES_POSITION  # otherwise `restore` restarts every source
            case "optimizer":
                old, new = chosen(old), chosen(new)
            case "learning_rate":
                is_abrupt = learning_rate_jump(before, after) is not None
        if old != new:
            found.append(SettingChange(field, old, new, is_abrupt))
    return tuple(found)


def _replaced_caches(before: TrainPhaseConfig, after: TrainPhaseConfig) -> tuple[dict[str, object], dict[str, object]]:
    """Return the old and new caches of sources in both mixtures whose cache changes."""
    # A source without a cache is an error of its own.
    names = [
        name
        for name in after.mixture.sources
        if name in before.mixture.sources and before.caches.get(name) != after.caches.get(name)
    ]
    return {name: before.caches.get(name) for name in names}, {name: after.caches.get(name) for name in names}


def learning_rate_jump(before: TrainPhaseConfig, after: TrainPhaseConfig) -> tuple[float, float] | None:
    """Return the rates on both sides of the boundary, if they differ."""
    step = before.until_step
    old, new = before.learning_rate(step), after.learning_rate(step)
    return None if abs(old - new) <= RELATIVE_RATE_TOLERANCE * max(abs(old), abs(new)) else (old, new)


def check_acknowledged(before: TrainPhaseConfig, after: TrainPhaseConfig) -> None:
    """Check that a phase acknowledges its abrupt changes.

    Raises:
        ValueError: the shape of the model changes, or the phase ends before it begins.
        RefusedConfigError: an abrupt change is not in `acknowledge`; the message has both values and the fix.
    """
    if before.model != after.model:
        raise ValueError(
            "model differs from the phase it starts from, whose parameters it continues. Use the same model, or start "
            "a new run: start=None."
        )
    if after.until_step < before.until_step:
        raise ValueError(
            f"until_step is {after.until_step}, before the start of the phase ({before.until_step}). Steps count from "
            f"the start of the run: use a value above {before.until_step}."
        )
    missing = [
        change for change in changes(before, after) if change.is_abrupt and change.field not in after.acknowledge
    ]
    if missing:
        fields = tuple(dict.fromkeys((*after.acknowledge, *(change.field for change in missing))))
        lines = [line for change in missing for line in _described(change, before, after)]
        raise RefusedConfigError(
            "the phase has abrupt changes that it does not acknowledge:\n"
            + "\n".join(lines)
            + f"\nIf they are intended, set acknowledge={fields!r} in the phase; otherwise fix the values.",
            {"acknowledge": json.dumps(fields)},
        )


def _described(change: SettingChange, before: TrainPhaseConfig, after: TrainPhaseConfig) -> list[str]:
    match change.field:
        case "learning_rate":
            old, new = learning_rate_jump(before, after) or (0.0, 0.0)
            return [f"  learning_rate jumps from {old:.6g} to {new:.6g} at step {before.until_step:,}"]
        case "caches":
            return [
                f"  caches: source {source!r} has another cache, which is read from its beginning, or from where the "
                "run left it"
                for source in _replaced_caches(before, after)[1]
            ]
        case "skip_batches":
            tokens = after.skip_batches * after.global_batch_size * after.sequence_length
            return [f"  skip_batches skips the next {after.skip_batches:,} batches of the data, {tokens:,} tokens"]
    return [f"  {change.field} changes from {change.before} to {change.after}"]


@dataclasses.dataclass(frozen=True)
class RunPhase:
    """A phase and its place in its run; token counts are exact Python integers."""

    name: str
    parent: str | None
    settings: TrainPhaseConfig
    begin_step: int
    """Finished training steps when the phase begins."""
    begin_tokens: int
    """Tokens that the run has trained on when the phase begins."""

    @property
    def steps(self) -> int:
        return self.settings.until_step - self.begin_step

    @property
    def tokens_per_step(self) -> int:
        return self.settings.global_batch_size * self.settings.sequence_length

    @property
    def end_tokens(self) -> int:
        return self.tokens_at(self.settings.until_step)

    def tokens_at(self, step: int) -> int:
        """Return the tokens that the run has trained on after `step`, a step of this phase."""
        return self.begin_tokens + (step - self.begin_step) * self.tokens_per_step

    @property
    def rates(self) -> tuple[float, float]:
        """The learning rates of the first and of the last step."""
        return self.settings.learning_rate(self.begin_step), self.settings.learning_rate(self.settings.until_step - 1)


def place_phases(phases: Mapping[str, TrainPhaseConfig], starts: Mapping[str, tuple[str, int]]) -> dict[str, RunPhase]:
    """Return every phase with its place; `starts` has the predecessor, which comes first, and its step."""
    found: dict[str, RunPhase] = {}
    for name, settings in phases.items():
        parent, step = starts.get(name, (None, 0))
        begin_tokens = 0 if parent is None else found[parent].tokens_at(step)
        found[name] = RunPhase(name, parent, settings, step, begin_tokens)
    return found
