"""Timeline: the phases of a run, what each changes, and the jumps that somebody must have meant.

A run is a chain of phases. Each begins at the step where its predecessor ends and says the whole truth
about itself; a recipe writes only what changes. Everything here is exact integer or float64 arithmetic on
plain values, so that a plan can use it without JAX.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

from runtime.data.mixing.policies import MixingPolicy
from runtime.data.mixture import MixtureSchedule
from runtime.model.config import ModelConfig, Rope
from runtime.optim.ema import Ema
from runtime.optim.schedule import Schedule
from runtime.optim.skip_rule import SkipRule


class UnacknowledgedError(ValueError):
    """A phase jumps without saying so; `fields` is what its `acknowledge` would have to hold."""

    def __init__(self, message: str, fields: tuple[str, ...]) -> None:
        super().__init__(message)
        self.fields = fields


class PhaseSettings(Protocol):
    """What a phase sets, whatever holds it."""

    @property
    def until_step(self) -> int: ...
    @property
    def restore(self) -> str: ...
    @property
    def skip_batches(self) -> int: ...
    @property
    def model(self) -> ModelConfig: ...
    @property
    def rope(self) -> Rope: ...
    @property
    def sequence_length(self) -> int: ...
    @property
    def global_batch_size(self) -> int: ...
    @property
    def learning_rate(self) -> Schedule: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def b1(self) -> float: ...
    @property
    def b2(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def max_norm(self) -> float: ...
    @property
    def averages(self) -> tuple[Ema, ...]: ...
    @property
    def z_loss(self) -> float: ...
    @property
    def mixture(self) -> MixtureSchedule: ...
    @property
    def mixing(self) -> MixingPolicy: ...
    @property
    def replay(self) -> object: ...
    @property
    def caches(self) -> Mapping[str, object]: ...
    @property
    def packing(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def compute_dtype(self) -> str: ...
    @property
    def reduce_dtype(self) -> str: ...
    @property
    def skip(self) -> SkipRule | None: ...
    @property
    def acknowledge(self) -> tuple[str, ...]: ...
    @property
    def validate_every_steps(self) -> int: ...


# A change of any of these is felt by the run at once: the public run changed weight decay, and the rotary
# embedding, without anybody writing it down. A mixing policy begins anew where it changes: what it had learned is lost.
# Rows of another packing are other rows, and the data position does not count them. What a source has given is counted
# by its cache, so that another one is read from its beginning. Batches that are left out move the position itself.
ABRUPT_FIELDS = (
    "weight_decay", "b1", "b2", "eps", "max_norm", "rope", "sequence_length", "seed", "caches", "mixing", "packing",
    "restore", "skip_batches", "compute_dtype", "reduce_dtype",
)  # fmt: skip
KEEP_THE_DATA_POSITION = ("everything", "everything_but_optimizer")
"""What `restore` may be for the data to go on where the phase before left them."""
JUMPS = ("learning_rate", *ABRUPT_FIELDS)
"""What a phase can acknowledge."""
# Every setting that changes the numbers of a run, in the order in which a diff shows them. A learning rate is abrupt
# only where the two do not meet. The model is not among them: it cannot change.
COMPARED_FIELDS = (
    "global_batch_size", "learning_rate", "averages", "z_loss", "skip", "mixture", "replay",
    *ABRUPT_FIELDS,
)  # fmt: skip

# Rates closer than this are one rate: the end of one segment and the start of the next are computed apart.
RELATIVE_RATE_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Change:
    """One setting that a phase does not share with the phase before it."""

    field: str
    before: object
    after: object
    is_abrupt: bool
    """Whether the phase has to acknowledge it."""


def changes(before: PhaseSettings, after: PhaseSettings) -> tuple[Change, ...]:
    """What differs, field by field; a learning rate counts as abrupt only where the two do not meet."""
    found = []
    for field in COMPARED_FIELDS:
        old, new = getattr(before, field), getattr(after, field)
        match field:
            case "restore":
                old = "everything"  # what it is unless a phase says otherwise, whatever the phase before said
            case "skip_batches":
                old = 0  # the phase before left out its own
            case "caches":
                old, new = _replaced(before, after)
        if old == new:
            continue
        is_abrupt = field in ABRUPT_FIELDS
        if field == "learning_rate":
            is_abrupt = learning_rate_jump(before, after) is not None
        if field == "caches":  # else every source begins anew, as `restore` says
            is_abrupt = after.restore in KEEP_THE_DATA_POSITION
        found.append(Change(field, old, new, is_abrupt))
    return tuple(found)


def _replaced(before: PhaseSettings, after: PhaseSettings) -> tuple[dict[str, object], dict[str, object]]:
    """The sources that both mixtures name and that have another cache; what a mixture adds or drops shows there.

    Two steps of one identity made one cache, whatever they are called: nothing moves.
    """
    both = [name for name in after.mixture.sources if name in before.mixture.sources]
    # A source without a cache is refused elsewhere, with its name.
    names = [name for name in both if before.caches.get(name) != after.caches.get(name)]
    return {name: before.caches.get(name) for name in names}, {name: after.caches.get(name) for name in names}


def learning_rate_jump(before: PhaseSettings, after: PhaseSettings) -> tuple[float, float] | None:
    """The rates on both sides of the seam, if they differ."""
    step = before.until_step
    old, new = before.learning_rate(step), after.learning_rate(step)
    return None if abs(old - new) <= RELATIVE_RATE_TOLERANCE * max(abs(old), abs(new)) else (old, new)


def refuse_unacknowledged_changes(name: str, before: PhaseSettings, after: PhaseSettings) -> None:
    """Refuses a phase that jumps without saying so; an empty `name` where the reader is told it beside the message.

    Raises:
        ValueError: the model's shape changes, the phase ends before it begins, or an abrupt change is not named in
            `acknowledge`; the message gives both values and the line to write.
    """
    of_it = f"{name}." if name else ""
    if before.model != after.model:
        raise ValueError(
            f"{of_it}model differs from that of the phase it starts from; a phase continues its parameters, so the "
            "shape cannot change. Start a new run (start=None) instead."
        )
    if after.until_step < before.until_step:
        raise ValueError(
            f"{of_it}until_step is {after.until_step}, before the {before.until_step} finished steps that it starts "
            "from; steps are counted from the start of the run."
        )
    missing = [
        change for change in changes(before, after) if change.is_abrupt and change.field not in after.acknowledge
    ]
    if not missing:
        return
    lines = []
    for change in missing:
        if change.field == "learning_rate":
            old, new = learning_rate_jump(before, after) or (0.0, 0.0)
            lines.append(f"  learning_rate jumps from {old:.6g} to {new:.6g} at step {before.until_step:,}")
        elif change.field == "caches":
            lines += [
                f"  caches: source {source!r} has another cache, and reads it from its beginning (or on from where the "
                "run had left that one)"
                for source in _replaced(before, after)[1]
            ]
        elif change.field == "skip_batches":
            tokens = change.after * after.global_batch_size * after.sequence_length  # type: ignore[operator]
            lines.append(f"  skip_batches leaves out the next {change.after:,} batches of the data, {tokens:,} tokens")
        else:
            lines.append(f"  {change.field} changes from {change.before} to {change.after}")
    fields = tuple(dict.fromkeys((*after.acknowledge, *(change.field for change in missing))))
    raise UnacknowledgedError(
        f"{name or 'the phase'} changes what a run feels at once, and does not say that this is meant:\n"
        + "\n".join(lines)
        + f"\nIf it is meant, write acknowledge={fields!r} in the phase; if not, mend the value.",
        fields,
    )


@dataclasses.dataclass(frozen=True)
class Leg:
    """One phase and where it stands in its run; tokens are exact, Python integers having no width."""

    name: str
    parent: str | None
    settings: PhaseSettings
    begin_step: int
    """Finished updates when it begins."""
    begin_tokens: int
    """Tokens that its run has trained on by then."""

    @property
    def steps(self) -> int:
        return self.settings.until_step - self.begin_step

    @property
    def tokens_per_step(self) -> int:
        return self.settings.global_batch_size * self.settings.sequence_length

    @property
    def skipped_tokens(self) -> int:
        """Of the data that it leaves out as it begins, which are trained on by nobody."""
        return self.settings.skip_batches * self.tokens_per_step

    @property
    def end_tokens(self) -> int:
        return self.tokens_at(self.settings.until_step)

    def tokens_at(self, step: int) -> int:
        """Tokens that the run has trained on after `step` finished updates, for a step of this leg."""
        return self.begin_tokens + (step - self.begin_step) * self.tokens_per_step

    @property
    def rates(self) -> tuple[float, float]:
        """Learning rate of its first and of its last update."""
        return self.settings.learning_rate(self.begin_step), self.settings.learning_rate(self.settings.until_step - 1)


def legs_of(phases: Mapping[str, PhaseSettings], starts: Mapping[str, tuple[str, int]]) -> dict[str, Leg]:
    """Every phase with its place in its run; `starts` gives, for those that continue one, the phase and its step.

    Raises:
        ValueError: a phase starts from one that is not in `phases`.
    """
    found: dict[str, Leg] = {}

    def leg(name: str) -> Leg:
        if name in found:
            return found[name]
        if name not in phases:
            raise ValueError(f"phase {name!r} is not in the timeline; it has {', '.join(phases)}.")
        if name in starts:
            parent, step = starts[name]
            found[name] = Leg(name, parent, phases[name], step, leg(parent).tokens_at(step))
        else:
            found[name] = Leg(name, None, phases[name], 0, 0)
        return found[name]

    return {name: leg(name) for name in phases}
