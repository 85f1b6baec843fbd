"""Learning-rate schedules: pure functions of the absolute step, in float64 on the host.

The train step takes the learning rate as an argument, so a schedule needs no JAX, changes no compiled program, and a
plan can evaluate it at any step. (optax's schedules are traced functions of float32.) Lengths are explicit and steps
absolute, so moving the end of a phase never changes what happened before it. `step` counts finished updates:
`schedule(0)` is the rate of the first update.
"""

import dataclasses
import itertools
import math
from typing import Any, Literal


def _check_numbers(schedule: Any, *, rates: tuple[str, ...] = (), **least_steps: int) -> None:
    """Raise ValueError unless `rates` are finite and at least 0, and the other fields at least the given numbers."""
    owner = type(schedule).__name__
    for field in (*rates, *least_steps):
        value = getattr(schedule, field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{owner}.{field} is {value!r}; use a number.")
        if field in rates and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{owner}.{field} is {value}; use a finite learning rate of at least 0.")
        if field in least_steps and value < least_steps[field]:
            raise ValueError(
                f"{owner}.{field} is {value}; use at least {least_steps[field]}. For a jump or a constant rate, use "
                "Constant, or start the next phase at the new value."
            )


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same value at every step."""

    value: float
    kind: Literal["constant"] = "constant"

    def __post_init__(self) -> None:
        _check_numbers(self, rates=("value",))

    def __call__(self, step: int) -> float:
        return self.value


class Placed:
    """A schedule with a start. Without a `start_step` it starts where its phase does, once a phase takes it."""

    start_step: int | None

    @property
    def first_step(self) -> int:
        """First step of the schedule; raise ValueError where no phase has taken the schedule yet."""
        if self.start_step is None:
            raise ValueError(f"{type(self).__name__}.start_step is not set; a phase sets it to its own first step.")
        return self.start_step

    def line(self, step: int, num_steps: int, first_value: float, last_value: float) -> float:
        """Return the value at `step` on a straight line of `num_steps` from the first step on, constant beyond it."""
        share = min(max(step - self.first_step, 0), num_steps) / num_steps
        return first_value * (1 - share) + last_value * share


@dataclasses.dataclass(frozen=True)
class Linear(Placed):
    """A straight line from `peak_value` to `end_value`: the decay of WSD (arXiv:2404.06395).

    Step `start_step + decay_steps` is the first at `end_value`. Earlier steps than `start_step` have `peak_value` and
    later ones `end_value`, exactly.
    """

    peak_value: float
    end_value: float
    _: dataclasses.KW_ONLY
    decay_steps: int
    start_step: int | None = None
    kind: Literal["linear"] = "linear"

    def __post_init__(self) -> None:
        _check_numbers(self, rates=("peak_value", "end_value"), decay_steps=1)

    def __call__(self, step: int) -> float:
        return self.line(step, self.decay_steps, self.peak_value, self.end_value)


@dataclasses.dataclass(frozen=True)
class Rewarm(Placed):
    """A straight line up from `init_value` to `peak_value` over `warmup_steps`, then constant."""

    init_value: float
    peak_value: float
    _: dataclasses.KW_ONLY
    warmup_steps: int
    start_step: int | None = None
    kind: Literal["rewarm"] = "rewarm"

    def __post_init__(self) -> None:
        _check_numbers(self, rates=("init_value", "peak_value"), warmup_steps=1)

    def __call__(self, step: int) -> float:
        return self.line(step, self.warmup_steps, self.init_value, self.peak_value)


@dataclasses.dataclass(frozen=True)
class Cosine(Placed):
    """A linear warm-up from 0 to `peak_value`, then half a cosine to `end_value` (arXiv:1608.03983, without restarts).

    The cosine begins at step `start_step + warmup_steps` and takes `decay_steps`. Without a warm-up, earlier steps than
    `start_step` have `peak_value`.
    """

    peak_value: float
    end_value: float
    _: dataclasses.KW_ONLY
    decay_steps: int
    warmup_steps: int = 0
    start_step: int | None = None
    kind: Literal["cosine"] = "cosine"

    def __post_init__(self) -> None:
        _check_numbers(self, rates=("peak_value", "end_value"), decay_steps=1, warmup_steps=0)

    def __call__(self, step: int) -> float:
        since_start = step - self.first_step
        if self.warmup_steps and since_start < self.warmup_steps:
            return self.peak_value * max(since_start, 0) / self.warmup_steps
        fraction = min(max(since_start - self.warmup_steps, 0), self.decay_steps) / self.decay_steps
        share = 0.5 * (1 + math.cos(math.pi * fraction))
        return self.peak_value * share + self.end_value * (1 - share)


@dataclasses.dataclass(frozen=True)
class Cycles:
    """Cycles of `cycle_steps`, from `start_step` on, whose last `decay_steps` decay; see `WsdS`."""

    start_step: int
    cycle_steps: int
    decay_steps: int

    def __post_init__(self) -> None:
        _check_numbers(self, decay_steps=1)
        if self.decay_steps > self.cycle_steps:
            raise ValueError(
                f"Cycles.decay_steps is {self.decay_steps}, longer than cycle_steps ({self.cycle_steps}); "
                "use a decay within its cycle."
            )


@dataclasses.dataclass(frozen=True)
class WsdS:
    """Warm-up, then stable-decay cycles with inverse decay (WSD-S, arXiv:2410.05192), each back to the peak at once.

    Inside a decay of D steps, k steps in: `peak / (1 + (peak / end - 1) * k / D)`, so 1/rate is linear in k.
    `cycles` may change by step (kestrel: 10,000 with 1,000, then 20,000 with 2,000 from step 200,000);
    a change takes effect at its `start_step` and never alters earlier steps.
    """

    peak_value: float
    end_value: float
    warmup_steps: int
    cycles: tuple[Cycles, ...]
    kind: Literal["wsd_s"] = "wsd_s"

    def __post_init__(self) -> None:
        _check_numbers(self, rates=("peak_value",))
        if not 0 < self.end_value <= self.peak_value:
            raise ValueError(
                f"WsdS.end_value is {self.end_value}; use 0 < end_value <= peak_value, which inverse decay needs."
            )
        if not self.cycles or self.cycles[0].start_step != 0:
            raise ValueError("WsdS.cycles has no Cycles from step 0; start the tuple with Cycles(start_step=0, ...).")
        first_decay = self.cycles[0].cycle_steps - self.cycles[0].decay_steps
        if not 0 <= self.warmup_steps <= first_decay:
            raise ValueError(
                f"WsdS.warmup_steps is {self.warmup_steps}; the first decay starts at step {first_decay}; use 0 "
                f"to {first_decay}."
            )
        for earlier, later in itertools.pairwise(self.cycles):
            if (later.start_step - earlier.start_step) % earlier.cycle_steps or later.start_step <= earlier.start_step:
                raise ValueError(
                    f"WsdS.cycles: start_step {later.start_step} is inside a cycle of {earlier.cycle_steps} steps from "
                    f"{earlier.start_step} on; change the cycle where one ends, or the decay is cut short."
                )

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.peak_value * step / self.warmup_steps
        cycles, elapsed = self._cycle_at(step)
        decay_elapsed = max(elapsed - (cycles.cycle_steps - cycles.decay_steps), 0)
        return self.peak_value / (1 + (self.peak_value / self.end_value - 1) * decay_elapsed / cycles.decay_steps)

    def jumps_at(self, step: int) -> bool:
        """Return whether a cycle after the first starts there: the rate jumps back to the peak, and losses rise."""
        return step > 0 and self._cycle_at(step)[1] == 0

    def _cycle_at(self, step: int) -> tuple[Cycles, int]:
        """Return the cycles in force, and the steps since the start of the current one."""
        cycles = next(cycles for cycles in reversed(self.cycles) if step >= cycles.start_step)
        return cycles, (step - cycles.start_step) % cycles.cycle_steps


Schedule = Constant | Linear | Rewarm | Cosine | WsdS


def placed(schedule: Schedule, begin_step: int) -> Schedule:
    """Return a schedule that begins at `begin_step` if it says no beginning of its own."""
    if isinstance(schedule, Linear | Rewarm | Cosine) and schedule.start_step is None:
        return dataclasses.replace(schedule, start_step=begin_step)
    return schedule
