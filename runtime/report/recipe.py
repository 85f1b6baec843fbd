"""Steps and settings in a few words each, for the report's tables; plain Python, since a plan uses it too."""

import dataclasses
import math
from collections.abc import Mapping

from runtime.data.mixture import MixtureSchedule
from runtime.model.config import Rope
from runtime.optim.ema import Ema
from runtime.optim.schedule import Constant, Cosine, Linear, Rewarm, WsdS


@dataclasses.dataclass(frozen=True)
class Change:
    """A setting that a phase changes against the one it starts from, in words."""

    field: str
    before: str
    after: str


def rate(value: float) -> str:
    """Return a number as people write it: 1.7e-3, 0.1, inf."""
    if value == 0 or 0.01 <= abs(value) < 1e5 or not math.isfinite(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def side_branches(num_trainings: int, num_names: int) -> str:
    """Return how many branches there are; one training that has several names is one branch."""
    branches = f"{num_trainings:,} side branch{'' if num_trainings == 1 else 'es'}"
    return branches if num_names == num_trainings else f"{branches} under {num_names:,} names"


def described(value: object) -> str:
    """Return a setting in words; a type without a wording of its own by its `repr`."""
    match value:
        case None:
            return "none"
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return rate(value)
        case Constant():
            return f"constant {rate(value.value)}"
        case Linear() | Cosine():
            fall = f"{rate(value.peak_value)} → {rate(value.end_value)}"
            warmup = (
                f"warm-up {value.warmup_steps:,} steps, " if isinstance(value, Cosine) and value.warmup_steps else ""
            )
            return f"{value.kind} {warmup}{fall} over {value.decay_steps:,} steps from step {value.first_step:,}"
        case Rewarm():
            rise = f"{rate(value.init_value)} → {rate(value.peak_value)}"
            return f"rewarm {rise} over {value.warmup_steps:,} steps from step {value.first_step:,}, then constant"
        case WsdS():
            cycles = "; ".join(
                f"from step {cycle.start_step:,}: {cycle.cycle_steps:,} with {cycle.decay_steps:,} of decay"
                for cycle in value.cycles
            )
            return (
                f"WSD-S {rate(value.peak_value)} ⇄ {rate(value.end_value)}, warm-up {value.warmup_steps:,} steps, "
                f"cycles {cycles}"
            )
        case Ema():
            called = "average" if value.name == Ema.name else f"average {value.name}"
            every = f" (every {value.every_steps:,} steps)" if value.every_steps > 1 else ""
            return f"{called}, decay {value.decay:g}{every}"
        case Mapping():
            return ", ".join(f"{name}: {described(item)}" for name, item in value.items())
        case tuple():
            return "; ".join(map(described, value)) or "none"
        case Rope():
            scaling = value.scaling
            factor = "no scaling" if scaling is None else f"Llama-3 scaling ×{scaling.factor:g}"
            return f"theta {value.rope_theta:,.0f}, {factor}"
        case MixtureSchedule():
            return "; then ".join(
                (f"from step {segment.start_step:,}: " if index else "") + shares(segment.shares())
                for index, segment in enumerate(value.segments)
            )
    return repr(value)


def shares(values: Mapping[str, float], before: Mapping[str, float] | None = None) -> str:
    """Return a mixture in words, the largest share first; with those `before` each that changed as `old -> new`."""
    ordered = sorted(values.items(), key=lambda item: (-item[1], item[0]))
    words = []
    for source, share in ordered:
        summary_text = percent(share)
        old = summary_text if before is None else percent(before.get(source, 0.0))
        words.append(f"{source} {summary_text}" if old == summary_text else f"{source} {old} -> {summary_text}")
    return ", ".join(words)


def percent(share: float) -> str:
    """Return a share with three digits, however small it is."""
    return f"{100 * share:.3g} %"


def tokens_label(value: float) -> str:
    """Return a number of tokens or documents with three figures: 12.7T, 840k, 12."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.{max(0, 2 - max(0, math.floor(math.log10(scaled))))}f}{letter}"
    return f"{value:.0f}"


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts: 1 document, 1,200 documents."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def bytes_label(value: float) -> str:
    """Return a number of bytes with three figures, in decimal units."""
    figures = tokens_label(value)
    return f"{figures} B" if value < 999.5 else f"{figures[:-1]} {figures[-1].replace('B', 'G')}B"
